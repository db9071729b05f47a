"""The worst trouble of a host is said in full words on a screen without a panel of hosts."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.reports import Illness
from backend.contract.states import HostState
from backend.contract.words import HostId, UnixMs
from backend.control.views import HostView
from console.render.cells import line_text
from console.render.trouble import trouble_lines
from console.safe_text import width_of
from tests.console import worlds as w

FULL = Illness("disk low", "100 MiB free of 9000 MiB under /state (loads are refused under 512 MiB). Make room there",
               UnixMs(0), refuses_loads=True, subject="/state")  # fmt: skip
PORTS = Illness("ports ephemeral", "ports 40000-40010 lie in the kernel's range. " * 6, UnixMs(0))


def ill(name: str, *ills: Illness, **facts: Any) -> HostView:
    view = w.host(name)
    assert view.facts is not None
    return msgspec.structs.replace(view, facts=msgspec.structs.replace(view.facts, illnesses=ills, **facts))


def said(*hosts: HostView, width: int = 80) -> list[str]:
    lines = trouble_lines(w.fleet(hosts={HostId(each.host): each for each in hosts}), width, "…")
    return [line_text(each) for each in lines]


def test_healthy_hosts_take_no_line() -> None:
    assert said(w.host("gpu-a"), w.host("gpu-b"), w.host("gpu-c", HostState.CONNECTING)) == []


def test_what_keeps_a_host_from_its_work_is_said_whole_with_the_key_that_shows_it() -> None:
    lines = said(w.host("gpu-a"), ill("gpu-b", FULL))
    assert lines[0].startswith(" gpu-b  disk low: 100 MiB free")
    assert "Make room there" in lines[1]
    assert lines[1].endswith("h hosts")


def test_the_worst_comes_first_and_the_others_are_counted() -> None:
    silent = w.host("gpu-a", HostState.UNREACHABLE, words="ssh: connection timed out; next try 12:04:34", facts=None)
    lines = said(silent, ill("gpu-b", FULL), ill("gpu-c", PORTS))
    assert lines[0].startswith(" gpu-b ")
    assert lines[-1].endswith("and 2 more, h hosts")
    assert said(silent)[0].startswith(" gpu-a  unreachable: ssh: connection timed out")


def test_what_only_warns_takes_one_line_and_no_line_is_too_wide() -> None:
    for width in (60, 80, 120, 200):
        mild, loud = said(ill("gpu-c", PORTS), width=width), said(ill("gpu-c", FULL), width=width)
        assert len(mild) == 1
        assert "…" in mild[0]
        assert len(loud) <= 2
        assert max(map(width_of, [*mild, *loud])) <= width


def test_a_refusal_without_an_illness_is_said_and_one_with_it_only_once() -> None:
    assert (
        "refuses loads: the journal cannot be written"
        in said(ill("gpu-a", refuses_loads="the journal cannot be written"))[0]
    )
    assert len(said(ill("gpu-a", FULL, refuses_loads=FULL.words))) == 2
    assert not said(ill("gpu-a", FULL, refuses_loads=FULL.words))[1].count("more")


def test_what_runs_and_does_not_answer_is_said_whole_and_before_what_only_lasts() -> None:
    words = "tiny-1/0 runs and does not answer: no completion within 10 s. Nothing stops it by itself"
    lines = said(ill("gpu-a", PORTS), ill("gpu-b", Illness("unresponsive", words, UnixMs(0))))
    assert lines[0].startswith(" gpu-b  unresponsive: tiny-1/0 runs")
    assert "by itself" in lines[1]
    assert "and 1 more" in lines[1]
