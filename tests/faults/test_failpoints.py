"""The failpoints themselves: off they do nothing, armed they do what was said, and every name is a place."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backend import failpoints
from backend.failpoints import NAMES, InjectedFault, armed_points, failpoint

BACKEND = Path(failpoints.__file__).parent


def test_off_means_nothing_at_all() -> None:
    assert armed_points({"RINGTOP_FAILPOINTS": "journal.before_write=kill"}) == {}
    failpoint("journal.before_write")
    failpoint("no.such_point")


def test_every_name_is_one_place_in_the_product() -> None:
    called: list[str] = []
    for path in BACKEND.rglob("*.py"):
        if path != Path(failpoints.__file__):
            for call in re.findall(r"failpoint\(([^)]*)\)", path.read_text()):
                called += re.findall(r'"([a-z_.]+)"', call)
    assert sorted(called) == sorted(NAMES)


def test_the_nth_pass_raises_and_the_others_do_not(tmp_path: Path) -> None:
    hits = tmp_path / "hits"
    environ = {
        "RINGTOP_TEST": "1",
        "RINGTOP_FAILPOINTS": "link.before_send=raise:ENOSPC@2-3",
        "RINGTOP_FAILPOINT_HITS": str(hits),
    }
    point = armed_points(environ)["link.before_send"]
    point.hit()
    for _ in range(2):
        with pytest.raises(InjectedFault, match=r"No space left.*link\.before_send") as raised:
            point.hit()
        assert raised.value.errno == errno.ENOSPC
    point.hit()
    assert [line.split()[:3] for line in hits.read_text().splitlines()] == [
        ["link.before_send", "passed", "1"],
        ["link.before_send", "raise", "2"],
        ["link.before_send", "raise", "3"],
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "no.such_point=kill",
        "link.before_send=explode",
        "link.before_send",
        "link.before_send=delay",
        "link.before_send=delay:ENOSPC",
        "link.before_send=raise:NOSUCH",
    ],
)
def test_a_rule_that_would_never_act_is_refused(rule: str) -> None:
    with pytest.raises((ValueError, AttributeError)):
        armed_points({"RINGTOP_TEST": "1", "RINGTOP_FAILPOINTS": rule})


def test_kill_is_not_survived() -> None:
    program = "from backend.failpoints import failpoint; failpoint('link.before_send'); print('lived')"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        env={"RINGTOP_TEST": "1", "RINGTOP_FAILPOINTS": "link.before_send=kill"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (-9, "")


def test_every_point_of_a_recovery_has_its_row() -> None:
    rows = (Path(__file__).parent.parent / "e2e" / "test_p4_recovery.py").read_text()
    assert [name for name in NAMES if name.startswith("recovery.") and name not in rows] == []
