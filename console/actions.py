"""The one registry of actions: keys, footer, help, ``:`` commands and the read-only gate are all read from it.

Every write key is a capital letter, and its small twin does nothing, so that a slip never changes a fleet; ``r`` beside
``R`` shows a ring, and what ``R`` opens wants a name typed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from backend.api import FleetState, HostId, HostView, ReplicaId, ReplicaView, holds_in, no_such
from console.render.operations import is_open
from console.render.recoverable import why_not_recovered
from console.render.words import ENDED

Danger = Literal["read", "write", "danger"]
Target = Literal["none", "replica", "shard", "host", "place"]
"""What a name behind a command is; a place is a host or a replica, and the action says itself which it knows."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What the cursors stand on. ``pane`` is the panel that has the keys: replicas, lower or journal."""

    replica: str | None = None
    node_id: str | None = None
    host: str | None = None
    pane: str = "replicas"


When = Callable[[FleetState, Selection], str | None]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a person can do. ``when`` says None where it is possible, else why it is not.

    ``twin`` is the one-shot command of the same meaning; ``footer`` orders the line at the bottom, 0 stays out.
    """

    id: str
    keys: tuple[str, ...]
    title: str
    help: str
    danger: Danger = "read"
    target: Target = "none"
    twin: str = ""
    when: When = lambda state, selection: None
    footer: int = 0

    @property
    def is_write(self) -> bool:
        """It changes a fleet, and read-only mode refuses it."""
        return self.danger != "read"


def _selected(state: FleetState, selection: Selection) -> ReplicaView | str:
    if selection.replica is None:
        return "no replica is selected"
    view = state.replicas.get(ReplicaId(selection.replica))
    return view if view is not None else f"{selection.replica} is no longer there"


def _can_load(state: FleetState, selection: Selection) -> str | None:
    if not state.models:
        return f"the catalog names no model. {state.catalog_words}".rstrip()
    if not any(host.state.value == "live" for host in state.hosts.values()):
        return "no host is live; the hosts panel (h) says why"
    return None


def _can_drain(state: FleetState, selection: Selection) -> str | None:
    view = _selected(state, selection)
    if isinstance(view, str):
        return view
    word = view.state.value
    return f"{view.id} is {word}: nothing is left to empty" if word in ENDED or word == "stopping" else None


def _can_unload(state: FleetState, selection: Selection) -> str | None:
    view = _selected(state, selection)
    if isinstance(view, str):
        return view
    return f"{view.id} is stopping already" if view.state.value == "stopping" else None


def _can_reload(state: FleetState, selection: Selection) -> str | None:
    view = _selected(state, selection)
    if isinstance(view, str):
        return view
    busy = next((each for each in state.operations.values() if each.subject == view.id and is_open(each)), None)
    if busy is not None:
        return f"{busy.kind} {busy.id} of it is {busy.state}"
    return f"{view.id} is draining already" if view.drain is not None and not view.drain.outcome else None


def _can_resume(state: FleetState, selection: Selection) -> str | None:
    return None if holds_in(state) else "nothing is paused, held down or quarantined"


def _can_test(state: FleetState, selection: Selection) -> str | None:
    view = _selected(state, selection)
    if isinstance(view, str):
        return view
    if view.state.value not in ("ready", "draining", "recovering"):
        return f"{view.id} is {view.state.value}: it answers nothing"
    return None


def _host_of(state: FleetState, selection: Selection) -> HostView | str:
    if selection.host is None:
        return "no host is selected; h shows the hosts, tab goes there"
    view = state.hosts.get(HostId(selection.host))
    return view if view is not None else f"{selection.host} is no longer in this context"


def _can_cordon(state: FleetState, selection: Selection) -> str | None:
    view = _host_of(state, selection)
    if isinstance(view, str):
        return view
    return None if view.state.value == "live" else f"{view.host} is {view.state.value}: nobody there can be told"


def _can_uncordon(state: FleetState, selection: Selection) -> str | None:
    view = _host_of(state, selection)
    if isinstance(view, str) or view.entities.cordon is not None:
        return _can_cordon(state, selection)
    return f"{view.host} is not cordoned"


def _can_recover(state: FleetState, selection: Selection) -> str | None:
    return why_not_recovered(state, selection.host or selection.replica or "")


def _has_replica(state: FleetState, selection: Selection) -> str | None:
    view = _selected(state, selection)
    return view if isinstance(view, str) else None


def _has_details(state: FleetState, selection: Selection) -> str | None:
    if selection.pane == "journal":
        return None
    if selection.pane == "lower" and (selection.node_id or selection.host):
        return None
    return _has_replica(state, selection)


ACTIONS: tuple[Action, ...] = (
    Action(
        "load",
        ("L",),
        "load",
        "Plan a load of a model; the plan is shown before anything happens.",
        danger="write",
        twin="load",
        when=_can_load,
        footer=1,
    ),
    Action(
        "drain",
        ("D",),
        "drain",
        "Empty the selected replica with a deadline, or watch the drain that runs.",
        danger="write",
        target="replica",
        twin="drain",
        when=_can_drain,
        footer=2,
    ),
    Action(
        "adopt",
        ("A",),
        "adopt",
        "Show what every host reports, what is unwanted, held or foreign; s stops a stray, a adopts an engine.",
        twin="adopt",
        footer=2,
    ),
    Action(
        "unload",
        ("U",),
        "unload",
        "Stop the selected replica now, whatever it serves. Its name must be typed.",
        danger="danger",
        target="replica",
        twin="unload",
        when=_can_unload,
        footer=3,
    ),
    Action(
        "reload",
        ("R",),
        "reload",
        "Load the selected replica again; the plan says whether its replacement comes first. Its name must be typed.",
        danger="write",
        target="replica",
        twin="reload",
        when=_can_reload,
        footer=6,
    ),
    Action(
        "recover",
        ("M",),
        "recover",
        "Recover the p4 agent under the selected replica, or of a host: :recover HOST. The plan shows every step and "
        "what is lost; the host's name must be typed.",
        danger="danger",
        target="place",
        twin="p4 recover",
        when=_can_recover,
    ),
    Action(
        "cordon",
        ("C",),
        "cordon",
        "Take no new shards on the selected host, or take that back; what runs there runs on.",
        danger="write",
        target="host",
        twin="cordon",
        when=_can_cordon,
        footer=3,
    ),
    Action(
        "uncordon",
        (),
        "uncordon",
        "Take new shards on a host again: :uncordon HOST.",
        danger="write",
        target="host",
        twin="uncordon",
        when=_can_uncordon,
    ),
    Action(
        "drain-host",
        (),
        "drain host",
        "Cordon a host and drain every replica with a rank there: :drain-host HOST. Its name must be typed.",
        danger="danger",
        target="host",
        twin="drain --host",
        when=_can_cordon,
    ),
    Action(
        "pause",
        ("P",),
        "pause",
        "Let the keeper leave the selected replica alone, or what :pause NAME names, a model too. Nothing stops.",
        danger="write",
        twin="pause",
    ),
    Action(
        "hold-down",
        ("X",),
        "hold down",
        "Hold the selected replica down, or what :hold-down NAME names: it stops, and the keeper loads it no more. "
        "Its name must be typed.",
        danger="danger",
        twin="down",
    ),
    Action(
        "resume",
        ("E",),
        "resume",
        "Show what is paused, held down or quarantined, by whom and until when; y releases one.",
        danger="write",
        twin="resume",
        when=_can_resume,
    ),
    Action(
        "test",
        ("t",),
        "test",
        "Send one short prompt through every rank of the selected replica.",
        target="replica",
        twin="test",
        when=_can_test,
        footer=4,
    ),
    Action(
        "details",
        ("enter", "i"),
        "details",
        "Show the selected replica as a ring, the shard or host under the cursor, or whole journal lines.",
        when=_has_details,
    ),
    Action(
        "ring",
        ("r",),
        "ring",
        "Show the selected replica as a ring, with the place where it is broken.",
        target="replica",
        twin="ls shards",
        when=_has_replica,
    ),
    Action(
        "operations",
        ("o",),
        "operations",
        "Show the loads, drains and unloads, and follow one.",
        twin="ls operations",
        footer=5,
    ),
    Action(
        "drift",
        ("v",),
        "drift",
        "Show every pair of values that should be equal and is not; k acknowledges one there.",
        twin="drift",
    ),
    Action("hosts", ("h",), "hosts", "Switch the lower panel between shards and hosts.", twin="ls hosts", footer=7),
    Action(
        "filter",
        ("slash",),
        "filter",
        "Show only lines of this panel that hold these words; !word leaves out.",
        footer=8,
    ),
    Action("unfilter", ("escape",), "show all", "Take the filter of this panel away."),
    Action("command", ("colon",), "command", "Type an action by its name, like :drain tiny-1.", footer=9),
    Action("help", ("question_mark", "f1"), "help", "Show every key and its one-shot command.", footer=10),
    Action("picture", (), "picture", "Write this screen as a picture: :picture FILE.svg."),
    Action("quit", ("q",), "quit", "Leave the console. Operations and engines go on.", footer=11),
    Action("next-pane", ("tab",), "next panel", "Give the keys to the next panel."),
    Action("previous-pane", ("shift+tab",), "previous panel", "Give the keys to the panel before."),
    Action("down", ("j", "down"), "down", "One line down."),
    Action("up", ("k", "up"), "up", "One line up."),
    Action("page-down", ("pagedown", "space"), "page down", "One screen down."),
    Action("page-up", ("pageup",), "page up", "One screen up."),
    Action("first", ("g", "home"), "first", "Go to the first line."),
    Action("last", ("G", "end"), "last", "Go to the last line; the journal follows again."),
    Action("follow", ("F",), "follow", "Let the journal stand still, or follow again.", twin="journal"),
)
"""Every action of the console, in the order of the help."""

BY_ID = {action.id: action for action in ACTIONS}
BY_KEY = {key: action for action in ACTIONS for key in action.keys}

_KEY_NAMES = {"slash": "/", "colon": ":", "question_mark": "?", "pagedown": "pgdn", "pageup": "pgup", "escape": "esc"}


def key_name(key: str) -> str:
    """A key as a person reads it on a keyboard."""
    return _KEY_NAMES.get(key, key)


def refusal(action: Action, state: FleetState | None, selection: Selection) -> str | None:
    """Why the action is not possible now, or None. The read-only gate stands here, before any other reason."""
    if state is None:
        return None if action.target == "none" and not action.is_write else "the backend has not reported yet"
    if action.is_write and state.read_only:
        return f"{action.title} is refused: context {state.context} is read-only"
    why = action.when(state, selection)
    return None if why is None else f"{action.title} is not possible: {why}"


def unknown_target(action: Action, state: FleetState | None, name: str) -> str | None:
    """Why the replica or host that was typed behind a command cannot be meant, with those that can; else None."""
    if state is None or not name or action.target not in ("replica", "host"):
        return None
    known: Collection[str] = state.replicas if action.target == "replica" else state.hosts
    return None if name in known else f"{action.title} is not possible: {no_such(action.target, name, known)}"


@dataclass(frozen=True, slots=True)
class Command:
    """A ``:`` command that was understood: the action and what follows its name."""

    action: Action
    argument: str = ""


def parse_command(text: str) -> Command | str:
    """The action that a ``:`` line names, by its id, its title or its one-shot twin; else what was not understood."""
    name, _, argument = text.strip().partition(" ")
    if not name:
        return "no command was typed; :help names them all"
    meant = [action for action in ACTIONS if name in (action.id, action.twin)]
    if meant:  # down moves the cursor, and down NAME is what the command line calls it
        return Command(meant[-1] if argument.strip() and meant[-1].is_write else meant[0], argument.strip())
    near = [action.id for action in ACTIONS if action.id.startswith(name)]
    if len(near) == 1:
        return Command(BY_ID[near[0]], argument.strip())
    if near:
        return f"{name} may be {', '.join(near)}"
    return f"there is no command {name}; :help names them all"


def command_names() -> tuple[str, ...]:
    """The names that the ``:`` line offers."""
    return tuple(action.id for action in ACTIONS)
