"""A stand-in for an engine that is not installed here: a small process with its command line, port and answers.

It has the engine's own name and arguments, and answers the documented paths with the documented shapes; it computes
nothing.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

from tests.agent.run_world import until

_SERVE = """#!{python}
import http.server, json, os, signal, sys
answers, head, said = json.load(open({answers!r})), {head!r}, {said!r}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        open(said + ".asked", "a").write(self.path + "\\n")
        status, body = answers.get(self.path, [404, {{"detail": "Not Found"}}])
        body = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler)
child = os.fork() if head == "fork" else -1
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.socket.close()
    signal.pause()
if head == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(said + ".tmp", "w").write(str(child))
os.rename(said + ".tmp", said)
server.serve_forever()
"""

VLLM: dict[str, tuple[int, object]] = {
    "/health": (200, ""),
    "/version": (200, {"version": "0.32.0"}),
    "/v1/models": (
        200,
        {
            "object": "list",
            "data": [{"id": "big", "object": "model", "owned_by": "vllm", "root": "org/big", "max_model_len": 4096}],
        },
    ),
    "/metrics": (
        200,
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0",model_name="big"} 2.0\n'
        'vllm:num_requests_running{engine="1",model_name="big"} 1.0\n'
        'vllm:num_requests_waiting{engine="0",model_name="big"} 4.0\n'
        'vllm:generation_tokens_total{engine="0",model_name="big"} 70.0\n',
    ),
}
SGLANG: dict[str, tuple[int, object]] = {
    "/ready": (200, ""),
    "/model_info": (200, {"model_path": "org/big", "tokenizer_path": "org/big", "is_generation": True}),
    "/v1/models": (200, {"object": "list", "data": [{"id": "big", "owned_by": "sglang", "root": "org/big"}]}),
    "/metrics": (200, 'sglang:num_running_reqs{tp_rank="0"} 1.0\nsglang:num_queue_reqs{tp_rank="0"} 0.0\n'),
}
LLAMA: dict[str, tuple[int, object]] = {
    "/health": (200, {"status": "ok"}),
    "/v1/models": (200, {"object": "list", "data": [{"id": "tiny", "meta": {"n_params": 1000, "size": 2000}}]}),
    "/props": (200, {"total_slots": 2, "model_path": "/models/tiny.gguf", "build_info": "b1-7e4c0a9"}),
}
VLLM_LINE = ("vllm", "serve", "org/big", "--tensor-parallel-size", "2")
SGLANG_LINE = ("sglang.launch_server", "--model-path", "org/big", "--tp-size", "2")


def keyed(answers: dict[str, tuple[int, object]]) -> dict[str, tuple[int, object]]:
    """The same engine behind a key: 401 wherever it was asked."""
    return dict.fromkeys(answers, (401, {"error": "Unauthorized"}))


class StandInEngine:
    """A process with an engine's command line, to which ``--port`` is added, and answers.

    The first word of ``line`` is a program, or a module when it has a dot. ``head``: ``fork`` gives it a child that
    ignores TERM, ``deaf`` makes it ignore TERM itself.
    """

    def __init__(
        self, folder: Path, line: tuple[str, ...], answers: dict[str, tuple[int, object]], head: str = "alone"
    ) -> None:
        folder.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        said = folder / "said"
        python = os.path.realpath(sys.executable)
        (folder / "answers.json").write_text(json.dumps(answers))
        code = _SERVE.format(python=python, answers=str(folder / "answers.json"), head=head, said=str(said))
        name, *rest = line
        package, dot, module = name.partition(".")
        script = folder / package / f"{module}.py" if dot else folder / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(code)
        script.chmod(0o755)
        command = [python, "-m", name] if dot else [str(script)]
        self.pid = os.posix_spawn(
            command[0], [*command, *rest, "--port", str(self.port)], {"PYTHONPATH": str(folder)}, setsid=True
        )
        until(said.exists, "the stand-in listens")
        self._asked = Path(f"{said}.asked")
        self.child = int(said.read_text())
        """The process that it started, -1 for none."""

    def asked(self) -> list[str]:
        """The paths that were asked."""
        return self._asked.read_text().splitlines() if self._asked.exists() else []

    def kill(self) -> None:
        """End it as nothing should, and leave its child behind."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def close(self) -> None:
        """End it, and its child when it has one."""
        for pid in (self.pid, self.child):
            try:
                if pid > 0:
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            return
