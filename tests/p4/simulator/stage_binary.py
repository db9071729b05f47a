"""A simulated stage server: ``<binary> [args…] --port N --bind IP``, its plan on standard input.

It maps nothing, and its words go to standard error. ``--inspect-memory-plan``, among its arguments or in its plan,
prints ``MEMORY_PLAN {json}`` and exits 0, or 7 when it would not fit; otherwise it answers HELLO with READY, echoes
BindLoad, and ends with its standard input, as its agent holds that.
Exit codes: 2 usage, 3 plan, 4 listen, 5 load, 7 memory plan.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.p4.simulator.load import LoadFailed, plan_options, stage_says
from tests.p4.simulator.stage_frames import (
    BIND_LOAD,
    ERROR,
    HEAD_BYTES,
    HELLO,
    UNLOAD,
    BadFrame,
    frame,
    read_head,
    ready_body,
)
from tests.p4.simulator.switches import Switches, read_switches

MOST_PLAN_BYTES = 16 << 20
USAGE, PLAN, LISTEN, LOAD, MEMORY = 2, 3, 4, 5, 7


def main() -> int:
    """Run one stage server; the exit code says how it ended."""
    parser = argparse.ArgumentParser(prog="p4_staged_server", description=__doc__)
    parser.add_argument("--facts", type=Path, help="a JSON object of switches")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bind", default="127.0.0.1")
    parser.add_argument("--inspect-memory-plan", action="store_true")
    parser.add_argument("--validate-plan", action="store_true")
    arguments = parser.parse_args()
    switches = read_switches(arguments.facts)
    if arguments.inspect_memory_plan and "inspect-memory-plan" in switches.stage_lacks:
        print("unknown option: --inspect-memory-plan", file=sys.stderr)
        return USAGE
    try:
        options = _read_plan()
    except ValueError as error:
        print(f"plan refused: {error}", file=sys.stderr)
        return PLAN
    inspects = arguments.inspect_memory_plan or "inspect" in options
    if inspects and "inspect-memory-plan" in switches.stage_lacks:
        print("plan refused: unknown option --inspect-memory-plan", file=sys.stderr)
        return PLAN
    print("PLAN_APPLIED", file=sys.stderr, flush=True)
    if arguments.validate_plan:
        return 0
    plan = memory_plan(options, switches)
    print(f"MEMORY_PLAN {json.dumps(plan)}", file=sys.stderr, flush=True)
    if inspects:
        return 0 if plan["fits_current_free"] else MEMORY
    if plan["complete"] and not plan["fits_current_free"]:
        return MEMORY
    return _serve(arguments.bind, arguments.port, options, switches)


def _read_plan() -> dict[str, str]:
    """The plan text: u32 LE length, then UTF-8. Standard input stays open behind it. Raises ValueError."""
    head = _exactly(4)
    length = struct.unpack("<I", head)[0]
    if length > MOST_PLAN_BYTES:
        raise ValueError(f"{length} bytes are more than {MOST_PLAN_BYTES}")
    return plan_options(_exactly(length).decode())


def _exactly(count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = os.read(0, count - len(found))
        if not more:
            raise ValueError("standard input ended inside the plan")
        found += more
    return found


def memory_plan(options: dict[str, str], switches: Switches) -> dict[str, Any]:
    """What the no-allocation plan of a window says: shape, bound, and what each device would take and has free."""
    begin, end = int(options.get("begin", 0)), int(options.get("end", switches.n_layer))
    device = options.get("device", switches.devices[0] if switches.devices else "CPU")
    is_known = device in ("CPU", *switches.devices)
    try:
        said = stage_says(options, {}, switches)
    except LoadFailed:
        said = stage_says(options | {"device": "CPU", "expected": ""}, {}, switches)
    model = (end - begin) * switches.layer_bytes
    context = said["n_ctx"] * (end - begin) * switches.kv_bytes
    entry = {
        "scope": "host" if device == "CPU" else "device",
        "index": 0,
        "name": device,
        "description": f"simulated {device}",
        "free": switches.device_bytes,
        "total": switches.device_bytes,
        "model": model,
        "context": context,
        "compute": 0,
        "required": model + context,
    }
    topology, _, indexes = options.get("topology", "discrete").partition(":")
    return {
        "schema": 2,
        "memory_topology": {
            "mode": topology,
            "host_shared_devices": [int(each) for each in indexes.split(",") if each],
        },
        "execution_shape": {
            "n_ctx": said["n_ctx"],
            "n_ctx_seq": said["n_ctx"] // said["n_seq_max"],
            "n_batch": said["n_batch"],
            "n_ubatch": said["n_ubatch"],
            "n_seq_max": said["n_seq_max"],
            "kv_unified": False,
        },
        "complete": is_known,
        "fits_current_free": is_known and entry["required"] <= entry["free"],
        "layer_device_query_supported": True,
        "layer_device_expectations_checked": "expected" in options,
        "layer_default_devices": [{"layer": layer, "device": device} for layer in range(begin, end)]
        if is_known
        else [],
        "entries": [entry] if is_known else [],
        "physical_result_payload_bytes": said["physical_result_payload_bytes"],
        "physical_result_tensor_count": said["physical_result_tensor_count"],
        "max_physical_result_bytes": said["max_physical_result_bytes"],
    }


def _serve(bind: str, port: int, options: dict[str, str], switches: Switches) -> int:
    """Load, listen, and answer one client at a time until standard input ends. A wrong device is met after the load."""
    time.sleep(switches.load_seconds)
    try:
        said = stage_says(options, {}, switches)
    except LoadFailed:
        print(f"error: no device named {options.get('device')}; there are {switches.inventory}", file=sys.stderr)
        return LOAD
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind, port))
    except OSError as error:
        print(f"cannot listen on {bind}:{port}: {error}", file=sys.stderr)
        return LISTEN
    listener.listen(1)
    if os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE":
        for _ in range(switches.spin_threads):
            threading.Thread(target=_spin, daemon=True).start()
    print(f"READY port={listener.getsockname()[1]}", file=sys.stderr, flush=True)
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(listener, selectors.EVENT_READ)
        client: socket.socket | None = None
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    if not os.read(0, 4096):
                        return 0
                elif key.fileobj is listener and client is None:
                    client, _ = listener.accept()
                    selector.register(client, selectors.EVENT_READ)
                elif client is not None and key.fileobj is client and not _answer(client, said, switches):
                    selector.unregister(client)
                    client.close()
                    client = None


def _spin() -> None:
    """Wait actively, as the threads of an engine's pool do."""
    while True:
        pass


def _answer(client: socket.socket, said: dict[str, Any], switches: Switches) -> bool:
    """Answer one frame; False when the client has gone or says what is no frame."""
    head = client.recv(HEAD_BYTES, socket.MSG_WAITALL)
    if len(head) < HEAD_BYTES:
        return False
    try:
        operation, length = read_head(head)
    except BadFrame:
        return False
    body = client.recv(length, socket.MSG_WAITALL) if length else b""
    match operation:
        case o if o == HELLO:
            client.sendall(frame(HELLO, ready_body(said, switches.stage_lacks)))
        case o if o in (BIND_LOAD, UNLOAD):
            client.sendall(frame(operation, body))
        case _:
            client.sendall(frame(ERROR, b"unsupported operation"))
    return True


if __name__ == "__main__":
    sys.exit(main())
