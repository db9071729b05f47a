"""The caretaker of the embedded fleet: starts its agents by command line and starts again one that ends.

It never touches an engine: those outlive their agents, and a new agent adopts what it finds. One caretaker per home,
by a lock. On SIGTERM it ends its agents, by their identities, and then itself. An agent that an earlier caretaker
left behind is watched, not started a second time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from backend.local.files import open_log, take_lock
from backend.local.layout import AGENT_GRACE_SECONDS, HOSTS, Layout
from backend.local.processes import (
    Process,
    Record,
    identify,
    open_handle,
    read_record,
    send_signal,
    write_record,
)

ALREADY_THERE = 3
"""Exit code of a caretaker that found another one at its post."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0
_STEADY_SECONDS = 30.0
_RECORD_PAUSE = 5.0
_LOCK_SECONDS = 1.0  # whoever only looks whether a caretaker is there holds the lock for an instant


@dataclass
class Post:
    """One agent's place: its process while there is one, else when to start the next."""

    host: str
    process: Process | None = None
    child: subprocess.Popen[bytes] | None = None
    handle: int = -1
    started: float = 0.0
    pause: float = _FIRST_PAUSE
    due: float = 0.0


class Caretaker:
    """Keeps one agent per host of a layout until it is told to stop."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._posts = {host: Post(host) for host in HOSTS}
        self._is_recorded = True
        self._told, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit code."""
        lock = take_lock(self._layout.lock, _LOCK_SECONDS)
        if lock is None:
            say(f"another caretaker already serves {self._layout.home}")
            return ALREADY_THERE
        with lock:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: None)
            signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
            self._find_agents()
            self._keep()
            self._stop_agents()
        return 0

    def _keep(self) -> None:
        while True:
            now = time.monotonic()
            for post in self._posts.values():
                if post.process is None and post.due <= now:
                    self._try(post, now)
            if not self._is_recorded:
                self._write_record()
            if self._wait():
                return

    def _wait(self) -> bool:
        """Sleep until an agent ends, a pause is over, or a signal came; True for the signal."""
        poll = select.poll()
        poll.register(self._told, select.POLLIN)
        by_handle = {post.handle: post for post in self._posts.values() if post.process is not None}
        for handle in by_handle:
            poll.register(handle, select.POLLIN)
        pauses = [post.due - time.monotonic() for post in self._posts.values() if post.process is None]
        pauses += [] if self._is_recorded else [_RECORD_PAUSE]
        ready = poll.poll(max(0.0, min(pauses)) * 1000 if pauses else None)
        for handle, _ in ready:
            if handle in by_handle:
                self._ended(by_handle[handle])
        return self._told in {handle for handle, _ in ready}

    def _find_agents(self) -> None:
        """Take over agents that outlived the caretaker before."""
        record = read_record(self._layout.record)
        for host, process in (record.agents if record else {}).items():
            if host not in self._posts or (handle := open_handle(process)) is None:
                continue
            say(f"{host}: its agent (pid {process.pid}) outlived the caretaker before and is kept")
            post = self._posts[host]
            post.process, post.handle, post.started = process, handle, time.monotonic()
        self._write_record()

    def _try(self, post: Post, now: float) -> None:
        """Start an agent. A machine that takes no process, file or handle more is asked again after the pause."""
        try:
            self._start(post, now)
        except OSError as error:
            if post.child is not None:
                post.child.kill()  # nobody could watch it
                post.child.wait()
            post.child, post.process = None, None
            post.pause = min(_LONGEST_PAUSE, post.pause * 2)
            post.due = now + post.pause
            say(f"{post.host}: its agent could not be started: {error}; next in {post.pause:.1f} s")

    def _start(self, post: Post, now: float) -> None:
        config = str(self._layout.config(post.host))
        with open_log(self._layout.agent_log(post.host)) as log:
            child = subprocess.Popen(
                [sys.executable, "-I", "-m", "backend.agent", "serve", "--config", config],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        post.started = now
        post.child = child
        post.handle = os.pidfd_open(child.pid)
        post.process = identify(child.pid) or Process(child.pid, 0)
        say(f"{post.host}: agent started, pid {child.pid}")
        self._write_record()

    def _ended(self, post: Post) -> None:
        assert post.process is not None
        lived = time.monotonic() - post.started
        code = post.child.wait() if post.child else None
        os.close(post.handle)
        post.pause = _FIRST_PAUSE if lived > _STEADY_SECONDS else min(_LONGEST_PAUSE, post.pause * 2)
        post.due = time.monotonic() + post.pause
        how = "ended" if code is None else f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
        say(f"{post.host}: its agent (pid {post.process.pid}) {how} after {lived:.1f} s; next in {post.pause:.1f} s")
        post.process, post.child, post.handle = None, None, -1
        self._write_record()

    def _stop_agents(self) -> None:
        signal.set_wakeup_fd(-1)
        running = [post for post in self._posts.values() if post.process is not None]
        for post in running:
            assert post.process is not None
            send_signal(post.process, signal.SIGTERM)
        deadline = time.monotonic() + AGENT_GRACE_SECONDS
        for post in running:
            if not _wait_for_end(post.handle, deadline - time.monotonic()):
                assert post.process is not None
                say(f"{post.host}: its agent (pid {post.process.pid}) took over {AGENT_GRACE_SECONDS:.0f} s; killed")
                send_signal(post.process, signal.SIGKILL)
                _wait_for_end(post.handle, AGENT_GRACE_SECONDS)
            if post.child:
                post.child.wait()
            post.process = None
        say("stopped")
        self._write_record()

    def _write_record(self) -> None:
        """Say which processes were started; a disk that takes no more is tried again, and ends nothing."""
        me = identify(os.getpid())
        assert me is not None
        agents = {post.host: post.process for post in self._posts.values() if post.process is not None}
        try:
            write_record(self._layout.record, Record(me, agents))
        except OSError as error:
            self._is_recorded = False
            say(f"what was started cannot be recorded, and ringtop down would not find it: {error}")
        else:
            self._is_recorded = True


def say(words: str) -> None:
    """One line into the caretaker's log. A disk that takes none must not end it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}\n")
        sys.stderr.flush()


def _wait_for_end(handle: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def main() -> int:
    """Entry point of ``python -m backend.local.caretaker``."""
    import argparse  # the fleet's other modules are imported by every command, and none of them reads a command line

    parser = argparse.ArgumentParser(prog="ringtop caretaker", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--home", required=True, type=Path, help="the folder with the local fleet")
    return Caretaker(Layout(parser.parse_args().home.resolve())).run()


if __name__ == "__main__":
    raise SystemExit(main())
