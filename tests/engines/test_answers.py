"""What ports say, by the shape of their answers: engines that are not installed here by stand-ins of their contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.engines.answers import (
    CLOSED,
    LOADING,
    LONGEST_TEXT,
    MOST_NAMES,
    OTHER,
    READY,
    SILENT,
    ask_engine,
    judge,
)
from backend.engines.llamacpp.exchange import Answer
from backend.engines.taken_over import Work, read_slots, read_work
from tests.engines.stand_in_engine import LLAMA, SGLANG, SGLANG_LINE, VLLM, VLLM_LINE, StandInEngine, keyed

Answers = dict[str, tuple[int, object]]
LOADS: Answers = {
    "/health": (503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}),
    "/v1/models": (503, {}),
    "/props": (503, {}),
}


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[Callable[..., StandInEngine]]:
    """Starts stand-ins; every one is gone at the end."""
    made: list[StandInEngine] = []

    def start(line: tuple[str, ...], answers: Answers, head: str = "alone") -> StandInEngine:
        made.append(StandInEngine(tmp_path / str(len(made)), line, answers, head))
        return made[-1]

    yield start
    for each in made:
        each.close()


def as_heard(answers: Answers) -> dict[str, Answer]:
    """The answers without a process behind them."""
    import json

    return {
        path: Answer(status, body.encode() if isinstance(body, str) else json.dumps(body).encode())
        for path, (status, body) in answers.items()
    }


@pytest.mark.adoption("vLLM and SGLang are known by the documented shape of their answers; SGLang runs no request")
async def test_engines_that_are_not_installed_here_are_known_by_their_contract(
    stand_in: Callable[..., StandInEngine],
) -> None:
    vllm, sglang = stand_in(VLLM_LINE, VLLM), stand_in(SGLANG_LINE, SGLANG)
    told = await ask_engine("vllm", "leader", "127.0.0.1", vllm.port, 10.0)
    assert (told.answers, told.served, told.model, told.release) == (READY, ("big",), "org/big", "0.32.0")
    told = await ask_engine("sglang", "leader", "127.0.0.1", sglang.port, 10.0)
    assert (told.answers, told.served, told.model) == (READY, ("big",), "org/big")
    assert sorted(sglang.asked()) == ["/model_info", "/ready", "/v1/models"], "its /health would run a request"


@pytest.mark.adoption("a 401 proves nothing about who answers")
@pytest.mark.parametrize(("engine", "answers"), [("vllm", VLLM), ("sglang", SGLANG), ("llamacpp", LLAMA)])
def test_a_401_proves_nothing(engine: str, answers: Answers) -> None:
    told = judge(engine, as_heard(keyed(answers)))
    assert (told.answers, told.served, told.model, told.release) == (CLOSED, (), "", "")
    assert "proves nothing" in told.words


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_another_engines_answers_are_not_taken_for_its_own(engine: str) -> None:
    paths = {"/health": (200, "fine"), "/version": (200, "1"), "/v1/models": (200, {"data": [{"id": "x"}]})}
    others: Answers = {**paths, "/ready": (200, ""), "/model_info": (404, ""), "/props": (404, "")}
    told = judge(engine, as_heard(others))
    assert (told.answers, told.served) == (OTHER, ())
    assert f"not those of {engine}" in told.words


def test_a_llama_server_says_when_it_loads_and_what_it_serves() -> None:
    assert judge("llamacpp", as_heard(LOADS)).answers == LOADING
    told = judge("llamacpp", as_heard(LLAMA))
    assert (told.answers, told.served, told.model) == (READY, ("tiny",), "/models/tiny.gguf")
    assert told.release == "1-7e4c0a9"
    without_props = judge("llamacpp", as_heard({**LLAMA, "/props": (401, {})}))
    assert (without_props.answers, without_props.model) == (READY, ""), "its models need no key, its path does"


def test_what_anybodys_process_says_is_cut_to_what_a_report_can_carry() -> None:
    listed = [{"id": "n" * 1_000_000, "meta": {"n_params": 1}}] * 1000
    props = (200, {"model_path": "m" * 1_000_000, "build_info": "b" + "r" * 1_000_000})
    told = judge("llamacpp", as_heard({**LLAMA, "/v1/models": (200, {"data": listed}), "/props": props}))
    assert (len(told.served), {len(name) for name in told.served}) == (MOST_NAMES, {LONGEST_TEXT})
    assert max(len(told.model), len(told.release)) <= LONGEST_TEXT


async def test_silence_has_a_deadline_and_nobody_but_a_leader_is_asked() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await asyncio.sleep(30)

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = int(server.sockets[0].getsockname()[1])
    told = await ask_engine("vllm", "leader", "127.0.0.1", port, 0.2)
    assert told.answers == SILENT
    assert "did not answer" in told.words
    server.close()
    assert (await ask_engine("vllm", "leader", "127.0.0.1", port, 5.0)).answers == SILENT
    assert "a greeting can end a busy worker" in (await ask_engine("llamacpp", "worker", "", port, 5.0)).words


@pytest.mark.parametrize("said", ["1e300", "-1", "inf", "nan", "1e16"])
def test_a_count_that_nobody_could_have_counted_is_unknown(said: str) -> None:
    text = f"vllm:num_requests_running {said}\nllamacpp:requests_processing {said}\n"
    for engine in ("vllm", "llamacpp"):
        assert read_work(engine, Answer(200, text.encode())).in_flight is None


def test_open_work_is_read_from_each_engines_own_counters_and_unknown_is_never_zero() -> None:
    heard = {name: as_heard(answers)["/metrics"] for name, answers in (("vllm", VLLM), ("sglang", SGLANG))}
    assert read_work("vllm", heard["vllm"]) == Work(3, 4, 70, "engine metrics")
    assert read_work("sglang", heard["sglang"]) == Work(1, 0, None, "engine metrics")
    assert read_work("vllm", Answer(200, b'vllm:num_requests_running{a="b"} abc\n')).in_flight is None
    for status in (401, 404, 501):
        assert read_work("llamacpp", Answer(status, b"")) == Work()
    idle, busy = b'[{"is_processing": false}, {"is_processing": true}]', b'[{"is_processing": true}]'
    assert read_slots(Answer(200, idle)) == Work(1, 0, None, "engine slots")
    assert read_slots(Answer(200, busy)) == Work(1, None, None, "engine slots"), "a queue would not show"
    assert read_slots(Answer(501, b"")) == read_slots(Answer(200, b"[]")) == Work()
