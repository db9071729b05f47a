"""A command whose answer was lost is asked for again by its op_id, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import time
from itertools import count

from backend.contract.commands import Command, OperationStatus
from backend.contract.entities import Result
from backend.contract.envelopes import command_type
from backend.contract.frames import FrameError, convert
from backend.contract.words import OpId
from backend.control.link import Link
from backend.control.link_ends import AnswerUnknown, Refusal

_STATUS_SECONDS = 10.0
_PAUSE_SECONDS = 0.2
_LOOK_SECONDS = 0.5


async def ask_until_known(link: Link, command: Command, timeout: float) -> Result:
    """Ask as a link does, but wait a lost connection out and ask for the command again by its op_id.

    So is an agent that cannot record the end: its words are noted at once, and the truth comes with its next life.
    Raises AnswerUnknown when ``timeout`` seconds were not enough; ``sent`` False then proves that nothing left.
    """
    deadline = time.monotonic() + timeout
    sent, why = False, ""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not await link.wait_live(left):
            words = f"{link.host} gave no answer to {command_type(command)} in {timeout:g} s"
            why = why or ("" if link.is_live else "it is not connected")
            raise AnswerUnknown(f"{words}: {why}" if why else words, sent=sent)
        try:
            known = await _recall(link, command.op_id, deadline) if sent else None
            if known is not None:
                return known
            result = await link.ask(command, max(0.0, deadline - time.monotonic()))
            if not _is_unrecorded(result):
                return result
            sent, why = True, result.first_error
            link.note("link.unknown", f"{command_type(command)} {command.op_id}: {why}")
        except AnswerUnknown as error:
            sent = sent or error.sent
            if not isinstance(error.__cause__, TimeoutError):  # that it took too long is said in any case
                why = str(error)
        await asyncio.sleep(_PAUSE_SECONDS)


async def _recall(link: Link, asked: OpId, deadline: float) -> Result | None:
    """The result of a command sent before; None when the agent never took it, so that it must be sent again.

    Only the agent's own word about the command decides: a status that is refused or unreadable leaves it unknown.
    """
    for number in count(1):
        status = OperationStatus(op_id=OpId(f"{asked}-status-{number}"), asked=asked)
        left = max(0.0, deadline - time.monotonic())
        try:
            answer = await link.ask(status, min(left, _STATUS_SECONDS))
            if answer.status != "succeeded":
                raise AnswerUnknown(_no_status(link, asked, answer.first_error), sent=True)
            if not answer.value.get("known"):
                return None
            tree = answer.value.get("result")
            if tree is not None:
                return convert(tree, Result, f"result of {asked} at {link.host}")
        except (Refusal, FrameError) as error:
            raise AnswerUnknown(_no_status(link, asked, str(error)), sent=True) from error
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    raise AnswerUnknown(f"{link.host} still works on {asked}", sent=True)


def _no_status(link: Link, asked: OpId, words: str) -> str:
    return f"{link.host} cannot say what became of {asked}: {words}"


def _is_unrecorded(result: Result) -> bool:
    """The agent's journal will not take the end of this command in its present life: what became of it is unknown."""
    is_unknown = result.status == "failed" and result.resource_state == "unknown"
    return is_unknown and result.first_error.startswith("E_JOURNAL")
