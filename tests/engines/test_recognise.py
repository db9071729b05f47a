"""Which engine a command line is, and what it says of model, port and world size."""

from __future__ import annotations

import pytest

from backend.engines.recognise import BROKER, LEADER, WORKER, Recognised, may_be_engine, recognise

LINES: list[tuple[str, str, Recognised]] = [
    (
        "llama-server",
        "/opt/llama-server -m tiny.gguf --port 18007 --rpc a:1,b:2 --device RPC0,RPC1",
        Recognised("llamacpp", LEADER, (18_007,), "tiny.gguf", 3),  # type: ignore[arg-type]
    ),
    ("llama-server", "llama-server --model=x.gguf", Recognised("llamacpp", LEADER, (8080,), "x.gguf", 1, False)),  # type: ignore[arg-type]
    ("llama-server", "llama-server -hf org/big", Recognised("llamacpp", LEADER, (8080,), "org/big", 1, False)),  # type: ignore[arg-type]
    ("ggml-rpc-server", "ggml-rpc-server -H 0.0.0.0 -p 5", Recognised("llamacpp", WORKER, (5,))),  # type: ignore[arg-type]
    (
        "vllm",
        "/usr/bin/python3 /venv/bin/vllm serve org/big --nnodes 2 --node-rank 0 --port 8001",
        Recognised("vllm", LEADER, (8001,), "org/big", 2),  # type: ignore[arg-type]
    ),
    (
        "pt_main_thread",
        "python -m vllm.entrypoints.openai.api_server --model org/big",
        Recognised("vllm", LEADER, (8000,), "org/big", 1, False),  # type: ignore[arg-type]
    ),
    (
        "vllm",
        "vllm serve org/big --nnodes 2 --node-rank 1 --master-addr a --headless",
        Recognised("vllm", WORKER, (), "org/big", 2, False),
    ),
    ("VLLM::EngineCor", "VLLM::EngineCore", Recognised("vllm", WORKER)),
    (
        "python3",
        "python3 -m sglang.launch_server --model-path org/big --nnodes 2 --node-rank 0 --port 30001",
        Recognised("sglang", LEADER, (30_001,), "org/big", 2),  # type: ignore[arg-type]
    ),
    (
        "python3",
        "python3 -m sglang.launch_server --model-path org/big --nnodes 2 --node-rank 1",
        Recognised("sglang", WORKER, (30_000,), "org/big", 2, False),  # type: ignore[arg-type]
    ),
    ("p4-agent", "p4-agent 127.0.0.1:9000 tcp://10.0.0.5:9000", Recognised("p4", BROKER, (9000,))),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("name", "line", "expected"), LINES, ids=lambda value: str(value)[:40])
def test_an_engine_is_known_by_its_command_line(name: str, line: str, expected: Recognised) -> None:
    assert may_be_engine(name)
    assert recognise(name, line.split()) == expected


@pytest.mark.parametrize(
    "line",
    [
        "python3 -m http.server 8000",
        "python3 train.py --about vllm serve",
        "python3 -m pytest tests/vllm serve",
        "vim vllm.py",
        "",
    ],
)
def test_what_only_speaks_of_an_engine_is_none(line: str) -> None:
    assert recognise("python3", line.split()) is None


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, "-1", "0"])
def test_a_number_that_cannot_be_meant_is_unknown_whoever_wrote_it(number: str) -> None:
    odd = recognise("vllm", ["vllm", "serve", "org/big", "--port", number, "--nnodes", number])
    assert odd == Recognised("vllm", LEADER, (), "org/big", None)
    assert recognise("p4-agent", ["p4-agent", f"127.0.0.1:{number}"]) == Recognised("p4", BROKER)


def test_nonsense_in_a_command_line_is_unknown_and_never_a_default() -> None:
    odd = recognise("vllm", ["vllm", "serve", "org/big", "--port", "none", "--nnodes", "many"])
    assert odd == Recognised("vllm", LEADER, (), "org/big", None)
    long = recognise("llama-server", ["llama-server", "--port", "9" * 5_000])
    assert long == Recognised("llamacpp", LEADER, (), "", 1), "Python itself refuses to read so many digits"
    assert recognise("vllm", ["vllm", "serve", "org/big", "--nnodes", "9" * 5_000]) is not None
