"""The console driven by keys, over a stand-in for the backend's door."""

from __future__ import annotations

import msgspec
import pytest

from backend.contract.states import HostState, ReplicaState
from backend.contract.words import HostId
from backend.control.requests import (
    ChangeDrainRequest,
    LogRequest,
    MakePlan,
    Request,
    StartDrainRequest,
    StartLoad,
    StartUnload,
    TestRequest,
)
from backend.control.views import Answer
from console.screens.dialog import Dialog
from console.screens.drain import DrainView
from console.screens.main import MainScreen
from console.widgets.grid import Grid
from console.widgets.journal import Journal
from tests.console import worlds as w
from tests.console.driving import SIZES, Driver, running
from tests.console.stand_in import StandInDoor

HOSTILE = "[/x] [bold]no\x1b]52;c;AAAA\x07 \x9b31m \u202edcba"


def _door(*replicas: object, **changes: object) -> StandInDoor:
    return StandInDoor(w.fleet(*replicas, **changes))  # type: ignore[arg-type]


def _planner(*, refused: bool = False) -> StandInDoor:
    def answer(request: Request) -> Answer | None:
        return w.answer("", plan=w.plan(refused=refused)) if isinstance(request, MakePlan) else None

    return StandInDoor(w.fleet(w.replica()), answer)


@pytest.mark.parametrize("size", SIZES)
async def test_one_of_everything_stands_on_the_screen_at_every_size(size: tuple[int, int]) -> None:
    door = StandInDoor(w.busy_fleet())
    door.say(w.journal_line(words="rank 2 of its generation is gone"))
    async with running(door, size) as console:
        for words in ("PROD", "2/3 hosts", "1 drift", "draining", "recovering", "glm-2", "signal 9", "quit"):
            await console.see(words)
        assert max(len(each) for each in console.text().splitlines()) <= size[0]


async def test_an_empty_fleet_says_what_to_do() -> None:
    async with running(_door()) as console:
        await console.see("Nothing is loaded. L loads a model.")


async def test_with_every_host_down_the_screen_is_up_and_says_why() -> None:
    host = w.host("gpu-a", HostState.UNREACHABLE, words="ssh: connection timed out", facts=None)
    async with running(_door(hosts={HostId("gpu-a"): host})) as console:
        await console.see("No host answers")
        await console.see("ssh: connection timed out")
        await console.press("h")
        await console.see("No replica is selected")


async def test_the_cursor_stays_on_its_replica_when_rows_come_and_go() -> None:
    door = _door(w.replica("b-1"), w.replica("c-1"))
    async with running(door) as console:
        await console.press("j")
        grid = console.app.screen.query_one("#replicas", Grid)
        assert grid.cursor_key == "c-1"
        door.put(w.fleet(w.replica("a-1"), w.replica("b-1"), w.replica("c-1"), w.replica("d-1")))
        await console.see("a-1")
        assert grid.cursor_key == "c-1"
        door.put(w.fleet(w.replica("c-1")))
        await console.gone("b-1")
        assert grid.cursor_key == "c-1"


async def test_the_cursor_is_on_top_while_a_fleet_arrives_and_then_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("console.widgets.grid.ARRIVAL_SECONDS", 3600.0)
    door = _door(w.replica("c-1"))
    async with running(door) as console:
        grid = console.app.screen.query_one("#replicas", Grid)
        door.put(w.fleet(w.replica("b-1"), w.replica("c-1")))
        await console.see(">b-1")
        monkeypatch.setattr("console.widgets.grid.ARRIVAL_SECONDS", 0.0)
        door.put(w.fleet(w.replica("a-1"), w.replica("b-1"), w.replica("c-1")))
        await console.see("a-1")
        assert grid.cursor_key == "b-1"


async def test_a_cursor_that_was_moved_is_left_alone_while_a_fleet_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.widgets.grid.ARRIVAL_SECONDS", 3600.0)
    door = _door(w.replica("b-1"), w.replica("c-1"))
    async with running(door) as console:
        await console.press("j", "k")
        door.put(w.fleet(w.replica("a-1"), w.replica("b-1"), w.replica("c-1")))
        await console.see("a-1")
        await console.see(">b-1")


async def test_a_dialog_keeps_its_target_when_the_rows_below_move() -> None:
    door = _door(w.replica("b-1"))
    async with running(door) as console:
        await console.press("D")
        door.put(w.fleet(w.replica("a-1")))
        await console.see("b-1 is no longer there")
        await console.press("y")
        await console.pilot.pause(0.3)
        assert door.submitted == []


async def test_load_plans_first_focuses_cancel_and_starts_exactly_the_plan_that_was_read() -> None:
    door = _planner()
    async with running(door) as console:
        await console.press("L")
        await console.see("which model")
        await console.press("j", "enter")
        await console.see("Takes up to 6 min 10 s")
        assert [type(each) for each in door.submitted] == [MakePlan]
        assert "[esc Cancel]" in console.text()
        await console.press("y")
        await console.see("Waiting for its first step")
        started = door.submitted[-1]
        assert isinstance(started, StartLoad)
        assert started.confirmed == started.plan.digest == w.plan().digest


async def test_enter_in_the_plan_cancels_and_loads_nothing() -> None:
    door = _planner()
    async with running(door) as console:
        await console.press("L", "enter")
        await console.see("Takes up to")
        await console.press("enter")
        await console.gone("Takes up to")
        assert [type(each) for each in door.submitted] == [MakePlan]


async def test_a_refused_plan_cannot_be_confirmed_by_any_key() -> None:
    door = _planner(refused=True)
    async with running(door) as console:
        await console.press("L", "enter")
        await console.see("Load refused by 1 finding")
        await console.press("y", "right", "right", "Y")
        await console.pilot.pause(0.3)
        assert [type(each) for each in door.submitted] == [MakePlan]


async def test_a_dangerous_dialog_takes_no_key_in_its_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.screens.dialog.DEAF_SECONDS", 60.0)
    door = _door(w.replica())
    async with running(door) as console:
        await console.press("D")
        await console.pilot.press("y")
        assert door.submitted == []
        assert isinstance(console.app.screen, Dialog)
        monkeypatch.setattr("console.screens.dialog.DEAF_SECONDS", 0.0)
        await console.pilot.press("y")
        assert [type(each) for each in door.submitted] == [StartDrainRequest]


async def test_esc_leaves_a_dangerous_dialog_from_its_first_moment_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.screens.dialog.DEAF_SECONDS", 3600.0)
    async with running(_door(w.replica())) as console:
        await console.press("D")
        await console.see("drain tiny-1")
        await console.pilot.press("escape")
        await console.gone("drain tiny-1")


async def test_a_drain_states_its_numbers_and_then_follows_them() -> None:
    door = _door(w.replica())
    async with running(door) as console:
        await console.press("D")
        await console.see("in flight 2")
        await console.see("give up and leave")
        await console.press("tab")
        await console.press("backspace", "backspace", "backspace", "backspace")
        await console.see("The deadline must be a time like 90s")
        await console.type("1:30")
        await console.press("enter", "space")
        await console.see("would cut 2 requests")
        await console.press("shift+tab", "shift+tab", "y")
        await console.see("has not reached an agent yet")
        asked = door.submitted[-1]
        assert isinstance(asked, StartDrainRequest)
        assert (asked.replica, asked.deadline_seconds, asked.at_deadline) == ("tiny-1", 90.0, "stop")
        door.put(w.fleet(w.replica(state=ReplicaState.DRAINING, drain=w.drain(), drain_left_ms=88_000, in_flight=1)))
        await console.see("left 1:28")
        await console.press("e")
        assert isinstance(door.submitted[-1], ChangeDrainRequest)
        assert door.submitted[-1].action == "extend"
        await console.press("f")
        await console.see("cuts 1 request.")
        assert door.submitted[-1].action == "extend"
        await console.press("y")
        await console.until(lambda: getattr(door.submitted[-1], "action", "") == "force", "the force")
        await console.press("escape")
        await console.gone("left 1:28")


async def test_drain_on_a_draining_replica_follows_the_drain_that_runs() -> None:
    door = _door(w.replica(state=ReplicaState.DRAINING, drain=w.drain(), drain_left_ms=88_000))
    async with running(door) as console:
        await console.press("D")
        await console.see("[esc back, the drain goes on]  e +1 min  f force now (cuts 2)  x cancel")
        await console.press("x")
        assert isinstance(door.submitted[-1], ChangeDrainRequest)
        assert door.submitted[-1].action == "cancel"


async def test_the_reason_of_a_failure_stands_whole_on_a_small_screen() -> None:
    words = "rank 2 on gpu-b: signal 9 (killed); rank 0 on gpu-a: rank 2 of its generation is gone"
    failed = w.replica("glm-2", ReplicaState.FAILED, words=words, shards=(w.exited(),))
    async with running(_door(failed)) as console:
        await console.until(lambda: words in " ".join(console.text().split()), "the reason")
        await console.until(
            lambda: (
                "signal 9 (out of memory) after 41 s; its log ends: alloc failed: 61 GiB"
                in " ".join(console.text().split())
            ),
            "the last words of the rank",
        )
        console.door.put(w.fleet(w.replica("glm-2")))
        await console.gone("signal 9")


async def test_an_ill_host_is_said_on_a_small_screen_and_in_its_panel_on_a_wide_one() -> None:
    lost = w.host("gpu-c", HostState.LOST, words="silent for 95 s; heartbeats come every 5 s; next try 12:04:34")
    ill = w.fleet(w.replica(), hosts={HostId("gpu-a"): w.host("gpu-a"), HostId("gpu-c"): lost})
    door = StandInDoor(ill)
    async with running(door) as console:
        await console.see("gpu-c  lost: silent for 95 s; heartbeats come every 5 s; next try 12:04:34")
        door.put(w.fleet(w.replica()))
        await console.gone("gpu-c")
    door = StandInDoor(w.fleet(w.replica()))
    async with running(door, (120, 40)) as console:
        door.put(ill)
        await console.until(lambda: "next try 12:04:34" in " ".join(console.text().split()), "the words in the panel")
        assert "lost: silent" not in console.text(), "the panel says all of it, so the line above is not needed"


async def test_the_trouble_of_a_host_is_said_once_when_its_panel_comes_in_sight() -> None:
    words = "no agent at /run/ringtop/gpu-a.sock: there is no such socket. Start ringtop-agent there; next try 12:04:34"
    hosts = {HostId(name): w.host(name, HostState.UNREACHABLE, words=words, facts=None) for name in ("gpu-a", "gpu-b")}
    door = StandInDoor(w.fleet(w.replica(), hosts=hosts))
    async with running(door) as console:
        await console.see("and 1 more, h hosts")
        await console.press("h")
        await console.see("── hosts ─")
        await console.gone("and 1 more, h hosts")
        assert " ".join(console.text().split()).count("Start ringtop-agent there") == 2, "each host's, in the panel"
        await console.press("h")
        await console.see("and 1 more, h hosts")
        door.put(w.fleet(hosts=hosts))
        await console.see("No host answers.")
        await console.gone("and 1 more, h hosts")


async def test_the_reason_of_a_failure_has_room_among_more_replicas_than_fit() -> None:
    words = "rank 2 on gpu-b: signal 9 (killed)"
    many = [w.replica(f"tiny-{number}") for number in range(10, 40)]
    failed = w.replica("glm-2", ReplicaState.FAILED, words=words, shards=(w.exited(),))
    async with running(_door(*many, failed)) as console:
        await console.until(lambda: f"glm-2  {words}" in console.text(), "the reason")
        await console.press("G")
        await console.see(">tiny-39")
        assert f"glm-2  {words}" in console.text(), "it stays while the rows scroll"
        await console.press("g")
        await console.see(">glm-2")


async def test_unload_wants_the_whole_name_typed() -> None:
    door = _door(w.replica())
    async with running(door) as console:
        await console.press("U")
        await console.see("This cuts 2 requests")
        await console.press("tab")
        await console.type("tiny-")
        await console.press("enter")
        assert door.submitted == []
        await console.type("1")
        await console.see("Unload (enter in the name)")
        await console.press("enter")
        await console.until(lambda: bool(door.submitted), "the request")
        assert door.submitted == [StartUnload(replica=door.submitted[0].replica)]  # type: ignore[attr-defined]


async def test_a_test_shows_the_answer_and_how_long_it_took() -> None:
    def answer(request: Request) -> Answer | None:
        return (
            w.answer("", value={"text": f"four {HOSTILE}", "seconds": 0.41})
            if isinstance(request, TestRequest)
            else None
        )

    async with running(StandInDoor(w.fleet(w.replica()), answer)) as console:
        await console.press("t")
        await console.press("enter")
        await console.see("four [/x]")
        await console.see("after 0.4 s")


async def test_the_log_of_a_shard_is_read_on_demand_and_shown_as_it_is() -> None:
    def answer(request: Request) -> Answer | None:
        return w.answer("", value={"text": f"line one\n{HOSTILE}"}) if isinstance(request, LogRequest) else None

    async with running(StandInDoor(w.fleet(w.replica()), answer)) as console:
        await console.press("tab", "j", "enter")
        await console.see("shard tiny-1/1")
        await console.press("l")
        await console.see("line one")
        await console.see("[/x] [bold]no<1b>]52;c;AAAA<07>")


async def test_a_key_of_an_action_that_is_not_possible_says_why() -> None:
    async with running(_door(w.replica(state=ReplicaState.FAILED))) as console:
        await console.press("D")
        await console.see("drain is not possible: tiny-1 is failed")
        await console.press("j")
        await console.gone("drain is not possible")


@pytest.mark.parametrize("key", ["L", "D", "U"])
async def test_read_only_refuses_every_write_key_and_nothing_is_submitted(key: str) -> None:
    door = _door(w.replica(), read_only=True)
    async with running(door) as console:
        await console.see("READ-ONLY")
        await console.press(key)
        await console.see("is read-only")
        assert door.submitted == []
        assert isinstance(console.app.screen, MainScreen)


async def test_what_the_backend_refuses_is_said() -> None:
    door = _door(w.replica())
    async with running(door) as console:
        door.refuses_with = "the backend has not answered since 3 s, so nothing was sent"
        await console.press("D")
        await console.press("y")
        await console.see("nothing was sent")


async def test_the_help_names_every_key_and_comes_from_the_registry() -> None:
    async with running(_door(w.replica()), (120, 50)) as console:
        await console.press("question_mark")
        for words in ("ringtop drain", ":unload", "Its name must be typed"):
            await console.see(words)
        await console.press("escape")
        await console.gone(":unload")


async def test_keys_typed_into_a_filter_never_reach_an_action() -> None:
    door = _door(w.replica("tiny-1"), w.replica("glm-2"))
    async with running(door) as console:
        await console.press("slash")
        await console.type("DLUq")
        await console.see("Nothing here matches DLUq")
        assert isinstance(console.app.screen, MainScreen)
        await console.press("escape")
        await console.see("glm-2")
        await console.press("slash")
        await console.type("glm")
        await console.press("enter")
        await console.gone("tiny-1  ")
        await console.press("escape")
        await console.see("tiny-1  ")


async def test_a_command_does_what_its_key_does_and_an_unknown_one_says_so() -> None:
    door = _door(w.replica("tiny-1"), w.replica("glm-2"))
    async with running(door) as console:
        await console.press("colon")
        await console.type("drain tiny-1")
        await console.press("enter")
        await console.see("drain tiny-1")
        await console.press("escape", "colon")
        await console.type("reboot")
        await console.press("enter")
        await console.see("there is no command reboot")
        await console.press("colon")
        await console.type("drain nobody")
        await console.press("enter")
        words = "there is no replica 'nobody'; known: glm-2, tiny-1"
        await console.until(lambda: words in " ".join(console.text().split()), "the whole sentence, over two lines")
        await console.press("slash")
        await console.type("glm")
        await console.press("enter", "colon")
        await console.type("drain tiny-1")
        await console.press("enter")
        await console.see("[esc Cancel]")
        assert "drain tiny-1" in console.text(), "a filter hides a replica, it does not take it away"


async def test_quit_says_which_operations_go_on_and_stays_unless_told() -> None:
    door = StandInDoor(w.busy_fleet())
    async with running(door) as console:
        await console.press("q")
        await console.see("load tiny-1")
        await console.press("enter")
        await console.gone("leave the console?")
        await console.press("q", "q")
        await console.until(lambda: console.app.return_code is not None or not console.app.is_running, "the end")
    assert console.app.return_code == 0


async def test_ctrl_c_ends_nothing_and_says_what_does() -> None:
    async with running(_door(w.replica())) as console:
        await console.press("ctrl+c")
        await console.see("q quits")


async def test_a_fault_and_a_standing_backend_are_said_above_everything() -> None:
    door = _door(w.replica())
    async with running(door) as console:
        door.put(w.fleet(w.replica(), fault="RuntimeError: no more files"))
        await console.see("The backend ended: RuntimeError: no more files")
        door.put(w.fleet(w.replica()))
        await console.gone("The backend ended")
        door.stalled_since = 1.0
        await console.see("The backend does not move")


async def test_a_state_that_is_the_same_object_draws_nothing() -> None:
    door = _door(w.replica(measured_at=0.0))
    async with running(door) as console:
        await console.see("tiny-1")
        await console.pilot.pause(0.3)
        drawn: list[object] = []
        grid = console.app.screen.query_one("#replicas", Grid)
        grid.refresh = lambda *regions, **options: drawn.append(regions) or grid  # type: ignore[method-assign, func-returns-value]
        door.put(msgspec.structs.replace(door.current))
        await console.pilot.pause(1.3)
        assert drawn == []
        door.put(w.fleet(w.replica(measured_at=0.0, in_flight=7)))
        await console.until(lambda: bool(drawn), "a drawing")
        assert len(drawn) == 1


async def test_hostile_words_in_the_journal_are_shown_and_end_nothing() -> None:
    door = _door(w.replica())
    async with running(door, (120, 40)) as console:
        door.say(*(w.journal_line(words=text) for text in (HOSTILE, "[", "[/]", "[b", "\x1b[2J\x1b[?1049l")))
        await console.see("[/x] [bold]no<1b>]52;c;AAAA<07>")
        assert not set(console.text()) & set("\x1b\x07\x9b\u202e")


async def test_a_journal_that_stands_still_keeps_its_place_and_counts_what_is_new() -> None:
    door = _door(w.replica())
    door.say(*(w.journal_line(words=f"line {n:04d}") for n in range(1, 101)))
    async with running(door) as console:
        await console.see("line 0100")
        await console.press("F")
        await console.see("standing still")
        top = console.app.screen.query_one(Journal).visible_lines()[0]
        door.say(*(w.journal_line(words=f"line {n:04d}") for n in range(101, 131)))
        await console.see("+30 new")
        assert console.app.screen.query_one(Journal).visible_lines()[0] == top
        await console.press("F")
        await console.see("line 0130")


async def test_another_size_moves_the_panels_and_loses_nothing() -> None:
    async with running(StandInDoor(w.busy_fleet())) as console:
        await console.press("j", "j", "j")
        await console.pilot.resize_terminal(200, 50)
        await console.see("1764412800123")
        assert console.app.screen.query_one("#replicas", Grid).cursor_key == "tiny-1"
        await console.pilot.resize_terminal(80, 24)
        await console.see("…0123")


async def test_in_ascii_the_screen_holds_nothing_else() -> None:
    door = StandInDoor(w.busy_fleet())
    door.say(w.journal_line(words="Grüße von 模型"))
    async with running(door, is_ascii=True, theme="plain") as console:
        await console.see("Gr??e von ????")
        for key in ("D", "U", "r", "question_mark", "o", "q"):
            await console.press(key)
            await console.pilot.pause()
            strange = {each for each in console.text() if not each.isascii()}
            assert not strange, f"after {key}"
            await console.press("escape")


def a_second_later(console: Driver) -> None:
    """The data timer fires in another second than the last time."""
    console.app._second -= 1
    console.app.tick()


async def test_a_dialog_that_is_opening_or_closing_is_left_alone_by_the_data_timer() -> None:
    door = _door(w.replica(state=ReplicaState.DRAINING, drain=w.drain(), drain_left_ms=88_000))
    async with running(door) as console:
        view = DrainView("tiny-1")
        console.app.push_screen(view)
        assert not view.stands
        a_second_later(console)
        await console.until(lambda: view.stands, "the dialog")
        view.dismiss()
        a_second_later(console)
        await console.until(lambda: not view.stands, "the end of the dialog")
        a_second_later(console)


async def test_a_bad_edit_of_the_catalog_is_said_until_it_is_mended_and_the_models_stay() -> None:
    door = _door(w.replica())
    async with running(door) as console:
        assert "catalog fault" not in console.text()
        words = "catalog.toml: no key rankz. The catalog as it was before that edit stays in use."
        door.put(msgspec.structs.replace(door.current, catalog_words=words))
        await console.see("catalog fault")
        await console.see("the catalog: catalog.toml: no key rankz.")
        await console.press("L")
        await console.see("as it was before that edit stays")
        await console.see("two-host")
        await console.press("escape")
        door.put(msgspec.structs.replace(door.current, catalog_words=""))
        await console.gone("catalog fault")
        await console.see("the catalog is in use as its file has it")
