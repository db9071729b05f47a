"""The console application: one data timer, one dispatch point, and a clean way out under every signal."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.events import Event, Key, Paste

from backend.api import Answer, FleetState, OpId, Request, SubmitRefused
from console.actions import BY_ID, Selection, parse_command, refusal, unknown_target
from console.render.cells import Look
from console.safe_text import safe_text
from console.screens.dialog import Dialog
from console.screens.main import MainScreen
from console.theming import Palette, choose_palette, has_few_colours
from console.widgets.journal import KEPT
from console.widgets.paint import Painter

if TYPE_CHECKING:
    from backend.api import Backend

DATA_SECONDS = 0.1
SLOW_DATA_SECONDS = 0.25
JOURNAL_LIMIT = 5_000
"""Records taken from the backend by one call; a screen that fell behind catches up within one tick."""
TERMINAL_CHECK_SECONDS = 1.0
OnAnswer = Callable[[Answer], None]


class ConsoleApp(App[None], inherit_bindings=False):
    """The terminal side of one fleet. Everything it knows comes from ``backend.state()``, by identity."""

    CSS_PATH = "console.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "hint_quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, backend: Backend, palette: Palette, *, is_ascii: bool = False, slow: bool = False) -> None:
        super().__init__(ansi_color=palette.framework.ansi)
        self.animation_level = "none"
        self.painter = Painter(palette, is_ascii=is_ascii)
        self.state: FleetState | None = None
        self.words_at_start: list[str] = []
        self._backend = backend
        self._palette = palette
        self._data_seconds = SLOW_DATA_SECONDS if slow else DATA_SECONDS
        self._is_started = False
        self._second = 0
        self._awaited: dict[OpId, OnAnswer | None] = {}
        self._main = MainScreen(self.painter)

    def on_mount(self) -> None:
        """Draw first; the main screen starts the backend when it stands."""
        self.register_theme(self._palette.framework)
        self.theme = self._palette.framework.name
        self.push_screen(self._main)
        self._catch_signals()
        self.set_interval(TERMINAL_CHECK_SECONDS, self._check_terminal)

    def start_backend(self) -> None:
        """Called once, when the first frame is out: what the backend imports must not delay it."""
        self._backend.start()
        self._is_started = True
        self.set_interval(self._data_seconds, self.tick)
        if self.words_at_start:
            self.say("  ".join(self.words_at_start), "message.warn")
        self.tick()

    # --- signals and the terminal ---------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGHUP):
            try:
                loop.add_signal_handler(each, self.leave, 128 + each)
            except (NotImplementedError, RuntimeError, ValueError):
                return  # not in the main thread: whoever runs us there has the signals

    def _check_terminal(self) -> None:
        """Leave when the terminal is gone: without SIGHUP the framework would read its end for ever (textual 8.2.8)."""
        if self.is_headless:
            return
        poll = select.poll()
        try:
            poll.register(sys.__stdin__.fileno() if sys.__stdin__ else 0, select.POLLHUP | select.POLLERR)
            events = poll.poll(0)
        except (OSError, ValueError):
            events = [(0, select.POLLERR)]
        if events:
            self.leave(128 + signal.SIGHUP)

    def _fatal_error(self) -> None:
        """What nobody caught ends the console; ``run_console`` raises it, for the command line to tell.

        The framework (textual 8.2.8) would print a traceback with all variables, and exit with 1.
        """
        self._close_messages_no_wait()

    @property
    def crash(self) -> Exception | None:
        """What nobody caught."""
        return self._exception

    def leave(self, code: int = 0) -> None:
        """End the console. Operations and engines go on."""
        self.exit(return_code=code)

    def action_hint_quit(self) -> None:
        """Ctrl-C ends nothing here; say what does."""
        self.say("q quits. Operations go on after that; ctrl-c cancels nothing.", "message")

    # --- what screens use -----------------------------------------------------------------------------------

    def look(self) -> Look:
        """How things are shown at this moment."""
        return Look(
            glyphs=self.painter.glyphs,
            now=time.monotonic(),
            now_ms=time.time_ns() // 1_000_000,
            wide=self._main.is_wide,
        )

    def stamp(self) -> float:
        """When the backend's loop last lived, in monotonic seconds; 0 before it was started."""
        return self._backend.stamp() if self._is_started else 0.0

    def context_words(self) -> str:
        """The name of the fleet, as it stands in every dialog."""
        return "?" if self.state is None else self.state.label or self.state.context

    def say(self, words: str, style: str = "message") -> None:
        """One sentence at the bottom, until the next key."""
        self._main.say(safe_text(words), style)

    def dialog_keys_changed(self) -> None:
        """The dialog on top has other keys for the line at the bottom."""
        self._main.draw_footer(self.state)

    def submit(self, request: Request, on_answer: OnAnswer | None = None) -> OpId | None:
        """Hand a request to the backend. None when it was refused, which is then said at the bottom."""
        if request.is_write and (self.state is None or self.state.read_only):
            self.say("refused: this context is read-only", "message.alarm")
            return None
        try:
            op_id = self._backend.submit(request)
        except SubmitRefused as problem:
            self.say(str(problem), "message.alarm")
            return None
        self._awaited[op_id] = on_answer
        return op_id

    # --- time -----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Take what the backend has. An unchanged state is the same object, and then nothing is drawn."""
        if not self.screen_stack:
            return  # the application ends, and its screens went before its timers
        state = self._backend.state()
        second = int(time.monotonic())
        look = self.look()
        if state is not self.state or second != self._second:
            is_new = state is not self.state
            self._say_of_catalog(state)
            self.state, self._second = state, second
            self._main.refresh_state(state, look)
            if isinstance(self.screen, Dialog) and self.screen.stands:
                self.screen.refresh_state(state, look)
            if is_new:
                self._take_answers(state)
        self._take_journal(state)

    def _say_of_catalog(self, state: FleetState) -> None:
        """An edit of the catalog that cannot be used, and the one that can again, are said when they come."""
        if self.state is None or self.state.catalog_words == state.catalog_words:
            return
        if state.catalog_words:
            self.say(f"the catalog: {state.catalog_words}", "message.warn")
        else:
            self.say("the catalog is in use as its file has it")

    def _take_journal(self, state: FleetState) -> None:
        after = max(self._main.journal_position(), state.journal_head - KEPT)
        for _ in range(KEPT // JOURNAL_LIMIT):
            if after >= state.journal_head:
                return
            lines = self._backend.journal(after, JOURNAL_LIMIT)
            if not lines:
                return
            self._main.take_journal(lines)
            after = lines[-1].index

    def _take_answers(self, state: FleetState) -> None:
        for op_id, on_answer in [(op_id, each) for op_id, each in self._awaited.items() if op_id in state.answers]:
            answer = state.answers[op_id]
            if not answer.done:
                continue
            del self._awaited[op_id]
            if on_answer is not None:
                on_answer(answer)
            elif answer.words and answer.words != op_id:
                self.say(answer.words, "message" if answer.exit_code == 0 else "message.alarm")

    # --- the one dispatch point -----------------------------------------------------------------------------

    async def on_event(self, event: Event) -> None:
        """A dangerous dialog that has just opened takes no key but esc: it was meant for what was there before."""
        is_typed = isinstance(event, Paste) or (isinstance(event, Key) and event.key != "escape")
        if is_typed and isinstance(self.screen, Dialog) and self.screen.is_deaf:
            return
        await super().on_event(event)

    def dispatch(self, action_id: str, argument: str = "") -> None:
        """Do an action, or say why it is not possible. The read-only gate stands here."""
        action = BY_ID[action_id]
        selection = self._main.selection()
        if argument and action.target == "replica":
            self._main.select_replica(argument)
            selection = Selection(replica=argument, pane="replicas")
        if argument and action.target in ("host", "place"):
            selection = Selection(replica=selection.replica, host=argument, pane="lower")
        why = unknown_target(action, self.state, argument) or refusal(action, self.state, selection)
        if why is not None:
            self.say(why, "message.warn")
            return
        from console.handlers import HANDLERS  # the dialogs, which the first frame does not need

        HANDLERS[action_id](self, self._main, selection, argument)

    def run_command(self, text: str) -> None:
        """Do what a ``:`` line says."""
        command = parse_command(text)
        if isinstance(command, str):
            self.say(command, "message.warn")
        else:
            self.dispatch(command.action.id, command.argument)


def run_console(
    backend: Backend,
    *,
    ascii: bool = False,
    mono: bool = False,
    slow: bool = False,
    theme: str | None = None,
    mouse: bool = False,
) -> int:
    """Run the console until it is left, in the main thread. Returns the exit code: 0, or 128 and the signal.

    Raises what nobody caught in it, once the terminal is as it was.
    """
    mono = mono or "NO_COLOR" in os.environ
    if mono:
        os.environ["NO_COLOR"] = "1"  # the framework reads it when the application is made
    palette, words = choose_palette(theme, plain=mono or has_few_colours())
    app = ConsoleApp(backend, palette, is_ascii=ascii, slow=slow)
    app.words_at_start = words
    try:
        app.run(mouse=mouse)
    finally:
        backend.stop()
    if app.crash is not None:
        raise app.crash
    return app.return_code or 0
