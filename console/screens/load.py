"""Load: choose a model, read the plan, confirm exactly that plan. A refused plan cannot be confirmed."""

from __future__ import annotations

from textual.app import ComposeResult

from backend.api import Answer, FleetState, MakePlan, Plan, StartLoad
from console.actions import Danger
from console.render.catalog import choice_table
from console.render.cells import Look, wrapped
from console.render.plan import plan_lines, short
from console.screens.dialog import CANCEL, Dialog
from console.screens.pages import move_in_grid, start
from console.widgets.fields import Choice
from console.widgets.grid import Grid
from console.widgets.lines import LineView

_PLANNING = "Planning: every host is asked what it has."


class ChooseModel(Dialog):
    """Every model and profile of the catalog; enter plans the one under the cursor."""

    is_tall = True

    def __init__(self) -> None:
        super().__init__((CANCEL, Choice("plan", "i", "plan it (enter)")))

    def title_words(self) -> str:
        """What is asked."""
        return "load: which model, in which shape?"

    def body(self) -> ComposeResult:
        """What is wrong with the catalog, then a table of its models and profiles."""
        yield LineView(self.painter, id="catalog-words", classes="lines")
        grid = Grid(self.painter, id="models")
        grid.add_class("fill")
        yield grid

    def opened(self) -> None:
        """The table has the keys: choosing does nothing yet but plan."""
        self.set_focus(self.query_one(Grid))

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """Fill the table again."""
        if state is not None:
            words = state.catalog_words
            self.show_lines("#catalog-words", wrapped(words, self.text_width, 1, "state.warn") if words else [])
            self.query_one(Grid).set_table(choice_table(state))

    def other_key(self, key: str) -> None:
        """Move in the table, or plan what is under the cursor."""
        if key == "enter":
            self._plan()
        else:
            move_in_grid(self.query_one(Grid), key)

    def taken(self, choice: Choice) -> None:
        """Plan what is under the cursor."""
        self._plan()

    def _plan(self) -> None:
        target = self.query_one(Grid).cursor_key
        if target is not None:
            self.chosen(target)

    def chosen(self, target: str) -> None:
        """``MODEL:PROFILE`` was chosen."""
        self.app.switch_screen(LoadDialog(target))


class LoadDialog(Dialog):
    """One plan, from asking for it to starting it."""

    danger: Danger = "write"
    is_tall = True

    def __init__(self, target: str) -> None:
        super().__init__()
        self._target = target
        self._plan: Plan | None = None
        self._words = _PLANNING
        self._shows_derivation = False

    def title_words(self) -> str:
        """The target, and the plan's digest once there is one."""
        return f"load {self._target}" + (f"   plan {short(self._plan.digest)}" if self._plan else "")

    def body(self) -> ComposeResult:
        """The plan as lines that scroll."""
        yield LineView(self.painter, id="body", classes="fill")

    def opened(self) -> None:
        """Ask for the plan at once: planning changes nothing."""
        self.ask(MakePlan(target=self._target), self._planned)

    def _planned(self, answer: Answer) -> None:
        if not self.stands:
            return
        self._plan = answer.plan
        self._words = "" if answer.plan is not None else (answer.words or "No plan came back, and no reason either.")
        self.show_title()
        self.choices.set_choices(self._choices_now())
        self._rewrite()

    def _choices_now(self) -> tuple[Choice, ...]:
        if self._plan is None:
            return (CANCEL,)
        explain = Choice("why", "b", "hide the derivation" if self._shows_derivation else "derivation of the bounds")
        if self._plan.is_refused:
            refusals = sum(1 for finding in self._plan.findings if finding.is_refusal)
            return (CANCEL, Choice("load", "y", f"Load refused: {refusals}", enabled=False), explain)
        warnings = sum(1 for finding in self._plan.findings if finding.severity == "warn")
        label = f"Load, {warnings} warned" if warnings else "Load"
        return (CANCEL, Choice("load", "y", label), explain)

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The plan does not move; what the hosts have free does."""
        if self._plan is not None:
            lines = plan_lines(self._plan, state, look, self.text_width, derivation=self._shows_derivation)
        else:
            lines = wrapped(self._words, self.text_width, 1, "alarm" if self._words != _PLANNING else "plain")
        self.show_lines("#body", lines)

    def taken(self, choice: Choice) -> None:
        """Start exactly the plan that was read, or show where its bounds come from."""
        if choice.id == "why":
            self._shows_derivation = not self._shows_derivation
            self.choices.set_choices(self._choices_now())
            self._rewrite()
            return
        plan = self._plan
        if plan is None or plan.is_refused:
            return
        start(self, StartLoad(plan=plan, confirmed=plan.digest), f"load {plan.replica}")
