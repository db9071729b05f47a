"""Which engine a process is, by its name and command line, and what it says of model, port and world size. Pure.

Command lines and defaults are those of llama.cpp b10434, vLLM 0.32, SGLang 0.5.23 and p4's agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import msgspec

from backend.contract.words import Port

LEADER, WORKER, BROKER = "leader", "worker", "broker"
"""A broker (p4's agent) serves no model itself: the nodes that it starts do."""
_NAMES = ("llama-server", "ggml-rpc-server", "p4-agent", "vllm", "VLLM::", "sglang", "python", "pt_main_thread")
_VLLM_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_SGLANG_MODULE = "sglang.launch_server"
_WITH_VALUE = ("-X", "-W")
"""Options of Python itself whose value follows them."""
_MOST_DIGITS = 9


class Recognised(msgspec.Struct, frozen=True):
    """An engine by its command line. ``ports`` are those it was told, or its default; ``ranks`` its world size.

    ``is_told`` says that the port is no default, which its environment might change. ``model`` is the file, folder or
    name that it was started with; empty when its command line does not say.
    """

    engine: str
    role: str
    ports: tuple[Port, ...] = ()
    model: str = ""
    ranks: int | None = None
    is_told: bool = True


def may_be_engine(name: str) -> bool:
    """Whether a process of this kernel name (cut at 15 characters) is worth reading its command line."""
    return name.startswith(_NAMES)


def recognise(name: str, arguments: Sequence[str]) -> Recognised | None:
    """The engine that a process of this kernel name and command line is; None for anything else."""
    program = PurePath(arguments[0]).name if arguments and arguments[0] else name
    for known in (name, program):
        if known.startswith("llama-server"):
            return _llama_server(arguments)
        if known.startswith("ggml-rpc-server"):
            port = option(arguments, ("-p", "--port"))
            return Recognised("llamacpp", WORKER, _as_ports(port or "50052"), is_told=bool(port))
        if known == "p4-agent":
            return _p4_agent(arguments)
    module, rest = _executed(list(arguments))
    if module in _VLLM_MODULES or (module == "vllm" and rest[:1] == ["serve"]):
        return _vllm(rest[1:] if rest[:1] == ["serve"] else rest)
    if module == _SGLANG_MODULE or (module == "sglang" and rest[:1] == ["serve"]):
        return _sglang(rest[1:] if rest[:1] == ["serve"] else rest)
    # Parts that such an engine starts under names of their own; with their parent they are one engine.
    if name.startswith("VLLM::"):
        return Recognised("vllm", WORKER)
    if name.startswith("sglang::"):
        return Recognised("sglang", WORKER)
    return None


def option(arguments: Sequence[str], names: Sequence[str]) -> str:
    """The value of an option, written with a blank or ``=``; empty when it is not there. The last one counts."""
    found = ""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            found = value if equals else next(iter(arguments[index + 1 : index + 2]), "")
    return found


def _llama_server(arguments: Sequence[str]) -> Recognised:
    model = option(arguments, ("-m", "--model")) or option(arguments, ("-hf", "--hf-repo"))
    workers = [endpoint for endpoint in option(arguments, ("--rpc",)).split(",") if endpoint]
    port = option(arguments, ("--port",))
    return Recognised("llamacpp", LEADER, _as_ports(port or "8080"), model, 1 + len(workers), bool(port))


def _p4_agent(arguments: Sequence[str]) -> Recognised:
    said = arguments[1].rpartition(":")[2] if len(arguments) > 1 else ""
    return Recognised("p4", BROKER, _as_ports(said))


def _executed(words: list[str]) -> tuple[str, list[str]]:
    """The program, or of Python the module or script that it runs, and the arguments of that."""
    if not words or not PurePath(words[0]).name.startswith("python"):
        return (PurePath(words[0]).name if words else ""), words[1:]
    index = 1
    while index < len(words):
        word = words[index]
        if word == "-m":
            return next(iter(words[index + 1 :]), ""), words[index + 2 :]
        if word == "-c":
            break
        if not word.startswith("-"):
            return PurePath(word).name, words[index + 1 :]
        index += 2 if word in _WITH_VALUE else 1
    return "", []


def _vllm(rest: list[str]) -> Recognised:
    first = rest[0] if rest and not rest[0].startswith("-") else ""
    is_worker = "--headless" in rest or option(rest, ("--node-rank",)) not in ("", "0")
    port = option(rest, ("--port",))
    ports = () if is_worker else _as_ports(port or "8000")
    model = first or option(rest, ("--model",))
    role, ranks = WORKER if is_worker else LEADER, _count(option(rest, ("--nnodes",)))
    return Recognised("vllm", role, ports, model, ranks, bool(port))


def _sglang(rest: list[str]) -> Recognised:
    # Later ranks serve a dummy /health on their port, which proves nothing, so it is no endpoint of theirs.
    is_worker = option(rest, ("--node-rank",)) not in ("", "0")
    port = option(rest, ("--port",))
    model = option(rest, ("--model-path", "--model"))
    role, ranks = WORKER if is_worker else LEADER, _count(option(rest, ("--nnodes",)))
    return Recognised("sglang", role, _as_ports(port or "30000"), model, ranks, bool(port))


def _as_ports(text: str) -> tuple[Port, ...]:
    number = _number(text)
    return (Port(number),) if number is not None and 0 < number < 65_536 else ()


def _count(text: str) -> int | None:
    """A world size; an engine that was told none is alone, and one that was told nonsense is unknown."""
    if not text:
        return 1
    return _number(text) or None


def _number(text: str) -> int | None:
    """A number as an engine takes one; anybody may start a program with thousands of digits on its command line."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None
