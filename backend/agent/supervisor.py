"""Starting, finding again, watching and stopping engine processes, which outlive the agent that started them.

No thread and no pipe per engine: a shim (``shim.py``) starts it and writes down how it ended, pidfds tell of the end,
and files in one folder per run carry everything that an agent needs after its own restart.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from backend.agent.descriptors import OUT_OF_DESCRIPTORS, once_there_are, spare
from backend.agent.process_identity import (
    SeenProcess,
    group_members,
    is_alive,
    open_identity,
    see_process,
    signal_group,
    signal_one,
)
from backend.agent.run_folder import RunFolder, RunUnreadable, SpawnRecord
from backend.agent.scopes import own_scope
from backend.contract.entities import ProcessIdentity
from backend.engines.driver import StopStep
from backend.failpoints import failpoint

SHIM = Path(__file__).with_name("shim.py")
SPAWN_SECONDS = 10.0
"""How long a start may take until the engine executes: 15-25 ms as a rule, 85-127 ms seen when a sync was slow."""
SHIM_SECONDS = 10.0
"""How long a shim may take to write down an exit that has happened: 0.7-1.6 ms as a rule."""
KILL_SECONDS = 10.0
"""How long a killed process may take to go; one in uninterruptible sleep goes when its device answers."""
SPAWN_DESCRIPTORS = 4
"""Free descriptors without which no start is begun: its pidfd, and a file of its folder or of /proc at a time."""
LOOK_SECONDS = 0.002
"""The first pause between two looks at files or /proc; it grows up to ``SLOWEST_LOOK_SECONDS``."""
SLOWEST_LOOK_SECONDS = 0.1
_GROWTH = 1.25
NONCE = re.compile(r"[A-Za-z0-9_.-]{1,128}")
SIGNAL_NOTES: dict[int, str] = {
    signal.SIGILL: "illegal instruction: the engine build needs a processor feature that this host lacks",
}


class SpawnFailed(Exception):
    """No engine runs. The message says what was to be executed, why it was not, and what to do."""


class EndedRun(msgspec.Struct, frozen=True):
    """A run whose engine is gone. ``code`` and ``signal`` are None when nobody could learn them: unknown is never 0.

    Processes that it forked may live on: ``group_members(identity)`` names them, ``stop`` ends them.
    """

    identity: ProcessIdentity
    code: int | None
    signal: int | None


class StopOutcome(msgspec.Struct, frozen=True):
    """Whether every process of the run is proven gone; if not, which are left."""

    stopped: bool
    stuck_pids: tuple[int, ...] = ()


async def spawn(folder: Path, nonce: str, argv: Sequence[str], env: Mapping[str, str]) -> ProcessIdentity:
    """Start an engine and return its identity once it executes; its record is durable by then.

    ``argv[0]`` is an absolute path, ``env`` the engine's whole environment, without secrets: it is readable by every
    local user. The engine's working folder is ``folder``. Raises SpawnFailed; then nothing runs and nothing will.
    Cancelled, it leaves the start to itself: ``adopt`` finds what became of it.
    """
    _check_launch(folder, nonce, argv, env)
    run = RunFolder(folder)
    try:
        failpoint("supervisor.before_shim")
        with spare(SPAWN_DESCRIPTORS):
            shim_pid = _start_shim(run, nonce, argv, env)
    except OSError as refused:
        raise SpawnFailed(f"cannot start {argv[0]} in {folder}: {_reason(refused)}.") from refused
    shim = os.pidfd_open(shim_pid)
    try:
        failpoint("supervisor.after_shim")
        identity = await once_there_are(lambda: _await_execution(run, shim, argv), f"the start of {folder.name}")
        failpoint("supervisor.after_spawn_record")
        _unprotect(identity.pid)
        return identity
    finally:
        _reap(shim)
        os.close(shim)


def adopt(folder: Path, nonce: str | None = None) -> ProcessIdentity | EndedRun | None:
    """What became of a run, asked by an agent that has just started.

    The identity when the engine is alive, or is gone while its shim still writes down how (``wait_ended`` tells);
    EndedRun when it is over; None when it never executed, and from now on it never can. With a nonce, the record must
    carry it. Raises RunUnreadable when a record is damaged or is not of this run: then nothing of it may be touched.
    """
    run = RunFolder(folder)
    run.give_up()
    record = run.read_spawn()
    if record is None:
        return None
    if nonce is not None and record.nonce != nonce:
        raise RunUnreadable(
            f"{run.spawn_record} carries nonce {record.nonce}, the journal says {nonce}: another start wrote it. "
            f"Process {record.pid} is left alone; stop it by hand if it is not wanted."
        )
    seen = see_process(record.pid)
    if is_alive(record.identity) and seen is not None and seen.session != record.pid:
        raise RunUnreadable(
            f"{run.spawn_record} names process {record.pid}, which is in session {seen.session} and not in one of its "
            f"own: no shim started it. It is left alone; look at it by hand."
        )
    if is_alive(record.identity):
        return record.identity
    ended = run.read_exit()
    if ended is not None:
        return None if ended.exec_errno is not None else EndedRun(record.identity, ended.code, ended.signal)
    if is_alive(_shim_of(record)):
        return record.identity
    return EndedRun(record.identity, None, None)


async def wait_ended(identity: ProcessIdentity, folder: Path) -> tuple[int | None, int | None]:
    """Wait until the engine is gone and return its exit code and signal; both None when nobody could learn them.

    The engine's end is seen first, then its shim's, then the exit record is read, which comes about 1 ms later.
    """
    own: tuple[int | None, int | None] = (None, None)
    engine = open_identity(identity)
    if engine is not None:
        try:
            await _until_ended(engine)
            own = _reap(engine)
        finally:
            os.close(engine)
    run = RunFolder(folder)
    await _until_shim_ended(run)
    failpoint("supervisor.before_exit_read")
    ended = run.read_exit()
    return own if ended is None else (ended.code, ended.signal)


def send_signal(identity: ProcessIdentity, signum: int, members: Sequence[SeenProcess] | None = None) -> bool:
    """Signal every live process of the run, after comparing identities. False when none of them was left to signal.

    ``members`` are those of this moment, when they were just looked for: that takes milliseconds.
    """
    # Before the leader is gone: after it, its descendants are nobody's.
    members = group_members(identity) if members is None else members
    led = signal_group(identity, signum)
    others = [member for member in members if not (led and member.group == identity.pid)]
    return any([led, *(signal_one(member, signum) for member in others)])


async def stop(identity: ProcessIdentity, folder: Path, steps: Sequence[StopStep]) -> StopOutcome:
    """Stop a run: each step's signal and grace, then KILL, until every process of it is proven gone.

    Takes at most the steps' seconds and ``KILL_SECONDS``. ``stopped`` is True only when /proc lists no live process
    of the engine's session, its group or their descendants; how it ended is on disk by then.
    """
    known: set[tuple[int, int]] = set()
    is_gone = False
    for step in steps:
        members = group_members(identity)
        known |= {(member.pid, member.start_ticks) for member in members}
        send_signal(identity, step.signal, members)
        if is_gone := await _gone_within(identity, known, step.seconds):
            break
    deadline = asyncio.get_running_loop().time() + KILL_SECONDS
    pause = LOOK_SECONDS
    while left := () if is_gone else _left(identity, known):
        if asyncio.get_running_loop().time() >= deadline:
            return StopOutcome(stopped=False, stuck_pids=left)
        send_signal(identity, signal.SIGKILL)  # again at each look: what was forked meanwhile was not in the last one
        for pid, ticks in known:
            _kill_known(pid, ticks)
        await asyncio.sleep(pause)
        pause = min(_GROWTH * pause, SLOWEST_LOOK_SECONDS)
    await _until_shim_ended(RunFolder(folder))
    return StopOutcome(stopped=True)


def exit_words(code: int | None, signum: int | None) -> str:
    """How a process ended, for a person: ``exit code 1``, ``signal 9 (killed)``, ``exit unknown``."""
    if signum is not None:
        note = SIGNAL_NOTES.get(signum) or (signal.strsignal(signum) or "unknown").lower()
        return f"signal {signum} ({note})"
    return "exit unknown" if code is None else f"exit code {code}"


def _check_launch(folder: Path, nonce: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Refuse before anything is made what could only fail, or mean something else, after the fork."""
    if not argv or not os.path.isabs(argv[0]):
        raise SpawnFailed(f"cannot start {argv[0] if argv else 'an empty command'}: the program is no absolute path.")
    if not NONCE.fullmatch(nonce):
        raise SpawnFailed(f"cannot start {argv[0]}: nonce {nonce!r} is not 1 to 128 letters, digits, '_', '.' or '-'.")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise SpawnFailed(f"cannot start {argv[0]}: {name!r} is not a usable name in its environment.")
    for argument in (*argv, str(folder)):
        if "\0" in argument:
            raise SpawnFailed(f"cannot start {argv[0]}: argument {argument!r} holds a NUL character.")
    run = RunFolder(folder)
    for used in (run.spawn_record, run.exit_record, folder / "exit.tmp"):
        if used.exists():
            raise SpawnFailed(f"cannot start {argv[0]}: {folder} has {used.name} already. Load with a new generation.")


def _unprotect(pid: int) -> None:
    """Take back from an engine what its agent's unit says against the out-of-memory killer: engines go first."""
    adjusted = Path("/proc") / str(pid) / "oom_score_adj"
    try:
        if int(adjusted.read_text()) < 0:
            adjusted.write_text("0\n")
    except OSError as gone:
        if gone.errno not in (errno.ENOENT, errno.ESRCH):
            sys.stderr.write(f"the protection of process {pid} against the OOM killer stays: {gone.strerror}\n")


def _start_shim(run: RunFolder, nonce: str, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Make the folder and start the shim in a session of its own, and a scope where systemd runs. Returns its pid."""
    run.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    pairs = [f"{name}={value}" for name, value in env.items()]
    scope = own_scope(run.path.name)
    before = () if scope is None else scope.argv
    shim = [sys.executable, "-I", "-S", str(SHIM), str(run.path.absolute()), nonce, run.log.name, str(len(pairs))]
    command = [*before, *shim, *pairs, "--", *argv]
    return os.posix_spawn(
        command[0],
        command,
        {} if scope is None else scope.environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(run.shim_errors), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,  # by the shim itself it would come too late for a HUP to the agent's group
    )


async def _await_execution(run: RunFolder, shim: int, argv: Sequence[str]) -> ProcessIdentity:
    """Follow the files and /proc until the engine executes, or cannot be ended. Raises SpawnFailed: nothing runs."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SPAWN_SECONDS
    pause = LOOK_SECONDS
    while loop.time() < deadline:
        shim_ended = _has_ended(shim)  # before the files are read: what it wrote is there then
        identity = _executed(run, argv, shim_ended)
        if identity is not None:
            return identity
        if shim_ended:
            raise SpawnFailed(f"cannot start {argv[0]}: its shim ended early. {_shim_words(run)}")
        await asyncio.sleep(pause)
        pause = min(_GROWTH * pause, SLOWEST_LOOK_SECONDS)
    signal.pidfd_send_signal(shim, signal.SIGKILL)
    await _ended_within(shim, KILL_SECONDS)
    run.give_up()
    record = run.read_spawn()
    if record is not None and not (await stop(record.identity, run.path, ())).stopped:
        return record.identity  # it survives KILL: followed and stopped like any other, so that what it holds is held
    raise SpawnFailed(
        f"cannot start {argv[0]}: not executed within {SPAWN_SECONDS:g} s, so it was ended. A slow disk under "
        f"{run.path} does this: look at the host's disks. {_shim_words(run)}"
    )


def _executed(run: RunFolder, argv: Sequence[str], shim_ended: bool) -> ProcessIdentity | None:
    """The identity once the engine executes, or did and is gone; None while that is open. Raises SpawnFailed."""
    record = run.read_spawn()
    if record is None:
        return None
    ended = run.read_exit()
    if ended is not None:
        if ended.exec_errno is not None:
            reason = f"{os.strerror(ended.exec_errno)} ({errno.errorcode.get(ended.exec_errno, ended.exec_errno)})"
            raise SpawnFailed(f"cannot execute {argv[0]}: {reason}. Check the engine's folder in agent.toml.")
        return record.identity
    seen = see_process(record.pid)
    if seen is not None and seen.start_ticks == record.start_ticks:
        return record.identity if seen.has_executed else None
    return record.identity if shim_ended else None


def _shim_words(run: RunFolder) -> str:
    """The last line that the shim left: a full disk, a folder that cannot be written."""
    try:
        lines = run.shim_errors.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        lines = []
    return f"It said: {lines[-1]}" if lines else f"It said nothing in {run.shim_errors}."


def _reason(refused: OSError) -> str:
    if refused.errno in OUT_OF_DESCRIPTORS:
        return "the agent has no file descriptor left for it. Raise LimitNOFILE of its unit, or close consoles"
    if refused.errno == errno.E2BIG:
        return "an argument or the environment is longer than the kernel takes (128 KiB for one)"
    return f"{refused.strerror} ({refused.filename})" if refused.filename else str(refused.strerror)


def _shim_of(record: SpawnRecord) -> ProcessIdentity:
    return ProcessIdentity(record.shim_pid, record.shim_ticks, record.boot_id, record.nonce)


async def _until_ended(pidfd: int) -> None:
    """Wait until the process behind a pidfd is gone or a zombie. Cancelling leaves nothing behind."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


async def _ended_within(pidfd: int, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await _until_ended(pidfd)
    except TimeoutError:
        return False
    return True


async def _until_shim_ended(run: RunFolder) -> None:
    """Wait for the end of the run's shim and reap it if it is our child.

    At most ``SHIM_SECONDS``: one that is stopped, or whose disk hangs, leaves the exit unknown and nobody waiting.
    """
    record = run.read_spawn()
    shim = None if record is None else open_identity(_shim_of(record))
    if shim is None:
        return
    try:
        await _ended_within(shim, SHIM_SECONDS)
    finally:
        _reap(shim)
        os.close(shim)


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _reap(pidfd: int) -> tuple[int | None, int | None]:
    """Exit code and signal of an own child that has ended, which is gone from the process table then.

    (None, None) for everybody else's, which their shim or init reaps. Engines are ours only when their shim is gone
    and this agent is init of its container.
    """
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None, None
    if result is None:
        return None, None
    return (result.si_status, None) if result.si_code == os.CLD_EXITED else (None, result.si_status)


async def _gone_within(identity: ProcessIdentity, known: set[tuple[int, int]], seconds: float) -> bool:
    """Every process of the run is gone within ``seconds``: the engine by its pidfd, then the rest by looking."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    engine = open_identity(identity)
    if engine is not None:
        try:
            if not await _ended_within(engine, seconds):
                return False
        finally:
            os.close(engine)
    pause = LOOK_SECONDS
    while _left(identity, known):
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))
        pause = min(_GROWTH * pause, SLOWEST_LOOK_SECONDS)
    return True


def _left(identity: ProcessIdentity, known: set[tuple[int, int]]) -> tuple[int, ...]:
    """The pids of the run that live, and of those that once descended from it and have left its session since."""
    left = {member.pid for member in group_members(identity)}
    for pid, ticks in known:
        seen = see_process(pid)
        if seen is not None and seen.start_ticks == ticks and not seen.is_gone:
            left.add(pid)
    return tuple(sorted(left))


def _kill_known(pid: int, ticks: int) -> None:
    seen = see_process(pid)
    if seen is not None and seen.start_ticks == ticks:
        signal_one(seen, signal.SIGKILL)
