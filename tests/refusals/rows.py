"""What a row of the refusals is, and what every one of them must show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from backend.contract.findings import Finding
from backend.contract.plans import Plan
from backend.contract.reports import DeviceFacts
from backend.planning.fleet import FleetFacts
from tests.planning.worlds import GIB, a_fleet, a_host, an_engine


class WrongPlan(NamedTuple):
    """A load that must be refused: by which finding, and which words it must hold (both values among them)."""

    title: str
    id: str
    words: tuple[str, ...]
    make: Callable[[], Plan]


class RightPlan(NamedTuple):
    """A load that must not be refused; ``warns`` are the findings that a person is still told."""

    title: str
    make: Callable[[], Plan]
    warns: tuple[str, ...] = ()


def as_parameters(rows: Sequence[Any]) -> list[Any]:
    """One parameter set per row, named by its title; the proof's line says what the row must show.

    A row that is ``slow`` waits for a bound of ten seconds or more: it is one of the thorough ones.
    """
    marks = [[pytest.mark.refusals(_asserted(row))] for row in rows]
    for row, its in zip(rows, marks, strict=True):
        if getattr(row, "slow", False):
            its.append(pytest.mark.thorough)
    return [pytest.param(row, id=row.title, marks=its) for row, its in zip(rows, marks, strict=True)]


def _asserted(row: Any) -> str:
    id = getattr(row, "id", getattr(row, "code", ""))
    if isinstance(row, RightPlan):
        return "not refused" + (f", warned of {', '.join(row.warns)}" if row.warns else "")
    if isinstance(id, str) and id:
        return f"refused as {id}, with both values and what to do"
    return f"refused, saying {', '.join(row.words)}"


def assert_refuses(findings: Iterable[Finding], id: str, words: tuple[str, ...]) -> None:
    """Some finding of this id refuses, with both values, the words, and something to do."""
    found = list(findings)
    fired = [finding for finding in found if finding.id == id and finding.is_refusal]
    assert fired, f"{id} stayed silent; said was: {[finding.words for finding in found]}"
    said = " | ".join(finding.words for finding in fired)
    for word in words:
        assert word in said, f"{word!r} is not in: {said}"
    for finding in fired:
        assert finding.subject
        assert finding.expected
        assert finding.found
        assert finding.expected != finding.found
        assert len(finding.remedy) > 10, f"no remedy in: {finding.words}"
        assert finding.remedy.endswith(".")


def pair(name: str = "host-b", **changes: Any) -> FleetFacts:
    """host-a and host-b, one of them changed."""
    other = "host-a" if name == "host-b" else "host-b"
    return a_fleet(*sorted((a_host(name, **changes), a_host(other)), key=lambda report: report.host))


CARD = DeviceFacts(name="CUDA0", uuid="GPU-1", kind="cuda", total=24 * GIB, free=20 * GIB, words="RTX 4090")


def listed_device(**changes: Any) -> DeviceFacts:
    """A device that only the engine's list names."""
    fields = {"name": "Vulkan0", "uuid": "", "kind": "vulkan", "total": 8 * GIB, "free": 8 * GIB}
    return DeviceFacts(**{**fields, "words": "RTX 4090", "listed_by": "llamacpp", **changes})


def listing(*devices: DeviceFacts, **changes: Any) -> FleetFacts:
    """host-a and host-b with these devices beside their memory, and an engine that lists Vulkan0."""
    reports = []
    for name in ("host-a", "host-b"):
        report = a_host(name, engines=(an_engine("CPU", "Vulkan0"),), **changes)
        facts = msgspec.structs.replace(report.facts, devices=(*report.facts.devices, *devices))
        reports.append(msgspec.structs.replace(report, facts=facts))
    return a_fleet(*reports)


def both(**changes: Any) -> FleetFacts:
    """host-a and host-b, changed in the same way."""
    return a_fleet(a_host("host-a", **changes), a_host("host-b", **changes))


def many(count: int, **changes: Any) -> FleetFacts:
    """Hosts host-a, host-b, …"""
    return a_fleet(*(a_host(f"host-{'abcdefghij'[index]}", **changes) for index in range(count)))


def gpus(count: int, free: int = 20 * GIB) -> FleetFacts:
    """Both hosts with GPUs CUDA0, CUDA1, …"""
    return both(devices={"CPU": (20 * GIB, 0)} | {f"CUDA{index}": (free, 0) for index in range(count)})


def needy(**changes: Any) -> FleetFacts:
    """Both hosts with an engine whose CPU code needs AVX-VNNI, and processors that lack it."""
    return both(engines=(an_engine("CPU", "CUDA0", needs=("avx_vnni",)),), **changes)
