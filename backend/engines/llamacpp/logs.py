"""What llama-server writes while it starts, as typed values. Pure; written against b10434 at ``-lv 4``.

Every worker shows as ``RPC0[...]``, because the number counts the devices of that one server. So buffers are keyed
by endpoint (``host:port``) for a worker, and by the device's name (``CPU_Mapped``, ``CUDA0``, ``Host``) for the leader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from backend.engines.driver import ListedDevice

MIB = 1_048_576

_STAMP = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} (?P<level>[A-Z]) ")
_BREAKDOWN = re.compile(
    r"common_memory_breakdown_print: \|\s+- (?P<name>[^|(]+?)(?: \((?P<detail>.*?)\))?\s*\|"
    r"(?:\s*(?P<total>-?\d+) =\s*(?P<free>-?\d+) \+ \()?"
    r"\s*(?P<self>\d+) =\s*(?P<model>\d+) \+\s*(?P<context>\d+) \+\s*(?P<compute>\d+)"
)
_LEFT = re.compile(
    r"common_params_fit_impl:\s+- (?P<name>\S+)(?: \((?P<detail>.*)\))?: .*?(?P<left>-?\d+) free vs\. target"
)
_FIT = re.compile(r"common_fit_params: (?P<words>(?P<fits>successfully fit|failed to fit) params.*)")
_BUFFER = re.compile(
    r"(?P<place>[^\s\[]+)(?:\[(?P<endpoint>[^\]]+)\])? (?P<kind>model|KV|compute) buffer size ="
    r"\s+(?P<mib>\d+\.\d\d) MiB"
)
_OFFLOADED = re.compile(r"load_tensors: offloaded (?P<done>\d+)/(?P<total>\d+) layers to GPU")
_LISTENING = re.compile(r"listening on (?P<url>https?://\S+)")
_ENDPOINT = re.compile(r"^\S+:\d+$")
_VERSION = re.compile(r"version: .*?\(build (?P<build>\d+), commit (?P<commit>[0-9a-f]+)\)")
_OLDER_VERSION = re.compile(r"version: (?P<build>\d+) \((?P<commit>[0-9a-f]+)\)")
_DEVICES = "Available devices:"
_DEVICE = re.compile(
    r"^\s+(?P<name>[A-Za-z][A-Za-z0-9_]*): (?P<words>.*?)(?:\s*\((?P<total>\d+) MiB, (?P<free>\d+) MiB free\))?\s*$"
)


class DevicePlan(msgspec.Struct, frozen=True):
    """What the engine expects to take at one place, before any weight, in whole MiB (rounded down)."""

    key: str
    total: int | None
    taken: int
    model: int
    context: int
    compute: int


class LeftFree(msgspec.Struct, frozen=True):
    """What the engine expects to stay free at one place, in MiB; negative when it does not fit."""

    key: str
    mib: int


class FitVerdict(msgspec.Struct, frozen=True):
    """The engine's own word on its plan. "abort" in it ends the fitting, not the start."""

    fits: bool
    words: str


class PortBinding(msgspec.Struct, frozen=True):
    """The HTTP port is about to be bound; every worker has answered by now."""


class TensorsBegan(msgspec.Struct, frozen=True):
    """Weights are read from here. Buffer lines before the last of these belong to an earlier pass."""


class Offloaded(msgspec.Struct, frozen=True):
    """How many of the layers (the output counts as one) left the leader's CPU."""

    done: int
    total: int


class BufferSize(msgspec.Struct, frozen=True):
    """One allocation: its key, what it is for (``model``, ``KV``, ``compute``), and hundredths of a MiB as printed."""

    key: str
    kind: str
    hundredths: int


class ModelLoaded(msgspec.Struct, frozen=True):
    """The model is loaded and warmed up; ``/health`` answers 200 from here."""


class Listening(msgspec.Struct, frozen=True):
    """The address at which requests are taken."""

    url: str


class Complaint(msgspec.Struct, frozen=True):
    """A line of level E, without its stamp."""

    words: str


LogEvent = (
    DevicePlan
    | LeftFree
    | FitVerdict
    | PortBinding
    | TensorsBegan
    | Offloaded
    | BufferSize
    | ModelLoaded
    | Listening
    | Complaint
)


def _place(name: str, detail: str | None) -> str:
    """The key of a place in the memory plan: the endpoint for a worker, else the device's name."""
    return detail if detail is not None and name.startswith("RPC") and _ENDPOINT.match(detail) else name


def parse_line(line: str) -> LogEvent | None:
    """The event that one line tells, or None for a line that tells nothing needed here."""
    if "buffer size =" in line and (match := _BUFFER.search(line)):
        whole, _, part = match["mib"].partition(".")
        return BufferSize(match["endpoint"] or match["place"], match["kind"], int(whole) * 100 + int(part))
    if "common_memory_breakdown_print" in line and (match := _BREAKDOWN.search(line)):
        total = int(match["total"]) if match["total"] else None
        numbers = [int(match[name]) for name in ("self", "model", "context", "compute")]
        return DevicePlan(_place(match["name"], match["detail"]), total, *numbers)
    if "common_params_fit_impl" in line and (match := _LEFT.search(line)):
        return LeftFree(_place(match["name"], match["detail"]), int(match["left"]))
    if match := _FIT.search(line):
        return FitVerdict(match["fits"].startswith("successfully"), match["words"])
    return _parse_milestone(line)


def _parse_milestone(line: str) -> LogEvent | None:
    """The events that carry little or nothing: steps of the start and errors."""
    if "start: binding port" in line:
        return PortBinding()
    if "load_tensors: loading model tensors" in line:
        return TensorsBegan()
    if match := _OFFLOADED.search(line):
        return Offloaded(int(match["done"]), int(match["total"]))
    if "llama_server: model loaded" in line:
        return ModelLoaded()
    if match := _LISTENING.search(line):
        return Listening(match["url"])
    stamp = _STAMP.match(line)
    if stamp and stamp["level"] == "E":
        return Complaint(line[stamp.end() :].strip())
    if line.startswith(("Failed to connect", "RPC server version mismatch")):
        return Complaint(line.strip())
    return None


class LoadPicture(msgspec.Struct, frozen=True):
    """Everything that a leader's log has said of its start so far; ``after`` folds one more event.

    ``buffers`` holds the last pass only, ``plans`` and ``left`` the plan before the weights.
    """

    plans: dict[str, DevicePlan] = {}
    left: dict[str, int] = {}
    verdict: FitVerdict | None = None
    is_bound: bool = False
    is_reading: bool = False
    offloaded: Offloaded | None = None
    buffers: tuple[BufferSize, ...] = ()
    is_loaded: bool = False
    url: str = ""
    complaints: tuple[str, ...] = ()

    def after(self, event: LogEvent) -> LoadPicture:
        """The picture with one more event."""
        change = msgspec.structs.replace
        match event:
            case DevicePlan():
                # The engine prints the same table once more when it ends; the plan is the one before the weights.
                return self if self.is_reading else change(self, plans={**self.plans, event.key: event})
            case LeftFree():
                return change(self, left={**self.left, event.key: event.mib})
            case FitVerdict():
                return change(self, verdict=event)
            case PortBinding():
                return change(self, is_bound=True)
            case TensorsBegan():
                return change(self, is_reading=True, buffers=(), offloaded=None)
            case Offloaded():
                return change(self, offloaded=event)
            case BufferSize():
                return change(self, buffers=(*self.buffers, event))
            case ModelLoaded():
                return change(self, is_loaded=True)
            case Listening():
                return change(self, url=event.url)
            case Complaint():
                return change(self, complaints=(*self.complaints, event.words)[-20:])

    def sizes(self, kind: str) -> dict[str, tuple[int, ...]]:
        """The sizes of one kind of buffer by key, in hundredths of a MiB as printed; zero ones left out."""
        found: dict[str, tuple[int, ...]] = {}
        for buffer in self.buffers:
            if buffer.kind == kind and buffer.hundredths:
                found[buffer.key] = (*found.get(buffer.key, ()), buffer.hundredths)
        return found


def read_picture(lines: Iterable[str], picture: LoadPicture | None = None) -> LoadPicture:
    """Fold lines into a picture of the start."""
    seen = picture or LoadPicture()
    for line in lines:
        event = parse_line(line)
        if event is not None:
            seen = seen.after(event)
    return seen


def parse_release(text: str) -> str | None:
    """The release in the output of ``llama-server --version`` as ``build-commit``, or None when it names none."""
    match = _VERSION.search(text) or _OLDER_VERSION.search(text)
    return f"{match['build']}-{match['commit']}" if match else None


def parse_devices(text: str) -> tuple[ListedDevice, ...]:
    """The devices in the output of ``--list-devices``. CPU is never among them.

    A backend that cannot tell its memory prints 0 MiB, or nothing: that is unknown. What backends print before the
    heading is no list.
    """
    _, heading, listed = text.rpartition(_DEVICES)
    found = filter(None, map(_DEVICE.match, listed.splitlines()))
    return tuple(_listed(match) for match in found if heading or match["total"])


def _listed(match: re.Match[str]) -> ListedDevice:
    total = int(match["total"] or 0) * MIB
    return ListedDevice(match["name"], match["words"], *((total, int(match["free"]) * MIB) if total else (None, None)))
