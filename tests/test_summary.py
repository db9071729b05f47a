"""The summary of a proof: a line per row, a count at the end, and an exit code that follows the rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = '''
import pytest

@pytest.mark.faults("the first title")
def test_e01_holds(): pass

@pytest.mark.faults("the second title")
def test_e02_does_not():
    {second}

@pytest.mark.faults
def test_e03_has_no_title():
    """What its docstring says."""

@pytest.mark.faults("needs a machine of its own")
def test_e04_cannot_be_tried(): pytest.skip("no such machine")

def test_that_is_no_row(): assert False
'''


def prove(folder: Path, marker: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run one marker over a folder of tests, with the plugin, as the Makefile does."""
    command = [sys.executable, "-m", "pytest", "-qq", "-m", marker, "-p", "tests.summary", *options]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "--noconftest", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_every_row_is_a_line_and_one_that_fell_short_is_an_exit_code(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_rows.py").write_text(ROWS.format(second="assert 1 == 2, 'one is not two'"))
    done = prove(tmp_path, "faults", *options)
    lines = done.stdout.splitlines()
    assert "held        e01_holds: the first title" in lines
    assert "fell short  e02_does_not: the second title" in lines
    assert any("one is not two" in line for line in lines)
    assert "held        e03_has_no_title: What its docstring says." in lines
    assert any(line.startswith("not tried   e04_cannot_be_tried") and "no such machine" in line for line in lines)
    assert lines[-1] == "2 held, 1 fell short"
    assert "1 could not be tried on this machine" in lines
    assert done.returncode == 1


def test_all_held_is_exit_code_nought(tmp_path: Path) -> None:
    (tmp_path / "test_rows.py").write_text(ROWS.format(second="pass"))
    done = prove(tmp_path, "faults")
    assert done.stdout.splitlines()[-1] == "3 held, 0 fell short"
    assert done.returncode == 0


def test_a_file_that_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_rows.py").write_text("import no_such_module\n")
    done = prove(tmp_path, "faults")
    assert done.stdout.splitlines()[-1] == "0 held, 1 fell short"
    assert done.returncode != 0


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_a_proof_without_rows_says_so_and_is_no_failure(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_rows.py").write_text("def test_that_is_no_row(): assert False\n")
    done = prove(tmp_path, "adoption", *options)
    assert done.stdout.splitlines()[-1] == "no test carries the marker adoption yet: nothing was tried"
    assert done.returncode == 0
