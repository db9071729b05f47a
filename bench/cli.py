"""How quickly one-shot commands answer, beside the imports that they cannot go under.

``python -m bench.cli --json`` prints one object. P16 ``ringtop --version`` beside ``import click`` (and ``kubectl``
where it is installed), P17 ``ringtop ls replicas --json`` with one local agent beside ``import click, msgspec,
websockets.sync.client``, and beside ``import textual.app``, which it must stay under.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from bench.fleet import Fleet, median, ratio

WARM_UP = 2


def python(code: str) -> list[str]:
    """Python's own start and these imports."""
    return [sys.executable, "-I", "-c", code]


def milliseconds(argv: Sequence[str], env: dict[str, str]) -> float:
    """Wall time of one run. Raises CalledProcessError when it fails."""
    began = time.perf_counter()
    subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1000


def ringtop(*arguments: str) -> list[str]:
    """The entry point as the installed script runs it."""
    return python(f"import sys; from console.cli import main; sys.argv = {['ringtop', *arguments]!r}; sys.exit(main())")


def measure(rounds: int) -> dict[str, Any]:
    """Every candidate once in each round."""
    kubectl = shutil.which("kubectl")
    candidates = {
        "pass": python("pass"),
        "import click": python("import click"),
        "import click, msgspec, websockets.sync.client": python("import click, msgspec, websockets.sync.client"),
        "import textual.app": python("import textual.app"),
        "ringtop --version": ringtop("--version"),
        "ringtop ls replicas --json": ringtop("ls", "replicas", "--json"),
    }
    if kubectl:
        candidates["kubectl version --client"] = [kubectl, "version", "--client"]
    spent: dict[str, list[float]] = {name: [] for name in candidates}
    with Fleet(["host-a"]) as fleet:
        env = {**os.environ, "RINGTOP_HOME": str(fleet.home)}
        for number in range(rounds + WARM_UP):
            for name, argv in candidates.items():
                took = milliseconds(argv, env)
                if number >= WARM_UP:
                    spent[name].append(took)
    version, ls = spent["ringtop --version"], spent["ringtop ls replicas --json"]
    figures: dict[str, Any] = {
        "rounds": rounds,
        "ms": {name: median(values, 1) for name, values in spent.items()},
        "P16_version": {"ratio_to_import_click": ratio(version, spent["import click"]), "goal": 1.2},
        "P17_ls": {
            "ratio_to_imports": ratio(ls, spent["import click, msgspec, websockets.sync.client"]),
            "goal": 1.25,
            "ratio_to_textual": ratio(ls, spent["import textual.app"]),
            "goal_to_textual": 0.7,
        },
    }
    if kubectl:
        figures["P16_version"] |= {"ratio_to_kubectl": ratio(version, spent["kubectl version --client"])}
    return figures


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.option("--rounds", default=15, type=click.IntRange(1, 100), help="counted rounds, after two that are not")
def main(as_json: bool, rounds: int) -> None:
    """Time one-shot commands beside their floors."""
    figures = measure(rounds)
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:14} {value}")


if __name__ == "__main__":
    main()
