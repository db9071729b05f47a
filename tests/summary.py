"""A pytest plugin that reads a run as a proof: one line per row, and how many held.

``python -m pytest -m faults -p tests.summary`` runs the tests that carry a marker and closes with
``N held, M fell short``; the exit code is 1 when M is not 0, and 0 when no test carries the marker yet. A row's title
is the marker's first argument, else the test's name read as a sentence. A row that cannot be tried on this machine
is a skip; it is listed with its reason and counts for neither side.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

ROW = "proof row"


class Row:
    """One row as it stands: nothing said against it yet, or the first thing that was."""

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title
        self.against = ""
        self.skipped = ""

    @property
    def line(self) -> str:
        """The row for people."""
        if self.against:
            return f"fell short  {self.name}: {self.title}\n            {self.against}"
        if self.skipped:
            return f"not tried   {self.name}: {self.title} ({self.skipped})"
        return f"held        {self.name}: {self.title}"


class Proof:
    """Collects what the reports of a run say of each row."""

    def __init__(self, marker: str) -> None:
        self.marker = marker
        self.rows: dict[str, Row] = {}
        self.broken: list[str] = []

    @pytest.hookimpl
    def pytest_collection_modifyitems(self, items: Iterable[pytest.Item]) -> None:
        """Send each row's title along with its reports, from a worker process too."""
        for item in items:
            marker = item.get_closest_marker(self.marker)
            if marker is not None:
                title = str(marker.args[0]) if marker.args else title_of(item)
                item.user_properties.append((ROW, title))

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one phase of one test."""
        title = next((str(value) for name, value in report.user_properties if name == ROW), None)
        if title is None:
            return
        row = self.rows.setdefault(report.nodeid, Row(row_name(report.nodeid), title))
        if report.failed:
            row.against = row.against or f"{report.when}: {first_line(report)}"
        elif report.skipped:
            row.skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else first_line(report)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read proves nothing."""
        if report.failed:
            self.broken.append(f"{report.nodeid} cannot be collected: {first_line(report)}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Rows decide the exit code; that there is none yet is no failure."""
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Say it, after everything else."""
        if not self.rows and not self.broken:
            print(f"\nno test carries the marker {self.marker} yet: nothing was tried")
            return
        print()
        for row in sorted(self.rows.values(), key=lambda row: row.name):
            print(row.line)
        for words in self.broken:
            print(f"fell short  {words}")
        short = sum(1 for row in self.rows.values() if row.against) + len(self.broken)
        skipped = sum(1 for row in self.rows.values() if row.skipped and not row.against)
        if skipped:
            print(f"{skipped} could not be tried on this machine")
        print(f"{len(self.rows) - short - skipped + len(self.broken)} held, {short} fell short")


def pytest_configure(config: pytest.Config) -> None:
    """Begin: only the process that prints keeps rows, every process sends titles."""
    proof = Proof(config.option.markexpr or "faults")
    if hasattr(config, "workerinput"):
        proof.pytest_unconfigure = _silent  # type: ignore[method-assign]  # a worker has no terminal
    config.pluginmanager.register(proof, "proof")


def _silent() -> None:
    """Workers say nothing."""


def title_of(item: pytest.Item) -> str:
    """What a row without a title asserts: the first line of its docstring, else its name."""
    words = (getattr(getattr(item, "function", None), "__doc__", None) or "").strip().splitlines()
    return words[0] if words else sentence(item.name)


def sentence(name: str) -> str:
    """A test's name as words: ``test_e07_engine_oom_killed[x]`` reads ``e07 engine oom killed [x]``."""
    base, bracket, parameters = name.removeprefix("test_").partition("[")
    return base.replace("_", " ") + (f" [{parameters}" if bracket else "")


def row_name(nodeid: str) -> str:
    """The part of a node id that names the row."""
    return nodeid.rpartition("::")[2].removeprefix("test_")


def first_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    words = crash.message if crash is not None else str(report.longrepr)
    lines = [line for line in words.splitlines() if line.strip()] or ["no reason given"]
    return lines[0][:200] if crash is not None else lines[-1][:200]
