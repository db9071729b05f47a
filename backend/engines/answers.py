"""What a port says of the engine behind it, by the shape of its answers, without making it work.

Only endpoints that cost an engine nothing are asked. SGLang's ``/health`` runs a request, so it never is; nor is a
llama.cpp worker greeted: one that serves a leader may end of that. A 401 proves nothing about who answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from backend.engines.llamacpp.exchange import Answer, exchange
from backend.engines.recognise import LEADER

READY, LOADING, CLOSED, SILENT, OTHER = "ready", "loading", "closed", "silent", "other"
_WANTS_KEY = (401, 403)
MOST_NAMES = 32
LONGEST_TEXT = 512
"""What of an answer is passed on: anybody's process may give it, and a report has to stay one frame."""


class Told(msgspec.Struct, frozen=True):
    """What was heard: one of the words above, the names it serves, the model's file or name, and its release."""

    answers: str = ""
    served: tuple[str, ...] = ()
    model: str = ""
    release: str = ""
    words: str = ""


async def ask_engine(engine: str, role: str, address: str, port: int, seconds: float) -> Told:
    """Ask the port of an engine that was recognised by its command line; for at most ``seconds``."""
    paths = _PATHS.get(engine, ()) if role == LEADER else ()
    if not paths:
        return Told(words="not asked: only a leader tells what it serves, and a greeting can end a busy worker")
    try:
        async with asyncio.timeout(seconds):
            heard = {path: await exchange(address, port, path) for path in paths}
    except TimeoutError:
        return Told(SILENT, words=f"port {port} did not answer for {seconds:g} s")
    except (OSError, ValueError) as error:
        return Told(SILENT, words=f"port {port}: {type(error).__name__} {error}".strip())
    return judge(engine, heard)


def judge(engine: str, heard: Mapping[str, Answer]) -> Told:
    """What these answers, by path, say of an engine that should be this one."""
    read = {"llamacpp": _llamacpp, "vllm": _vllm, "sglang": _sglang}[engine]
    told = read({path: (answer.status, answer.tree) for path, answer in heard.items()})
    if told is not None:
        return told
    if any(answer.status in _WANTS_KEY for answer in heard.values()):
        return Told(CLOSED, words="it wants a key, which proves nothing; what it serves is from its command line")
    said = ", ".join(f"{path} {answer.status}" for path, answer in heard.items())
    return Told(OTHER, words=f"its answers are not those of {engine}: {said}")


_PATHS: dict[str, tuple[str, ...]] = {
    "llamacpp": ("/health", "/v1/models", "/props"),
    "vllm": ("/health", "/version", "/v1/models"),
    "sglang": ("/ready", "/model_info", "/v1/models"),
}
_Heard = Mapping[str, tuple[int, Any]]


def _llamacpp(heard: _Heard) -> Told | None:
    status, body = heard["/health"]
    if status == 503 and isinstance(body, dict) and _dict(body.get("error")).get("type") == "unavailable_error":
        return Told(LOADING, words="its /health says that it loads")
    listed = _listed(heard["/v1/models"])
    if status != 200 or not any("n_params" in _dict(model.get("meta")) for model in listed):
        return None
    props = _dict(heard["/props"][1])
    build = _text(props.get("build_info")).removeprefix("b")  # as --version says it: 1-7e4c0a9
    return Told(READY, _ids(listed), _text(props.get("model_path")), build)


def _vllm(heard: _Heard) -> Told | None:
    listed = [model for model in _listed(heard["/v1/models"]) if model.get("owned_by") == "vllm"]
    release = _text(_dict(heard["/version"][1]).get("version"))
    if heard["/health"][0] == 503 and release:
        return Told(SILENT, words="its /health says that its engine is dead", release=release)
    if heard["/health"][0] != 200 or not listed:
        return None
    return Told(READY, _ids(listed), _text(listed[0].get("root")), release)


def _sglang(heard: _Heard) -> Told | None:
    model = _text(_dict(heard["/model_info"][1]).get("model_path"))
    listed = [each for each in _listed(heard["/v1/models"]) if each.get("owned_by") == "sglang"]
    if not model or (not listed and heard["/v1/models"][0] == 200):
        return None
    if heard["/ready"][0] == 503:
        return Told(LOADING, _ids(listed), model, words="its /ready says 503")
    return Told(READY, _ids(listed), model)


def _listed(heard: tuple[int, Any]) -> list[dict[str, Any]]:
    """The models of an OpenAI list; empty for anything else."""
    status, body = heard
    data = _dict(body).get("data")
    return [each for each in data if isinstance(each, dict)] if status == 200 and isinstance(data, list) else []


def _ids(listed: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(_text(each["id"]) for each in listed if isinstance(each.get("id"), str))[:MOST_NAMES]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""
