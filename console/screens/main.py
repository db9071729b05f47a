"""The main screen: replicas, below them shards, hosts and journal, and one line that names what works now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import DescendantBlur, DescendantFocus, Key, Resize
from textual.screen import Screen
from textual.widgets import Input

from backend.api import FleetState, JournalLine, ReplicaView
from console.actions import BY_KEY, Selection
from console.render.bars import banner_words, footer_line, header_line, message_line, rule_line
from console.render.cells import Look, Table, cell, line
from console.render.hosts import host_table
from console.render.replicas import empty_words, replica_cells, replica_columns
from console.render.shards import shard_table
from console.screens.prompt_line import PromptLine
from console.screens.rows import RowMemory
from console.widgets.grid import Grid
from console.widgets.journal import Journal
from console.widgets.lines import LineView

if TYPE_CHECKING:
    from console.app import ConsoleApp

WIDE = 120
"""From this many columns on, hosts, shards and journal stand side by side and generations are whole."""


class MainScreen(Screen[None], inherit_bindings=False):
    """Panels over one fleet state. It computes nothing: render/ says what, the widgets say where."""

    def __init__(self, painter: Any) -> None:
        super().__init__()
        self._painter = painter
        self._replica_rows = RowMemory(replica_cells)
        self._message: tuple[str, str] | None = None
        self._lower_shows = "shards"
        self._seen_hosts: object = None
        self._seen_replica: object = None
        self._second = -1

    @property
    def console(self) -> ConsoleApp:
        """The application, by its own type."""
        return cast("ConsoleApp", self.app)

    def compose(self) -> ComposeResult:
        """Everything that the first frame needs; nothing waits for a host."""
        paint = self._painter
        yield LineView(paint, id="header", fill="header")
        yield LineView(paint, id="banner", fill="banner")
        with Vertical(id="upper"):
            yield Grid(paint, id="replicas")
        with Horizontal(id="lower"):
            with Vertical(id="hosts-panel"):
                yield LineView(paint, id="hosts-rule", classes="rule")
                yield Grid(paint, id="hosts")
            with Vertical(id="shards-panel"):
                yield LineView(paint, id="shards-rule", classes="rule")
                yield Grid(paint, id="shards")
            with Vertical(id="journal-panel"):
                yield LineView(paint, id="journal-rule", classes="rule")
                yield Journal(paint, id="journal")
        yield LineView(paint, id="footer")
        yield PromptLine(id="prompt")

    def on_mount(self) -> None:
        """The replicas have the keys."""
        self.query_one("#banner", LineView).display = False
        self.query_one(PromptLine).display = False
        self.query_one("#replicas", Grid).set_table(Table(replica_columns(Look()), (), "Asking every host."))
        self.query_one("#replicas", Grid).focus()
        self._arrange()

    # --- what the panels show -------------------------------------------------------------------------------

    @property
    def is_wide(self) -> bool:
        """Hosts, shards and journal stand side by side."""
        return self.app.size.width >= WIDE

    def selection(self) -> Selection:
        """What the cursors stand on, and which panel has the keys."""
        pane = self._pane()
        return Selection(
            replica=self.query_one("#replicas", Grid).cursor_key,
            node_id=self.query_one("#shards", Grid).cursor_key if pane == "shards" else None,
            host=self.query_one("#hosts", Grid).cursor_key if pane == "hosts" else None,
            pane="lower" if pane in ("shards", "hosts") else pane,
        )

    def _pane(self) -> str:
        focused = self.focused
        if focused is not None and focused.id in ("shards", "hosts", "journal"):
            return focused.id
        return "replicas"

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The fleet has another state, or a second has passed. Only what differs is drawn."""
        self._draw_bars(state, look)
        if state is None:
            return
        rows = self._replica_rows.rows(sorted(state.replicas.items()), look, _moves_by_itself)
        self.query_one("#replicas", Grid).set_table(Table(replica_columns(look), rows, empty_words(state)))
        self._draw_shards(state, look)
        second = int(look.now) // 5
        if self._seen_hosts is not state.hosts or second != self._second:
            self._seen_hosts, self._second = state.hosts, second
            self.query_one("#hosts", Grid).set_table(host_table(state, look))
        self._draw_rules(state, look)
        self._draw_footer(state)

    def _draw_bars(self, state: FleetState | None, look: Look) -> None:
        self.query_one("#header", LineView).set_lines([header_line(state, look, self.app.size.width)])
        words = banner_words(state, self.console.stamp(), look)
        banner = self.query_one("#banner", LineView)
        banner.display = bool(words)
        banner.set_lines([line(cell(f" {words}", "banner"))])

    def _draw_shards(self, state: FleetState, look: Look) -> None:
        self.query_one("#shards", Grid).set_table(shard_table(self._selected(state), look))

    def _selected(self, state: FleetState) -> ReplicaView | None:
        key = self.query_one("#replicas", Grid).cursor_key
        return next((view for view in state.replicas.values() if view.id == key), None)

    def _draw_rules(self, state: FleetState, look: Look) -> None:
        view = self._selected(state)
        pane = self._pane()
        shards = "shards" if view is None else view.id
        self._rule("shards", shards, look, pane, note="" if view is None else view.endpoint)
        self._rule("hosts", "hosts", look, pane)
        journal = self.query_one(Journal)
        title = "journal, all hosts, following" if journal.is_following else "journal, standing still"
        note = f"+{journal.new_count} new, F follows" if not journal.is_following else ""
        self._rule("journal", title, look, pane, note=note)

    def _rule(self, name: str, title: str, look: Look, pane: str, *, note: str = "") -> None:
        panel = self.query_one(f"#{name}-panel")
        if not panel.display:
            return
        widget = self.query_one(f"#{name}")
        if isinstance(widget, Grid | Journal) and widget.filter_text:
            title = f"{title}, only {widget.filter_text}"
        if isinstance(widget, Grid) and widget.hidden_rows:
            note = f"{len(widget.rows)} rows" + (f"  {note}" if note else "")
        bar = self.query_one(f"#{name}-rule", LineView)
        width = bar.size.width or self.app.size.width
        bar.set_lines([rule_line(title, look, width, note=note, focused=pane == name)])

    def _draw_footer(self, state: FleetState | None) -> None:
        footer = self.query_one("#footer", LineView)
        width = self.app.size.width
        if self._message is not None:
            words, style = self._message
            footer.set_lines([message_line(words, style, width)])
            return
        if not self.is_current:
            footer.set_lines(
                [
                    line(
                        cell(" tab", "key"),
                        cell(" fields  ", "footer"),
                        cell("j k", "key"),
                        cell(" scroll  ", "footer"),
                        cell("esc", "key"),
                        cell(" closes", "footer"),
                    )
                ]
            )
            return
        grid = self.query_one("#replicas", Grid)
        bar = footer_line(state, self.selection(), width)
        if grid.filter_text:
            bar = line(cell(f" only {grid.filter_text} ", "state.warn"), *bar)
        footer.set_lines([bar])

    def take_journal(self, lines: tuple[JournalLine, ...], look: Look) -> None:
        """Records that arrived."""
        journal = self.query_one(Journal)
        journal.look = look
        journal.extend(lines)

    def journal_position(self) -> int:
        """The index of the newest record on this screen."""
        return self.query_one(Journal).last_index

    def visible_journal(self) -> Sequence[JournalLine]:
        """The records that are on the screen now."""
        return self.query_one(Journal).visible_lines()

    def on_screen_suspend(self) -> None:
        """A dialog has the keys."""
        self._draw_footer(self.console.state)

    def on_screen_resume(self) -> None:
        """The dialog is gone."""
        self._draw_footer(self.console.state)

    def say(self, words: str, style: str) -> None:
        """One sentence in the place of the keys, until the next key."""
        self._message = (words, style)
        self._draw_footer(self.console.state)

    # --- keys -----------------------------------------------------------------------------------------------

    def on_key(self, event: Key) -> None:
        """Every key goes to the registry, and from there to the one dispatch point."""
        event.stop()
        if self._message is not None:
            self._message = None
            self._draw_footer(self.console.state)
        action = BY_KEY.get(event.key)
        if action is not None:
            self.console.dispatch(action.id)

    def on_grid_moved(self, event: Grid.Moved) -> None:
        """Another replica is selected: its shards, and what can be done with it."""
        if event.grid.id == "replicas":
            self.refresh_state(self.console.state, self.console.look())
        else:
            self._draw_footer(self.console.state)

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
        for grid in self.query(Grid):
            grid.refresh_cursor()
        if self.console.state is not None:
            self._draw_rules(self.console.state, self.console.look())
            self._draw_footer(self.console.state)

    def on_resize(self, event: Resize) -> None:
        """Another size: other panels, other widths."""
        self._arrange()
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        self.refresh_state(self.console.state, self.console.look())

    def _arrange(self) -> None:
        wide = self.is_wide
        self.set_class(wide, "wide")
        self._replica_rows.forget()
        self.query_one("#hosts-panel").display = wide or self._lower_shows == "hosts"
        self.query_one("#shards-panel").display = wide or self._lower_shows == "shards"

    # --- what actions do here -------------------------------------------------------------------------------

    def switch_lower(self) -> None:
        """Shards or hosts in the lower panel; both are there on a wide screen, and then hosts get the keys."""
        if self.is_wide:
            self.query_one("#hosts", Grid).focus()
            return
        had_keys = self._pane() in ("shards", "hosts")
        self._lower_shows = "hosts" if self._lower_shows == "shards" else "shards"
        self._arrange()
        if had_keys:
            self.query_one(f"#{self._lower_shows}", Grid).focus()
        self.call_after_refresh(self._redraw)

    def focus_pane(self, step: int) -> None:
        """Give the keys to the next panel that is shown."""
        panes = ["replicas"]
        panes += [name for name in ("hosts", "shards", "journal") if self.query_one(f"#{name}-panel").display]
        at = panes.index(self._pane()) if self._pane() in panes else 0
        self.query_one(f"#{panes[(at + step) % len(panes)]}").focus()

    def move(self, action: str) -> None:
        """Move in the panel that has the keys."""
        widget = self.query_one(f"#{self._pane()}")
        if isinstance(widget, Grid | Journal):
            step = widget.move_cursor if isinstance(widget, Grid) else widget.scroll_by
            moves = {
                "down": lambda: step(1),
                "up": lambda: step(-1),
                "page-down": lambda: widget.move_page(1),
                "page-up": lambda: widget.move_page(-1),
                "first": lambda: widget.move_to_end(first=True),
                "last": lambda: widget.move_to_end(first=False),
            }
            moves[action]()

    def toggle_follow(self) -> None:
        """The journal stands still, or follows again."""
        self.query_one(Journal).toggle_follow()

    def select_replica(self, replica: str) -> bool:
        """Put the cursor on a replica; False when it is not shown."""
        return self.query_one("#replicas", Grid).select(replica)

    def set_filter(self, text: str) -> None:
        """Filter the panel that has the keys."""
        widget = self.query_one(f"#{self._pane()}")
        if isinstance(widget, Grid | Journal):
            widget.set_filter(text)
        self._redraw()

    def ask(self, kind: str) -> None:
        """Open the line at the bottom for a filter or a command."""
        self.query_one("#footer").display = False
        widget = self.query_one(f"#{self._pane()}")
        text = widget.filter_text if kind == "filter" and isinstance(widget, Grid | Journal) else ""
        self.query_one(PromptLine).open(kind, text, widget)

    def on_input_changed(self, event: Input.Changed) -> None:
        """A filter works while it is typed."""
        prompt = self.query_one(PromptLine)
        if prompt.kind == "filter" and prompt.display and isinstance(prompt.return_to, Grid | Journal):
            prompt.return_to.set_filter(event.value)
            self._redraw()

    def on_prompt_line_done(self, event: PromptLine.Done) -> None:
        """The line is closed; a command goes to the registry."""
        self.query_one("#footer").display = True
        event.return_to.focus()
        if event.kind == "command" and event.text:
            self.console.run_command(event.text)
        elif event.kind == "filter" and event.text is None and isinstance(event.return_to, Grid | Journal):
            event.return_to.set_filter("")
        self._redraw()


def _moves_by_itself(view: ReplicaView, look: Look) -> bool:
    """Its row changes though the view is the same: time runs on a drain, and old values say their age."""
    return view.drain is not None or (view.measured_at > 0 and look.now - view.measured_at > 10)
