"""Where the p4 agent of this host is, what it may be asked to run, and where what it writes can be read."""

from __future__ import annotations

import msgspec

from backend.contract.p4.addresses import P4Address


class BridgePlace(msgspec.Struct, frozen=True, kw_only=True):
    """The bridge that submits to a ring whose head is here; empty means there is none that is told.

    ``record`` is the file that it reads stages and generation from; ``hook`` a program with arguments that is run with
    ``publish``, ``close`` or ``open`` and the same as JSON on its standard input. ``url`` and ``token`` (a file with
    its service token) are where ``/api/controllers`` says what it took over. ``restart`` is a command that restarts it.
    """

    record: str = ""
    hook: tuple[str, ...] = ()
    url: str = ""
    token: str = ""
    restart: tuple[str, ...] = ()

    @property
    def is_told(self) -> bool:
        """A load is published to it."""
        return bool(self.record or self.hook)


class P4Place(msgspec.Struct, frozen=True, kw_only=True):
    """``[engines.p4]`` of agent.toml, checked.

    ``agent`` is dialled, ``advertise`` stands in every envelope: its text is the agent's identity. ``binary`` is the
    stage's program, ``journal`` the folder of the p4 agent's own journal, ``record`` the ``last-load.json`` of whoever
    loads past ringtop, ``release`` what the stage binary is, where the operator knows. ``stop`` and ``start`` are
    commands that end and start the p4 agent; without them that is a person's to do.
    """

    agent: P4Address
    advertise: P4Address
    binary: str
    journal: str = ""
    record: str = ""
    release: str = ""
    stop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    bridge: BridgePlace = BridgePlace()
