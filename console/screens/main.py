"""The main screen: replicas, below them shards, hosts and journal, and one line that names what works now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import DescendantBlur, DescendantFocus, Key, Resize
from textual.screen import Screen
from textual.widgets import Input

from backend.api import FleetState, HostView, JournalLine, ReplicaId, ReplicaView
from console.actions import BY_KEY, Selection
from console.render.cells import Line, Look, Table
from console.render.fitting import lower_height, upper_height
from console.render.hosts import COLUMNS as HOST_COLUMNS
from console.render.hosts import NO_HOST, ProcessKey, host_cells, of_the_fleet
from console.render.replicas import (
    empty_words,
    held_replicas,
    panel_note,
    reason_of,
    replica_cells,
    replica_columns,
)
from console.render.shards import shard_table
from console.screens.dialog import Dialog
from console.screens.frame import Frame
from console.screens.prompt_line import PromptLine
from console.screens.rows import RowMemory
from console.widgets.grid import Grid
from console.widgets.journal import Journal
from console.widgets.paint import Painter

if TYPE_CHECKING:
    from console.app import ConsoleApp

_LOWER = ("hosts", "shards", "journal")
WIDE = 120
"""From this many columns on, hosts stand beside shards and generations are whole."""
WIDEST = 190
"""From this many columns on, hosts, shards and journal stand side by side."""


class MainScreen(Screen[None], inherit_bindings=False):
    """Panels over one fleet state. It computes nothing: render/ says what, the widgets say where."""

    def __init__(self, painter: Painter) -> None:
        super().__init__()
        self._frame = Frame(painter, _LOWER)
        self._prompt = PromptLine(id="prompt")
        self._grids = {name: Grid(painter, id=name, unfolds=True) for name in ("replicas", "hosts", "shards")}
        self._journal = Journal(painter, id="journal")
        self._upper, self._lower = Vertical(id="upper"), Horizontal(id="lower")
        self._panels = {name: Vertical(id=f"{name}-panel") for name in _LOWER}
        self._held: dict[str, str] = {}
        self._replica_rows = RowMemory(self._replica_cells)
        self._ours: frozenset[ProcessKey] = frozenset()
        self._host_rows = RowMemory(self._host_cells)
        self._lower_chosen = ""
        self._has_replicas = False
        self._upper_height = self._lower_height = 0

    @property
    def console(self) -> ConsoleApp:
        """The application, by its own type."""
        return cast("ConsoleApp", self.app)

    def compose(self) -> ComposeResult:
        """Everything that the first frame needs; nothing waits for a host."""
        yield self._frame.header
        yield self._frame.banner
        yield self._frame.trouble
        with self._upper:
            yield self._grids["replicas"]
        with self._lower:
            for name, panel in self._panels.items():
                with panel:
                    yield self._frame.rules[name]
                    yield self._pane_widget(name)
        yield self._frame.footer
        yield self._prompt

    def on_mount(self) -> None:
        """The replicas have the keys; when this is drawn, the backend may start."""
        self._frame.banner.display = self._frame.trouble.display = False
        self._prompt.display = False
        self._grids["replicas"].set_table(Table(replica_columns(Look()), (), "Asking every host."))
        self.set_focus(self._grids["replicas"])
        self._arrange()
        self.call_after_refresh(self.console.start_backend)

    def _replica_cells(self, view: ReplicaView, look: Look) -> Line:
        return replica_cells(view, look, self._held.get(view.id, ""))

    def _host_cells(self, view: HostView, look: Look) -> Line:
        return host_cells(view, look, self._ours)

    def _pane_widget(self, name: str) -> Grid | Journal:
        return self._journal if name == "journal" else self._grids[name]

    # --- what the panels show -------------------------------------------------------------------------------

    @property
    def is_wide(self) -> bool:
        """Hosts stand beside shards, and generations are whole."""
        return self.app.size.width >= WIDE

    def selection(self) -> Selection:
        """What the cursors stand on, and which panel has the keys."""
        pane = self._pane()
        return Selection(
            replica=self._grids["replicas"].cursor_key,
            node_id=self._grids["shards"].cursor_key if pane == "shards" else None,
            host=self._grids["hosts"].cursor_key if pane == "hosts" else None,
            pane="lower" if pane in ("shards", "hosts") else pane,
        )

    def _pane(self) -> str:
        focused = self.focused
        if focused is not None and focused.id in ("shards", "hosts", "journal"):
            return focused.id
        return "replicas"

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The fleet has another state, or a second has passed. Only what differs is drawn."""
        self._frame.draw_top(state, self.console.stamp(), look, self.app.size.width)
        self._journal.look = look
        if state is None:
            return
        if self._has_replicas != bool(state.replicas):
            self._has_replicas = bool(state.replicas)
            self._lower_chosen = ""
            self._arrange()
        if (held := held_replicas(state)) != self._held:
            self._held = held
            self._replica_rows.forget()
        rows = self._replica_rows.rows(state.replicas.items(), look, _moves_by_itself)
        self._grids["replicas"].set_table(Table(replica_columns(look), rows, empty_words(state)))
        self._fit_upper(len(rows) + self._grids["replicas"].notes_height)
        self._draw_shards(state, look)
        if self._panels["hosts"].display:
            if (ours := of_the_fleet(state)) != self._ours:
                self._ours = ours
                self._host_rows.forget()
            hosts = self._host_rows.rows(state.hosts.items(), look, _host_ages)
            self._grids["hosts"].set_table(Table(HOST_COLUMNS, hosts, NO_HOST))
        is_said = self._panels["hosts"].display and self._grids["hosts"].is_whole
        self._frame.draw_trouble(state, look, self.app.size.width, is_said=is_said)
        self._fit_lower()
        self._draw_rules(state, look)
        self.draw_footer(state)

    def _fit_upper(self, rows: int) -> None:
        height = upper_height(rows, self.app.size.height)
        if height != self._upper_height:
            self._upper_height = height
            self._upper.styles.height = height

    def _fit_lower(self) -> None:
        """On a narrow screen the lower panel takes what its rows and words need, and leaves the journal its least."""
        shown = self._lower_shows()
        panel, grid = self._panels[shown], self._grids[shown]
        lines, room = len(grid.rows) + grid.notes_height, self._lower.size.height
        height = 0 if self.is_wide else lower_height(lines, room)
        if height != self._lower_height:
            self._lower_height = height
            if height:
                panel.styles.height = height
            else:
                panel.styles.clear_rule("height")

    def _draw_shards(self, state: FleetState, look: Look) -> None:
        self._grids["shards"].set_table(shard_table(self._selected(state), look))

    def _selected(self, state: FleetState) -> ReplicaView | None:
        key = self._grids["replicas"].cursor_key
        return None if key is None else state.replicas.get(ReplicaId(key))

    def _draw_rules(self, state: FleetState, look: Look) -> None:
        view = self._selected(state)
        pane = self._pane()
        shards = "shards" if view is None else view.id
        note, style = ("", "note") if view is None else panel_note(view)
        if view is not None and reason_of(view) and self._grids["replicas"].has_unfolded(view.id):
            note = ""  # it stands whole above
        self._rule("shards", shards, look, pane, note=note, note_style=style)
        self._rule("hosts", "hosts", look, pane)
        journal = self._journal
        title = "journal, all hosts, following" if journal.is_following else "journal, standing still"
        note = f"+{journal.new_count} new, F follows" if not journal.is_following else ""
        self._rule("journal", title, look, pane, note=note)

    def _rule(self, name: str, title: str, look: Look, pane: str, *, note: str = "", note_style: str = "note") -> None:
        if not self._panels[name].display:
            return
        widget = self._pane_widget(name)
        if widget.filter_text:
            title = f"{title}, only {widget.filter_text}"
        if isinstance(widget, Grid) and widget.hidden_rows:
            note = f"{len(widget.rows)} rows" + (f"  {note}" if note else "")
        width, focused = self.app.size.width, pane == name
        self._frame.draw_rule(name, title, look, width, note=note, focused=focused, note_style=note_style)

    def draw_footer(self, state: FleetState | None) -> None:
        """The line at the bottom: what was said last, else the keys that work now."""
        dialog = self.app.screen
        self._frame.draw_footer(
            state,
            self.selection(),
            self.console.look(),
            self.app.size.width,
            keys=dialog.footer() if isinstance(dialog, Dialog) else None,
            only=self._grids["replicas"].filter_text,
        )

    def take_journal(self, lines: tuple[JournalLine, ...]) -> None:
        """Records that arrived."""
        self._journal.extend(lines)

    def journal_position(self) -> int:
        """The index of the newest record on this screen."""
        return self._journal.last_index

    def visible_journal(self) -> Sequence[JournalLine]:
        """The records that are on the screen now."""
        return self._journal.visible_lines()

    def on_screen_suspend(self) -> None:
        """A dialog has the keys."""
        self.call_later(self._footer_again)

    def on_screen_resume(self) -> None:
        """The dialog is gone."""
        self.call_later(self._footer_again)

    def _footer_again(self) -> None:
        self.draw_footer(self.console.state)

    def say(self, words: str, style: str) -> None:
        """One sentence in the place of the keys, until the next key."""
        self._frame.say(words, style)
        self.draw_footer(self.console.state)

    # --- keys -----------------------------------------------------------------------------------------------

    def on_key(self, event: Key) -> None:
        """Every key goes to the registry, and from there to the one dispatch point."""
        if isinstance(self.focused, Input):
            return  # what is typed there is no action; the framework looks its bindings up when the key has bubbled
        event.stop()
        if self.app.screen is not self:
            return  # it was on its way here when a dialog opened: nobody meant it for either
        if self._frame.forget():
            self.draw_footer(self.console.state)
        action = BY_KEY.get(event.key)
        if action is not None:
            self.console.dispatch(action.id)

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Another replica is selected: its shards, and what can be done with it."""
        if event.grid.id == "replicas":
            self.refresh_state(self.console.state, self.console.look())
        else:
            self.draw_footer(self.console.state)

    def on_journal_changed(self, event: Journal.Changed) -> None:
        """It follows or not, or more is new."""
        if self.console.state is not None:
            self._draw_rules(self.console.state, self.console.look())

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Another panel has the keys."""
        self._focus_moved()

    def on_descendant_blur(self, event: DescendantBlur) -> None:
        """A panel gave the keys away."""
        self._focus_moved()

    def _focus_moved(self) -> None:
        for grid in self._grids.values():
            grid.refresh_cursor()
        if self.console.state is not None:
            self._draw_rules(self.console.state, self.console.look())
            self.draw_footer(self.console.state)

    def on_resize(self, event: Resize) -> None:
        """Another size: other panels, other widths."""
        self._arrange()
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        self.refresh_state(self.console.state, self.console.look())

    def _arrange(self) -> None:
        wide = self.is_wide
        self.set_class(wide, "wide")
        self.set_class(self.app.size.width >= WIDEST, "widest")
        self._replica_rows.forget()
        self._lower_height = 0
        for name in ("hosts", "shards"):
            self._panels[name].styles.clear_rule("height")
        self._panels["hosts"].display = wide or self._lower_shows() == "hosts"
        self._panels["shards"].display = wide or self._lower_shows() == "shards"

    def _lower_shows(self) -> str:
        """What a narrow screen has below: what was chosen, else hosts for as long as there is no replica."""
        return self._lower_chosen or ("shards" if self._has_replicas else "hosts")

    # --- what actions do here -------------------------------------------------------------------------------

    def switch_lower(self) -> None:
        """Shards or hosts in the lower panel; both are there on a wide screen, and then hosts get the keys."""
        if self.is_wide:
            self.set_focus(self._grids["hosts"])
            return
        had_keys = self._pane() in ("shards", "hosts")
        self._lower_chosen = "hosts" if self._lower_shows() == "shards" else "shards"
        self._arrange()
        if had_keys:
            self.set_focus(self._grids[self._lower_chosen])
        self.call_after_refresh(self._redraw)

    def focus_pane(self, step: int) -> None:
        """Give the keys to the next panel that is shown."""
        panes = ["replicas"]
        panes += [name for name in _LOWER if self._panels[name].display]
        at = panes.index(self._pane()) if self._pane() in panes else 0
        self.set_focus(self._pane_widget(panes[(at + step) % len(panes)]))

    def move(self, action: str) -> None:
        """Move in the panel that has the keys."""
        widget = self._pane_widget(self._pane())
        moves = {
            "down": lambda: widget.move_cursor(1),
            "up": lambda: widget.move_cursor(-1),
            "page-down": lambda: widget.move_page(1),
            "page-up": lambda: widget.move_page(-1),
            "first": lambda: widget.move_to_end(first=True),
            "last": lambda: widget.move_to_end(first=False),
        }
        moves[action]()

    def toggle_follow(self) -> None:
        """The journal stands still, or follows again."""
        self._journal.toggle_follow()

    def select_replica(self, replica: str) -> None:
        """Put the cursor on a replica, unless a filter hides it."""
        self._grids["replicas"].select(replica)

    def set_filter(self, text: str) -> None:
        """Filter the panel that has the keys."""
        self._pane_widget(self._pane()).set_filter(text)
        self._redraw()

    def ask(self, kind: str) -> None:
        """Open the line at the bottom for a filter or a command."""
        self._frame.footer.display = False
        widget = self._pane_widget(self._pane())
        text = widget.filter_text if kind == "filter" else ""
        self._prompt.open(kind, text, widget)

    def on_input_changed(self, event: Input.Changed) -> None:
        """A filter works while it is typed."""
        prompt = self._prompt
        if prompt.kind == "filter" and prompt.display and isinstance(prompt.return_to, Grid | Journal):
            prompt.return_to.set_filter(event.value)
            self._redraw()

    def on_prompt_line_done(self, event: PromptLine.Done) -> None:
        """The line is closed; a command goes to the registry."""
        self._frame.footer.display = True
        self.set_focus(event.return_to)
        if event.kind == "command" and event.text:
            self.console.run_command(event.text)
        elif event.kind == "filter" and event.text is None and isinstance(event.return_to, Grid | Journal):
            event.return_to.set_filter("")
        self._redraw()


def _moves_by_itself(view: ReplicaView, look: Look) -> bool:
    """Its row changes though the view is the same: time runs on a drain, and old values say their age."""
    return view.drain is not None or (view.measured_at > 0 and look.now - view.measured_at > 10)


def _host_ages(view: HostView, look: Look) -> bool:
    """A host that was not heard for a while says how old it is what stands in its row."""
    return view.heard_at > 0 and look.now - view.heard_at > 10
