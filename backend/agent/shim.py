"""Start one engine and write down how it ended, whatever becomes of the agent.

Run by path: ``python -I -S shim.py FOLDER NONCE LOG N_ENV k=v… -- argv…`` with an empty environment of its own. The
engine's comes as arguments, readable by every local user: no secret belongs in it. ``spawn.json`` is durable before
the engine executes; ``exit.json`` needs no new disk block when it ends. A ``spawn.json`` that is there already means
that the agent has given this start up, and nothing is executed.
"""

import os
import signal
import sys


def start_ticks(pid: int) -> str:
    """Field 22 of /proc/PID/stat; the name before it may hold spaces and brackets."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[19].decode()


def become_engine(gate: tuple[int, int], told: int, log: str, argv: list[str], env: dict[str, str]) -> None:
    """In the child: own session, default signals, then wait at the gate and execute. Never returns."""
    try:
        os.setsid()  # a group of its own is not enough: stopped, it would get HUP when the shim dies
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # ggml-rpc-server dies of it when a peer hangs up
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.write(told, b"s")
        os.close(gate[1])
        if os.read(gate[0], 1):
            os.dup2(os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 1), 2)
            os.execve(argv[0], argv, env)
    except OSError as refused:
        os.write(told, str(refused.errno).encode())
    finally:
        os._exit(127)


def main() -> None:
    """Stage the exit record, fork, record the child, open the gate, wait, complete the exit record."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, it would take the exit code away
    for name in os.listdir("/proc/self/fd"):
        os.closerange(max(int(name), 3), int(name) + 1)
    folder, nonce, log, count = sys.argv[1:5]
    pairs, argv = sys.argv[5 : 5 + int(count)], sys.argv[6 + int(count) :]
    os.chdir(folder)
    here = os.open(".", os.O_RDONLY)
    staged = os.open("exit.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(staged, b" " * 512)
    os.fsync(staged)
    gate, told = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        become_engine(gate, told[1], log, argv, dict(pair.split("=", 1) for pair in pairs))
    os.close(told[1])
    os.read(told[0], 1)  # the session exists
    with open("/proc/sys/kernel/random/boot_id") as boot, open("spawn.tmp", "x") as record:
        record.write(f'{{"pid": {child}, "start_ticks": {start_ticks(child)}, "boot_id": "{boot.read().strip()}", ')
        record.write(f'"nonce": "{nonce}", "shim_pid": {os.getpid()}, "shim_ticks": {start_ticks(os.getpid())}}}\n')
        record.flush()
        os.fsync(record.fileno())
    os.link("spawn.tmp", "spawn.json")  # fails when the agent gave this start up; the gate then never opens
    os.unlink("spawn.tmp")
    os.fsync(here)
    os.write(gate[1], b"g")
    failure = os.read(told[0], 16).decode() or "null"  # empty: executed
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ended = (code, "null") if code >= 0 else ("null", -code)
    os.pwrite(staged, f'{{"code": {ended[0]}, "signal": {ended[1]}, "exec_errno": {failure}}}'.encode().ljust(512), 0)
    os.fsync(staged)
    os.rename("exit.tmp", "exit.json")
    os.fsync(here)
    os._exit(0)  # the agent waits for this end; tidying the interpreter up takes 5 ms


if __name__ == "__main__":
    main()
