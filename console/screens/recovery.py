"""The recovery of a p4 agent: of which host, what would be done and lost, a typed confirmation, and then its steps."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import ModalScreen
from textual.widgets import Input

from backend.api import Answer, FleetState, PlanRecovery, RecoveryPlan, StartRecovery
from console.actions import Danger
from console.render.cells import Line, Look, line, wrapped
from console.render.recoverable import Place, place_lines, place_table, recoverable
from console.render.recovery import moved_words, recovery_lines
from console.screens.dialog import CANCEL, CLOSE, Dialog
from console.screens.drain import DEFAULT_DEADLINE
from console.screens.pages import OperationPage, move_in_grid
from console.spans import SPAN_KEYS, SPAN_WORDS, span_within
from console.widgets.fields import Choice, Field, Toggle, TypedName
from console.widgets.grid import Grid
from console.widgets.lines import LineView

_AGAIN = Choice("again", "p", "plan again")
_TO_THE_TOP = -1_000_000
_MEASURING = "Measuring: its processes, sockets, stages, journal and memory. Nothing is touched."
_SENT = "Confirmed. The host is measured once more; nothing begins while anything differs from this plan."


def recovery_screen(state: FleetState, name: str) -> ModalScreen[None]:
    """What opens for a host or a replica: the recovery under way, the plan, or the question of which host."""
    places = recoverable(state, name)
    if isinstance(places, str) or len(places) != 1:
        return ChooseAgent(name)
    return _screen_of(places[0])


def _screen_of(place: Place) -> ModalScreen[None]:
    if place.under_way:
        return OperationPage(place.under_way, f"recover {place.host}")
    return RecoveryDialog(place.host)


class ChooseAgent(Dialog):
    """The p4 agents under one replica; enter measures the one under the cursor, which changes nothing."""

    is_tall = True

    def __init__(self, replica: str) -> None:
        super().__init__((CANCEL, Choice("plan", "i", "plan it (enter)")))
        self._replica = replica
        self._places: tuple[Place, ...] = ()

    def title_words(self) -> str:
        """What is asked."""
        return f"recover {self._replica}: the p4 agent of which host?"

    def body(self) -> ComposeResult:
        """A table of its hosts, and what comes of the one under the cursor."""
        grid = Grid(self.painter, id="agents")
        grid.add_class("fill")
        yield grid
        yield LineView(self.painter, id="effect", classes="lines")

    def opened(self) -> None:
        """The table has the keys: choosing only measures."""
        self.set_focus(self.query_one(Grid))

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """Fill the table again."""
        found = recoverable(state, self._replica) if state is not None else ()
        self._places = () if isinstance(found, str) else found
        self.query_one(Grid).set_table(place_table(self._places))
        gone = wrapped(f"Not possible: {found}.", self.text_width, 1, "state.warn") if isinstance(found, str) else []
        self.show_lines("#effect", gone or place_lines(self._under_cursor, self.text_width))

    @property
    def _under_cursor(self) -> Place | None:
        key = self.query_one(Grid).cursor_key
        return next((each for each in self._places if each.host == key), None)

    def other_key(self, key: str) -> None:
        """Move in the table, or plan what is under the cursor."""
        if key == "enter":
            self._plan()
        else:
            move_in_grid(self.query_one(Grid), key)
            self._rewrite()

    def taken(self, choice: Choice) -> None:
        """Plan what is under the cursor."""
        self._plan()

    def _plan(self) -> None:
        place = self._under_cursor
        if place is not None and place.can_be_opened:
            self.app.switch_screen(_screen_of(place))


class RecoveryDialog(Dialog):
    """Recover the p4 agent of one host, which is fixed when the dialog opens. Exactly the plan that was read is done.

    The host's name is typed behind every new plan; where the journal has to be moved aside, that is approved with a
    reason as well.
    """

    danger: Danger = "danger"
    is_tall = True

    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host
        self._plan: RecoveryPlan | None = None
        self._words, self._style = _MEASURING, "plain"
        self._asked = 0
        self._is_sent = False

    def title_words(self) -> str:
        """Whom, and the plan's digest once there is one."""
        return f"RECOVER {self._host}" + (f"   plan {self._plan.digest[:8]}" if self._plan is not None else "")

    def body(self) -> ComposeResult:
        """The plan as lines that scroll, and what has to be said before it begins."""
        yield LineView(self.painter, id="body", classes="fill")
        yield from self.labelled(
            "rings there",
            Toggle(self.painter, (("drain", "drain first"), ("cut", "cut")), id="leave"),
            Field(DEFAULT_DEADLINE, id="deadline", restrict=SPAN_KEYS),
        )
        approvals = (("", "not approved"), ("move", "move it aside, delete nothing"))
        yield from self.labelled("its journal", Toggle(self.painter, approvals, id="move"), id="row-move")
        yield from self.labelled("why", Field(id="why", hint="the reason, kept with every step"))
        yield from self.labelled("to confirm", TypedName(id="name", hint=f"type {self._host}"))

    def opened(self) -> None:
        """Measure at once: that changes nothing."""
        self._ask()

    # --- the plan -------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask for a plan; what was typed for the one before is taken away."""
        self._plan, self._is_sent = None, False
        self._asked += 1
        self.query_one("#name", TypedName).value = ""
        seconds = self._seconds()
        if seconds is None:
            self._say(f"The deadline must be a time {SPAN_WORDS}.", "alarm")
            return
        self._say(_MEASURING)
        asked, leave = self._asked, self.query_one("#leave", Toggle).value
        request = PlanRecovery(host=self._host, leave="cut" if leave == "cut" else "drain", deadline_seconds=seconds)
        self.ask(request, lambda answer: self._planned(answer, asked))

    def _planned(self, answer: Answer, asked: int) -> None:
        if not self.stands or asked != self._asked:
            return
        self._plan = answer.value.get("recovery")
        if self._plan is None:
            self._say(answer.words or "No plan came back, and no reason either.", "alarm")
        else:
            self._say("")

    def _seconds(self) -> float | None:
        return span_within(self.query_one("#deadline", Field).value)

    def _say(self, words: str, style: str = "plain") -> None:
        self._words, self._style = words, style
        self.show_title()
        self.query_one("#body", LineView).scroll_by(_TO_THE_TOP)
        self._rewrite()

    # --- what is shown --------------------------------------------------------------------------------------

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The plan does not move; what it stands on may, and that is said with both values."""
        plan, width = self._plan, self.text_width
        lines: list[Line] = wrapped(self._words, width, 1, self._style) if self._words else []
        moved = moved_words(plan, state) if plan is not None and state is not None and not self._is_sent else []
        for words in moved:
            lines += wrapped(f"The plan no longer holds: {words}. Plan again.", width, 1, "alarm")
        if plan is not None:
            lines += ([line("")] if lines else []) + recovery_lines(plan, look, width, stakes_first=True)
        self.query_one("#row-move").display = plan is not None and plan.moves_journal
        self.query_one("#deadline").display = self.query_one("#leave", Toggle).value == "drain"
        self.choices.set_choices(self._choices_now(is_moved=bool(moved)))
        self.show_lines("#body", lines)

    def _choices_now(self, *, is_moved: bool) -> tuple[Choice, ...]:
        plan = self._plan
        if self._is_sent:
            return (CLOSE,)
        if plan is None:
            return (CANCEL,) if self._words == _MEASURING else (CANCEL, _AGAIN)
        if plan.is_refused or is_moved:
            return (CANCEL, Choice("recover", "", "Recover (refused)", enabled=False), _AGAIN)
        missing = self._missing(plan)
        label = f"Recover, once {missing[0]}" if missing else "Recover (enter in the name)"
        return (CANCEL, Choice("recover", "", label, enabled=not missing, style="danger"), _AGAIN)

    def _missing(self, plan: RecoveryPlan) -> list[str]:
        """What has to be said before it may begin, in the order of the fields."""
        missing = []
        if self._seconds() != plan.deadline_seconds and plan.leave == "drain":
            missing.append("planned for that time (p)")
        if plan.moves_journal and self.query_one("#move", Toggle).value != "move":
            missing.append("its move is approved")
        elif plan.moves_journal and not self._why:
            missing.append("why is said")
        if self.query_one("#name", TypedName).value != self._host:
            missing.append(f"{self._host} is typed")
        return missing

    @property
    def _why(self) -> str:
        return self.query_one("#why", Field).value.strip()

    # --- keys -----------------------------------------------------------------------------------------------

    def on_input_changed(self, event: Input.Changed) -> None:
        """Something more may be said."""
        self._rewrite()

    def on_toggle_changed(self, event: Toggle.Changed) -> None:
        """Drained or cut makes another plan; an approval is only shown."""
        plan, leave = self._plan, self.query_one("#leave", Toggle).value
        if not self._is_sent and (plan is None or plan.leave != leave):
            self._ask()
        else:
            self._rewrite()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter behind the whole name confirms; behind another time it plans for that; elsewhere it goes on."""
        event.stop()
        plan = self._plan
        if event.input.id == "name":
            self._start()
        elif event.input.id == "deadline" and plan is not None and self._seconds() != plan.deadline_seconds:
            self._ask()
        else:
            self.focus_next()

    def taken(self, choice: Choice) -> None:
        """Plan again, or start exactly the plan that was read."""
        if choice.id == _AGAIN.id:
            self._ask()
        else:
            self._start()

    def _start(self) -> None:
        plan, state = self._plan, self.console.state
        if plan is None or state is None or self._is_sent or plan.is_refused:
            return
        if self._missing(plan) or moved_words(plan, state):
            return
        request = StartRecovery(plan=plan, confirmed=plan.digest, move_journal=plan.moves_journal, why=self._why)
        if self.ask(request, self._started) is None:
            return
        self._is_sent = True
        self.set_focus(self.choices)
        self._say(_SENT)

    def _started(self, answer: Answer) -> None:
        """It runs in a process of its own, and is followed; or it was refused, and nothing was touched."""
        if answer.exit_code == 0:
            if self.stands and self.is_current:
                self.app.switch_screen(OperationPage(answer.op_id, f"recover {self._host}"))
            else:
                self.console.say(f"the recovery of {self._host} has begun: {answer.op_id}; o follows it")
            return
        words = answer.words or "It was refused without a word."
        if not self.stands:
            self.console.say(words, "message.alarm")
            return
        self._is_sent, self._plan = False, None
        self.query_one("#name", TypedName).value = ""
        self._say(words, "alarm")
