"""Adoption: who reports what, what is unwanted or foreign; a stop, or an adoption, behind a confirmation."""

from __future__ import annotations

from textual.app import ComposeResult

from backend.api import AdoptionDocument, FleetState, ForeignFound, StartAdopt, Stoppable, classify
from console.actions import Danger
from console.render.adoption import heard_lines, rest_lines, stoppable_lines, who_words
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.foreign import foreign_lines
from console.screens.adopt_foreign import ChooseProfile
from console.screens.dialog import CANCEL, CLOSE, Dialog
from console.screens.pages import start
from console.widgets.fields import Choice
from console.widgets.lines import LineView

_STEPS = {"down": 1, "j": 1, "up": -1, "k": -1}


class AdoptionScreen(Dialog):
    """The adoption document of this moment; the arrows move between what could be stopped or adopted, or scroll."""

    is_tall = True

    def __init__(self) -> None:
        super().__init__((CLOSE,))
        self._chosen: str | None = None
        self._document: AdoptionDocument | None = None
        self._of: FleetState | None = None
        self._span = (0, 0)

    def title_words(self) -> str:
        """What it shows."""
        return "adoption"

    def body(self) -> ComposeResult:
        """The count of reporters, which stays, and the document, which scrolls."""
        yield LineView(self.painter, id="counts", classes="lines")
        yield LineView(self.painter, id="body", classes="fill")

    @property
    def can_move(self) -> bool:
        """The cursor moves between what could be stopped or adopted; the document scrolls."""
        return bool(_choosable(self._document)) or super().can_move

    @property
    def _under_cursor(self) -> Stoppable | ForeignFound | None:
        found = _choosable(self._document)
        return next((each for each in found if each.id == self._chosen), found[0] if found else None)

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """Work the document out again when the state is another one; the cursor stays on its shard."""
        if state is None:
            self.show_lines("#counts", [line(" The backend has not reported yet.")])
            return
        if state is not self._of or self._document is None:
            self._document, self._of = classify(state, look.now_ms), state
        document, chosen = self._document, self._under_cursor
        self._chosen = chosen.id if chosen is not None else None
        self.show_lines("#counts", heard_lines(document, self.text_width))
        self.choices.set_choices((CLOSE,) if state.read_only else (CLOSE, *_choices_for(chosen)))
        out: list[Line] = [line("")]
        top = bottom = 0
        for each in _choosable(document):
            is_chosen = each.id == self._chosen
            top = len(out) if is_chosen else top
            if isinstance(each, ForeignFound):
                out += foreign_lines(each, look, self.text_width, is_chosen=is_chosen)
            else:
                out += stoppable_lines(each, look, self.text_width, is_chosen=is_chosen)
            bottom = len(out) if is_chosen else bottom
        self.show_lines("#body", [*out, *rest_lines(document, look, self.text_width)])
        self._span = (top, bottom)

    def taken(self, choice: Choice) -> None:
        """Ask before the shard under the cursor is stopped; ask what a foreign engine is before it is adopted."""
        chosen = self._under_cursor
        if self._document is not None and isinstance(chosen, Stoppable):
            self.app.push_screen(StopDialog(self._document, chosen))
        elif isinstance(chosen, ForeignFound):
            self.app.push_screen(ChooseProfile(chosen))

    def other_key(self, key: str) -> None:
        """Move the cursor; past the last of what could be stopped or adopted, scroll."""
        ids = [each.id for each in _choosable(self._document)]
        step = _STEPS.get(key, 0)
        at = ids.index(self._chosen) + step if self._chosen in ids else -1
        if not step or not 0 <= at < len(ids):
            super().other_key(key)
            return
        self._chosen = ids[at]
        self._rewrite()
        self.query_one("#body", LineView).keep_in_sight(*self._span)


def _choosable(document: AdoptionDocument | None) -> tuple[Stoppable | ForeignFound, ...]:
    """What the cursor moves over."""
    return () if document is None else (*document.stoppable, *document.foreign)


def _choices_for(chosen: Stoppable | ForeignFound | None) -> tuple[Choice, ...]:
    if isinstance(chosen, Stoppable):
        return (Choice("stop", "s", "stop this one"),)
    return (Choice("adopt", "a", "adopt this one"),) if chosen is not None else ()


class StopDialog(Dialog):
    """Stop one stray or unclaimed shard, which is fixed when the dialog opens: pid, start, generation, bytes held."""

    danger: Danger = "danger"

    def __init__(self, document: AdoptionDocument, shard: Stoppable) -> None:
        super().__init__((CANCEL, _stop_choice(enabled=False)))
        self._document = document
        self._shard = shard
        self._shown_silence = False
        self._now: AdoptionDocument | None = None
        self._of: FleetState | None = None

    def title_words(self) -> str:
        """What it stops."""
        return f"STOP {self._shard.kind} {self._shard.node_id} on {self._shard.host}"

    def body(self) -> ComposeResult:
        """Who it is, and what comes of it."""
        yield LineView(self.painter, id="effect", classes="lines")

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The shard may become another one, or wanted, while a person reads."""
        if state is not None and state is not self._of:
            self._now, self._of = classify(state, look.now_ms), state
        now = self._now
        found = next((each for each in now.stoppable if each.id == self._shard.id), None) if now else None
        is_same = found is not None and (found.kind, found.identity) == (self._shard.kind, self._shard.identity)
        out = [*wrapped(who_words(self._shard, look), self.text_width, 1, "value")]
        out += wrapped(self._shard.why, self.text_width, 1)
        if not is_same:
            out.append(line(cell(" It is not there like this any more: nothing is stopped.", "state.warn")))
        elif now is not None and now.silent:
            words = (
                f"Only {now.heard_words}: what stands on the others is not known. It is stopped despite the silence."
            )
            out += wrapped(words, self.text_width, 1, "alarm")
        if is_same:
            what = "node" if self._shard.address else "process"
            words = f"Its agent is read again first; another {what} in its place is left alone. The stop is final."
            if self._shard.address:
                words += " It is unloaded by its engine's own agent, which refuses while it is busy and is asked again."
            out += wrapped(words, self.text_width, 1, "alarm")
        self._shown_silence = now is not None and bool(now.silent)
        self.show_lines("#effect", out)
        self.choices.set_choices((CANCEL, _stop_choice(enabled=is_same)))

    def taken(self, choice: Choice) -> None:
        """Stop it, and follow that."""
        request = StartAdopt(
            document=self._document,
            confirmed=self._document.digest,
            only=self._shard.id,
            despite_silence=self._shown_silence,
        )
        start(self, request, f"stop {self._shard.id}")


def _stop_choice(*, enabled: bool) -> Choice:
    return Choice("stop", "y", "Stop", enabled=enabled, style="danger")
