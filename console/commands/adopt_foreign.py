"""``ringtop adopt --foreign HOST:PID --as MODEL:PROFILE``: take over an engine that no agent started."""

from __future__ import annotations

import sys

import click

from console.commands.door import ask, opened, require_a_host, settle, state_of, wait_for
from console.commands.exits import DONE, REFUSED, CommandFailed, refused
from console.commands.output import look_for, print_json, print_lines, say, screen_width
from console.commands.settings import Settings

_SEEN_SECONDS = 10.0


def adopt_foreign(settings: Settings, named: str, target: str, why: str, *, yes: bool) -> int:
    """Show what it would become and what speaks against it, ask, and have its agent record it."""
    from backend.api import AdoptForeignRequest, HostId, PlanForeign, foreign_of

    host, pid = _split(named)
    with opened(settings) as backend:
        require_a_host(state_of(backend))
        answer = ask(backend, PlanForeign(host=HostId(host), pid=pid, target=target))
        plan = answer.plan
        if plan is None:
            settle(answer)
            raise CommandFailed(REFUSED, answer.words or f"no adoption of {named} could be planned")
        process = foreign_of(answer)
        if not settings.as_json:
            from console.render.foreign import adoption_plan_lines

            print_lines(adoption_plan_lines(process, plan, host, look_for(settings), screen_width()))
        if plan.is_refused:
            findings = [finding for finding in plan.findings if finding.is_refusal]
            words = " ".join(finding.words for finding in findings)
            raise CommandFailed(REFUSED, f"{named} is not adopted, and is left as it is. {words}", findings=findings)
        if not yes:
            _confirm(settings, named, target)
        request = AdoptForeignRequest(
            host=HostId(host), process=process, plan=plan, confirmed=plan.digest, why=why or ""
        )
        words = settle(ask(backend, request)).words
        view = wait_for(backend, lambda state: state.replicas.get(plan.replica), _SEEN_SECONDS)
    if settings.as_json:
        from console.commands.facts import replica_facts

        print_json({"words": words, "process": process, "replica": None if view is None else replica_facts(view)})
    else:
        say(words)
    return DONE


def _split(named: str) -> tuple[str, int]:
    host, _, pid = named.rpartition(":")
    if not host or not pid.isdecimal() or int(pid) < 1:
        raise refused(f"--foreign takes HOST:PID, such as gpu-a:4711, and got {named!r}; see: ringtop adopt --plan")
    return host, int(pid)


def _confirm(settings: Settings, named: str, target: str) -> None:
    if settings.as_json or not sys.stdin.isatty():
        raise refused(f"adopting {named} must be confirmed, and there is no terminal to ask at; add --yes")
    if not click.confirm(f"Adopt {named} as {target}?", default=False, err=True):
        raise refused(f"{named} is not adopted: it was not confirmed")
