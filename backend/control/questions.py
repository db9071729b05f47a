"""Questions to a replica, a shard or a host: a drain changed, a prompt tried, a log or a journal read."""

from __future__ import annotations

from backend.contract.commands import ChangeDrain, ReadLog, TestReplica
from backend.contract.words import HostId, NodeId, OpId, ReplicaId
from backend.control.asking import QUICK_SECONDS, Asking, host_of, replica_of
from backend.control.cannot_answer import CannotAnswer
from backend.control.exit_codes import REFUSED
from backend.control.journal_questions import journal_question
from backend.control.requests import AskJournal, ChangeDrainRequest, ForkJournalRequest, LogRequest, TestRequest
from backend.control.views import Answer, FleetState

_TEST_SLACK_SECONDS = 10.0


async def change_drain(asking: Asking, who: str, op_id: OpId, request: ChangeDrainRequest) -> str:
    """Ask every host of an open drain to end, force or extend it; one that does not take it hides no other's answer."""
    hosts = draining_hosts(asking.state, request.replica)
    if not hosts:
        replica_of(asking.state, request.replica)
        raise CannotAnswer(REFUSED, f"{request.replica} is not draining")
    if request.action == "force":
        hosts = hosts[:1]  # the leader goes first, its workers follow it; a worker that goes first aborts it
    taken, trouble = [], {}
    for host in hosts:
        command = ChangeDrain(
            op_id=OpId(f"{op_id}-{host}"),
            replica=request.replica,
            by=who,
            action=request.action,
            extend_seconds=request.extend_seconds if request.action == "extend" else 0.0,
        )
        try:
            await asking.ask(host, command, QUICK_SECONDS)
            taken.append(host)
        except CannotAnswer as error:
            trouble[host] = error
    words = f"{request.action} was taken by {', '.join(taken) or 'no host'}"
    if trouble:
        told = "; ".join(map(str, trouble.values()))
        code = max(error.code for error in trouble.values())
        raise CannotAnswer(code, f"{words}; not by {', '.join(trouble)}: {told}. Its drain goes on there.")
    return words


async def try_prompt(asking: Asking, op_id: OpId, request: TestRequest) -> Answer:
    """One prompt through rank 0; the answer's value has text and latency."""
    view = replica_of(asking.state, request.replica)
    leader = next((shard.shard for shard in view.shards if shard.shard.rank == 0), None)
    if leader is None:
        raise CannotAnswer(REFUSED, f"{view.id} is {view.state.value}: no host has its rank 0")
    command = TestReplica(op_id=op_id, node_id=leader.node_id, prompt=request.prompt, max_tokens=request.max_tokens)
    result = await asking.ask(leader.host, command, command.seconds + _TEST_SLACK_SECONDS)
    value = {"prompt": request.prompt, **result.value}
    return Answer(op_id=op_id, request="TestRequest", done=True, words=str(value.get("text", "")), value=value)


async def read_log(asking: Asking, op_id: OpId, request: LogRequest) -> Answer:
    """A piece of a shard's log, of its newest generation or of the one before."""
    node_id = NodeId(request.node_id)
    having = [view for view in asking.state.hosts.values() if node_id in view.entities.shards]
    if not having:
        raise CannotAnswer(REFUSED, f"no host has the shard {request.node_id}")
    newest = max(having, key=lambda view: view.entities.shards[node_id].load_generation)
    shard = newest.entities.shards[node_id]
    command = ReadLog(
        op_id=op_id,
        node_id=node_id,
        generation=None if request.previous else shard.load_generation,
        offset=request.offset,
        limit=request.limit,
        previous=request.previous,
    )
    result = await asking.ask(newest.host, command, QUICK_SECONDS)
    return Answer(op_id=op_id, request="LogRequest", done=True, value=result.value)


async def ask_journal(asking: Asking, who: str, op_id: OpId, request: AskJournal | ForkJournalRequest) -> Answer:
    """What a host says of its journal, or its fork."""
    host = host_of(asking.state, request.host).host
    command, seconds = journal_question(op_id, request, who)
    result = await asking.ask(host, command, seconds)
    words = str(result.value.get("words", ""))
    return Answer(op_id=op_id, request=type(request).__name__, done=True, words=words, value=result.value)


def draining_hosts(state: FleetState, replica: ReplicaId) -> list[HostId]:
    """The hosts with an open drain of a replica, rank 0's first."""
    view = state.replicas.get(replica)
    leader = next((s.shard.host for s in view.shards if s.shard.rank == 0), None) if view else None
    hosts = [
        host.host
        for host in state.hosts.values()
        if (drain := host.entities.drains.get(replica)) is not None and not drain.outcome
    ]
    return sorted(hosts, key=lambda host: (host != leader, host))
