"""What each action of the registry does on the screen. Reached through the one dispatch point only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from backend.api import few_of, holds_in
from console.actions import Selection
from console.picture import write_picture
from console.render.help import help_lines
from console.render.holds import unknown_words
from console.render.hosts import host_page
from console.render.journal import journal_page
from console.render.ring import ring_lines
from console.screens.adoption import AdoptionScreen
from console.screens.cordon import CordonDialog
from console.screens.drain import DrainDialog, DrainView, find_replica
from console.screens.drain_host import HostDrainDialog
from console.screens.drift import DriftScreen
from console.screens.holds import DownDialog, HoldsDialog, PauseDialog
from console.screens.leave import QuitDialog
from console.screens.load import ChooseModel, LoadDialog
from console.screens.main import MainScreen
from console.screens.pages import OperationPage, OperationsScreen, Page, ShardPage
from console.screens.prompt import PromptDialog
from console.screens.recovery import recovery_screen
from console.screens.reload import ReloadDialog
from console.screens.unload import UnloadDialog

if TYPE_CHECKING:
    from console.app import ConsoleApp

Handler = Callable[["ConsoleApp", MainScreen, Selection, str], None]


def _load(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(LoadDialog(argument) if argument else ChooseModel())


def _drain(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    replica = selection.replica or ""
    view = find_replica(app.state, replica)
    is_draining = view is not None and view.drain is not None and not view.drain.outcome
    app.push_screen(DrainView(replica) if is_draining else DrainDialog(replica))


def _unload(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(UnloadDialog(selection.replica or ""))


def _reload(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(ReloadDialog(selection.replica or ""))


def _cordon(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(CordonDialog(selection.host or ""))


def _drain_host(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(HostDrainDialog(selection.host or ""))


def _recover(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    if app.state is not None:
        app.push_screen(recovery_screen(app.state, selection.host or selection.replica or ""))


def _pause(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    if subject := _held_subject(app, "pause", selection, argument):
        app.push_screen(PauseDialog(subject))


def _hold_down(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    if subject := _held_subject(app, "hold-down", selection, argument):
        app.push_screen(DownDialog(subject))


def _held_subject(app: ConsoleApp, action: str, selection: Selection, argument: str) -> str:
    """The replica or model that is meant; a name that nobody knows is said at once, before anything is filled in."""
    subject = argument or selection.replica or ""
    if not subject:
        app.say(
            f"{action} is not possible: no replica is selected; name one or a model: :{action} NAME", "message.warn"
        )
    elif app.state is not None and (why := unknown_words(app.state, subject)):
        app.say(f"{action} is not possible: {why}", "message.warn")
        return ""
    return subject


def _resume(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    held = {each.subject for each in holds_in(app.state).values()} if app.state is not None else set()
    if argument and argument not in held:
        app.say(f"resume is not possible: nothing holds {argument}; held: {few_of(sorted(held))}", "message.warn")
        return
    app.push_screen(HoldsDialog(argument or selection.replica or ""))


def _test(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(PromptDialog(selection.replica or ""))


def _ring(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    replica = selection.replica or ""
    app.push_screen(Page(f"ring {replica}", lambda state, look, width: ring_lines(state, replica, look, width)))


def _details(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    if selection.pane == "journal":
        entries = tuple(main.visible_journal())
        app.push_screen(Page("journal, as it stood", lambda state, look, width: journal_page(entries, look, width)))
    elif selection.node_id is not None:
        app.push_screen(ShardPage(selection.node_id))
    elif selection.host is not None:
        host = selection.host
        app.push_screen(Page(f"host {host}", lambda state, look, width: host_page(state, host, look, width)))
    else:
        _ring(app, main, selection, argument)


def _operations(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(OperationPage(argument) if argument else OperationsScreen())


def _drift(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(DriftScreen())


def _adopt(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(AdoptionScreen())


def _help(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(Page("keys", lambda state, look, width: help_lines(state, selection, width)))


def _filter(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    if argument:
        main.set_filter(argument)
    else:
        main.ask("filter")


def _picture(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.call_after_refresh(_take_picture, app, Path(argument or "ringtop.svg").expanduser())


def _take_picture(app: ConsoleApp, path: Path) -> None:
    """When the line that was typed is gone from the screen."""
    try:
        write_picture(app.export_screenshot(title=f"ringtop {app.context_words()}"), path)
    except FileExistsError:
        app.say(f"{path} is there already, and is kept; name another file: :picture FILE", "message.warn")
    except OSError as problem:
        app.say(f"{path} cannot be written: {problem.strerror}", "message.alarm")
    else:
        app.say(f"the screen is in {path.absolute()}")


def _quit(app: ConsoleApp, main: MainScreen, selection: Selection, argument: str) -> None:
    app.push_screen(QuitDialog())


def _mover(action: str) -> Handler:
    return lambda app, main, selection, argument: main.move(action)


HANDLERS: dict[str, Handler] = {
    "load": _load,
    "drain": _drain,
    "adopt": _adopt,
    "unload": _unload,
    "reload": _reload,
    "recover": _recover,
    "cordon": _cordon,
    "uncordon": _cordon,
    "drain-host": _drain_host,
    "pause": _pause,
    "hold-down": _hold_down,
    "resume": _resume,
    "test": _test,
    "details": _details,
    "ring": _ring,
    "operations": _operations,
    "drift": _drift,
    "hosts": lambda app, main, selection, argument: main.switch_lower(),
    "filter": _filter,
    "unfilter": lambda app, main, selection, argument: main.set_filter(""),
    "command": lambda app, main, selection, argument: main.ask("command"),
    "help": _help,
    "picture": _picture,
    "quit": _quit,
    "next-pane": lambda app, main, selection, argument: main.focus_pane(1),
    "previous-pane": lambda app, main, selection, argument: main.focus_pane(-1),
    "follow": lambda app, main, selection, argument: main.toggle_follow(),
    **{name: _mover(name) for name in ("down", "up", "page-down", "page-up", "first", "last")},
}
"""One entry per action; a test holds both lists against each other."""
