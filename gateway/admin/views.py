"""The documents of the admin API, and how each is read from the core's snapshot.

Owns: names and shapes of what operators see; API and command line share them. Must not know: HTTP, sockets.
Pure: a snapshot in, a document out.

Times named ``*_at`` are Unix seconds, null where the thing has not happened. Bodies of requests refuse unknown fields: a
misspelt ``deadline_second`` must not become a drain with the default deadline.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.wire.codes import DrainOutcome, Health, Lifecycle, OperationKind, OutcomeKind, Phase, Reason, Role, State
from gateway.wire.messages import (
    Cleared,
    DrainInfo,
    EngineInfo,
    NamespaceInfo,
    PartyInfo,
    SnapshotReply,
    TransferInfo,
)

MAX_DEADLINE_SECONDS = 86400

ReasonText = Annotated[str, Field(max_length=500, description="For the audit log and for whoever looks later.")]
DeadlineSeconds = Annotated[float, Field(ge=0, le=MAX_DEADLINE_SECONDS, allow_inf_nan=False)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True)


# -- bodies of requests ------------------------------------------------------------------------------------------------


class DrainBody(_Body):
    """How to drain the gateway. ``deadline_seconds`` 0 forces; null takes the configured deadline."""

    deadline_seconds: DeadlineSeconds | None = None
    reason: ReasonText = ""
    flush: bool = False
    exit: bool = False


class EngineDrainBody(_Body):
    """How to drain one engine."""

    deadline_seconds: DeadlineSeconds | None = None
    reason: ReasonText = ""


class ReasonBody(_Body):
    """Why something is done."""

    reason: ReasonText = ""


class ClearBody(_Body):
    """What to forget: exactly one of ``model``, ``namespace`` and ``all``. ``dry_run`` only counts."""

    model: Annotated[str, Field(max_length=512)] = ""
    namespace: Annotated[str, Field(pattern="^([0-9a-f]{32})?$", description="32 hexadecimal digits.")] = ""
    all: bool = False
    reason: ReasonText = ""
    dry_run: bool = False

    @model_validator(mode="after")
    def _names_one_thing(self) -> "ClearBody":
        if sum((bool(self.model), bool(self.namespace), self.all)) != 1:
            raise ValueError("set exactly one of model, namespace and all")
        return self


# -- documents ---------------------------------------------------------------------------------------------------------


class Check(_Document):
    """One health check. A critical one that fails makes the gateway unhealthy."""

    name: str
    ok: bool
    critical: bool
    age_seconds: float
    reason: str


class RemainingWork(_Document):
    """What a drain still waits for."""

    operations: int
    leases: int
    dirty: int


class Drain(_Document):
    """A drain of the gateway. ``done`` and ``aborted`` count operations ended and cut since it began."""

    id: str
    state: Lifecycle
    reason: str
    requested_by: str
    requested_at: float
    deadline_at: float
    finished_at: float | None
    flush: bool
    exit: bool
    outcome: DrainOutcome | None
    remaining: RemainingWork
    done: int
    aborted: int
    engines: list[str]


class EngineSummary(_Document):
    """One engine in a line. ``state`` is draining or drained when it is drained alone."""

    name: str
    model: str
    state: Lifecycle
    fenced: bool
    parties: int
    pending_stores: int
    pending_retrieves: int
    retained_events: int


class Party(_Document):
    """One registered process half of an engine. ``state`` is its own view of the gateway."""

    party: str
    role: Role
    group: str
    pid: int
    namespace: str
    shard: int
    replica: int
    state: State
    registered_at: float
    last_heartbeat_at: float
    reserved_bytes: int
    quarantined_bytes: int
    read_leases: int
    sessions: int
    software: str


class Engine(_Document):
    """One engine over all its parties; the three counts equal those of the scrape."""

    name: str
    model: str
    state: Lifecycle
    fenced: bool
    pending_stores: int
    pending_retrieves: int
    retained_events: int
    last_heartbeat_at: float
    parties: list[Party]


class Engines(_Document):
    """Every engine that is registered, and those an operator drained or removed."""

    engines: list[Engine]


class Pool(_Document):
    """Slots and bytes of the pool by state."""

    ready: int
    writing: int
    quarantined: int
    ready_bytes: int
    writing_bytes: int
    quarantined_bytes: int
    free_bytes: int
    pool_bytes: int
    allocated_bytes: int


class GatewayState(_Document):
    """The gateway now: what was asked of it, what its checks observe, and whether it therefore serves."""

    state: Lifecycle
    health: Health
    ready: bool
    checks: list[Check]
    boot_id: str
    version: str
    run_dir: str
    started_at: float
    start_progress: float
    drain: Drain | None
    engines: list[EngineSummary]
    pool: Pool


class NamespaceUsage(_Document):
    """What the pool holds of one namespace."""

    namespace: str
    model: str
    chunks: int
    bytes: int
    last_hit_at: float | None


class ModelUsage(_Document):
    """What the pool holds of one model, over its namespaces."""

    model: str
    chunks: int
    bytes: int
    last_hit_at: float | None


class Cache(_Document):
    """What the pool holds."""

    pool: Pool
    models: list[ModelUsage]
    namespaces: list[NamespaceUsage]


class ClearResult(_Document):
    """What a clear took, or would take; of it, what readers still hold."""

    dry_run: bool
    chunks: int
    bytes: int
    held_chunks: int


class TransferState(StrEnum):
    """Whether an operation has ended."""

    PENDING = "pending"
    SETTLED = "settled"


class Transfer(_Document):
    """One store or retrieve as its adapter told it last."""

    engine: str
    party: str
    number: int
    request_id: str
    kind: OperationKind
    state: TransferState
    phase: Phase
    age_seconds: float
    chunks: int
    chunks_done: int
    outcome: OutcomeKind | None
    reason: Reason
    settled_at: float | None


class Transfers(_Document):
    """Pending operations, then those settled lately."""

    transfers: list[Transfer]


class Ready(_Document):
    """The gateway serves."""

    ready: bool
    checks: list[Check] | None = None


class Alive(_Document):
    """The core's loop turns."""

    alive: bool


# -- from the snapshot -------------------------------------------------------------------------------------------------


def checks_of(snapshot: SnapshotReply) -> list[Check]:
    """The health checks, in the core's order."""
    return [
        Check(name=c.name, ok=c.ok, critical=c.critical, age_seconds=c.age_seconds, reason=c.reason)
        for c in snapshot.checks
    ]


def drain_of(drain: DrainInfo | None) -> Drain | None:
    """The gateway's drain under way, or its last; None before the first."""
    if drain is None:
        return None
    return Drain(
        id=drain.id,
        state=drain.state,
        reason=drain.reason,
        requested_by=drain.requested_by,
        requested_at=drain.requested_at,
        deadline_at=drain.deadline_at,
        finished_at=drain.finished_at or None,
        flush=drain.flush,
        exit=drain.exit,
        outcome=drain.outcome,
        remaining=RemainingWork(
            operations=drain.remaining.operations, leases=drain.remaining.leases, dirty=drain.remaining.dirty
        ),
        done=drain.done,
        aborted=drain.aborted,
        engines=list(drain.engines),
    )


def engine_of(engine: EngineInfo) -> Engine:
    """One engine with its parties."""
    return Engine(
        name=engine.name,
        model=engine.model,
        state=engine.state,
        fenced=engine.fenced,
        pending_stores=engine.pending_stores,
        pending_retrieves=engine.pending_retrieves,
        retained_events=engine.retained_events,
        last_heartbeat_at=engine.last_heartbeat_at,
        parties=[_party_of(party) for party in engine.parties],
    )


def engines_of(snapshot: SnapshotReply) -> Engines:
    """Every engine, by name."""
    return Engines(engines=[engine_of(engine) for engine in sorted(snapshot.engines, key=lambda e: e.name)])


def find_engine(snapshot: SnapshotReply, name: str) -> Engine | None:
    """The engine of that name, None when there is none."""
    return next((engine_of(engine) for engine in snapshot.engines if engine.name == name), None)


def state_of(snapshot: SnapshotReply) -> GatewayState:
    """The gateway in one document."""
    return GatewayState(
        state=snapshot.state,
        health=snapshot.health,
        ready=snapshot.ready,
        checks=checks_of(snapshot),
        boot_id=snapshot.boot.hex(),
        version=snapshot.version,
        run_dir=snapshot.run_dir,
        started_at=snapshot.started_at,
        start_progress=snapshot.progress,
        drain=drain_of(snapshot.drain),
        engines=[_summary_of(engine) for engine in sorted(snapshot.engines, key=lambda e: e.name)],
        pool=_pool_of(snapshot),
    )


def cache_of(snapshot: SnapshotReply) -> Cache:
    """What the pool holds, by model and by namespace."""
    return Cache(
        pool=_pool_of(snapshot),
        models=_models_of(snapshot.namespaces),
        namespaces=[
            NamespaceUsage(
                namespace=n.namespace, model=n.model, chunks=n.chunks, bytes=n.bytes, last_hit_at=n.last_hit_at or None
            )
            for n in snapshot.namespaces
        ],
    )


def clear_result_of(cleared: Cleared, *, dry_run: bool) -> ClearResult:
    """The answer to a clear."""
    return ClearResult(dry_run=dry_run, chunks=cleared.chunks, bytes=cleared.bytes, held_chunks=cleared.held_chunks)


def transfers_of(
    snapshot: SnapshotReply, engine: str | None = None, request: str | None = None, state: TransferState | None = None
) -> Transfers:
    """Operations that fit every given filter: the pending, oldest first, then the settled, latest first."""
    found = [_transfer_of(transfer) for transfer in snapshot.transfers]
    fitting = [
        t
        for t in found
        if (engine is None or t.engine == engine)
        and (request is None or t.request_id == request)
        and (state is None or t.state is state)
    ]
    return Transfers(transfers=sorted(fitting, key=_story_order))


def failing_of(snapshot: SnapshotReply) -> list[tuple[str, str]]:
    """Name and reason of each thing that keeps the gateway from serving; empty when it is ready."""
    failing = [] if snapshot.state is Lifecycle.READY else [("state", f"the gateway is {snapshot.state}")]
    failing += [(c.name, c.reason or "failed") for c in snapshot.checks if c.critical and not c.ok]
    if not failing and not snapshot.ready:
        failing.append(("health", f"the gateway is {snapshot.health}"))
    return failing


def _summary_of(engine: EngineInfo) -> EngineSummary:
    return EngineSummary(
        name=engine.name,
        model=engine.model,
        state=engine.state,
        fenced=engine.fenced,
        parties=len(engine.parties),
        pending_stores=engine.pending_stores,
        pending_retrieves=engine.pending_retrieves,
        retained_events=engine.retained_events,
    )


def _party_of(party: PartyInfo) -> Party:
    return Party(
        party=party.party,
        role=party.role,
        group=party.group,
        pid=party.pid,
        namespace=party.namespace,
        shard=party.shard,
        replica=party.replica,
        state=party.state,
        registered_at=party.registered_at,
        last_heartbeat_at=party.last_heartbeat_at,
        reserved_bytes=party.reserved_bytes,
        quarantined_bytes=party.quarantined_bytes,
        read_leases=party.read_leases,
        sessions=party.sessions,
        software=party.software,
    )


def _pool_of(snapshot: SnapshotReply) -> Pool:
    slots = snapshot.slots
    return Pool(
        ready=slots.ready,
        writing=slots.writing,
        quarantined=slots.quarantined,
        ready_bytes=slots.ready_bytes,
        writing_bytes=slots.writing_bytes,
        quarantined_bytes=slots.quarantined_bytes,
        free_bytes=slots.free_bytes,
        pool_bytes=slots.pool_bytes,
        allocated_bytes=slots.allocated_bytes,
    )


def _models_of(namespaces: Iterable[NamespaceInfo]) -> list[ModelUsage]:
    by_model: dict[str, list[NamespaceInfo]] = {}
    for namespace in namespaces:
        by_model.setdefault(namespace.model, []).append(namespace)
    return [
        ModelUsage(
            model=model,
            chunks=sum(n.chunks for n in members),
            bytes=sum(n.bytes for n in members),
            last_hit_at=max(n.last_hit_at for n in members) or None,
        )
        for model, members in sorted(by_model.items())
    ]


def _transfer_of(transfer: TransferInfo) -> Transfer:
    operation = transfer.operation
    return Transfer(
        engine=transfer.engine,
        party=transfer.party,
        number=operation.number,
        request_id=operation.request_id,
        kind=operation.kind,
        state=TransferState.PENDING if operation.outcome is None else TransferState.SETTLED,
        phase=operation.phase,
        age_seconds=operation.age_seconds,
        chunks=operation.chunks,
        chunks_done=operation.chunks_done,
        outcome=operation.outcome,
        reason=operation.reason,
        settled_at=operation.settled_at or None,
    )


def _story_order(transfer: Transfer) -> tuple[bool, float]:
    if transfer.state is TransferState.PENDING:
        return False, -transfer.age_seconds
    return True, -(transfer.settled_at or 0.0)
