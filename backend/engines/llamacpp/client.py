"""Asks one llama-server over HTTP: is it up, what is in flight, and does a token come through every rank."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

from backend.engines.driver import Completion
from backend.engines.llamacpp.exchange import Answer, exchange
from backend.engines.llamacpp.metrics import Census, SlotSeen, read_census, read_slots

_CANARY_PROMPT = [3]  # a token id: needs no tokenizer, and every vocabulary has it


class Unanswered(ConnectionError):
    """The engine did not answer as it should; the message says how."""


class EngineClient:
    """One engine on this host, by its endpoint ``http://HOST:PORT``. Every deadline is for a whole answer."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        parts = urlsplit(endpoint)
        self._host, self._port = parts.hostname or "", parts.port or 80

    async def is_up(self, seconds: float) -> bool:
        """Whether ``/health`` says 200. Says nothing about the workers: it stays so with all of them dead."""
        try:
            return (await self._get("/health", seconds)).status == 200
        except (TimeoutError, Unanswered):
            return False

    async def census(self, seconds: float) -> Census:
        """Work in flight and counters. Raises TimeoutError, Unanswered."""
        answer = await self._get("/metrics", seconds)
        if answer.status != 200:
            raise Unanswered(f"/metrics answered {answer.status}")
        return read_census(answer.text)

    async def slots(self, seconds: float) -> tuple[SlotSeen, ...] | None:
        """The busy slots, None when this engine does not tell them. Raises TimeoutError, Unanswered."""
        answer = await self._get("/slots", seconds)
        if answer.status != 200:
            return None
        return read_slots(answer.tree)

    async def canary(self, slot: int, seconds: float) -> float:
        """One token through every rank in the spare slot; returns how long it took. Raises TimeoutError, Unanswered."""
        body = {"prompt": _CANARY_PROMPT, "n_predict": 1, "temperature": 0, "cache_prompt": False, "id_slot": slot}
        began = time.monotonic()
        await self._complete(body, seconds)
        return time.monotonic() - began

    async def complete(self, prompt: str, max_tokens: int, seconds: float) -> Completion:
        """One greedy completion. Raises TimeoutError, Unanswered."""
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "cache_prompt": False}
        began = time.monotonic()
        answer = await self._complete(body, seconds)
        return Completion(str(answer["content"]), time.monotonic() - began, int(answer["tokens_predicted"]))

    async def _complete(self, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """One completion, whole. At its deadline the connection is closed, so that the engine gives it up too."""
        try:
            async with asyncio.timeout(seconds):
                answer = await exchange(self._host, self._port, "/completion", body)
        except TimeoutError:
            raise TimeoutError(f"no completion within {seconds:g} s") from None
        except OSError as error:
            raise Unanswered(f"the completion was dropped: {_name(error)}") from error
        if answer.status != 200:
            raise Unanswered(f"the completion was refused with {answer.status}: {answer.text[:200]}")
        whole = answer.tree
        if not isinstance(whole, dict) or not isinstance(whole.get("tokens_predicted"), int) or "content" not in whole:
            raise Unanswered(f"the completion is not understood: {answer.text[:200]}")
        return whole

    async def _get(self, path: str, seconds: float) -> Answer:
        try:
            async with asyncio.timeout(seconds):
                return await exchange(self._host, self._port, path)
        except TimeoutError:
            raise TimeoutError(f"{path} did not answer for {seconds:g} s") from None
        except OSError as error:
            raise Unanswered(f"{path} was dropped: {_name(error)}") from error


def _name(error: OSError) -> str:
    return f"{type(error).__name__} {error}".strip()
