"""The documents of the admin API, and how each is read from the core's snapshot.

Owns: names and shapes of what operators see; API and command line share them. Must not know: HTTP, sockets.
Pure: a snapshot in, a document out.

Times named ``*_at`` are Unix seconds, null where the thing has not happened. Bodies of requests refuse unknown fields:
a misspelt ``deadline_second`` must not become a drain with the default deadline. Documents take the fields of the
wire's structs by name, so a field stands here once.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gateway.wire.codes import (
    DrainOutcome,
    Health,
    Lifecycle,
    OperationKind,
    OutcomeKind,
    Phase,
    Reason,
    Role,
    State,
    SwitchMode,
    SwitchScope,
)
from gateway.wire.messages import (
    Cleared,
    DrainInfo,
    EngineInfo,
    NamespaceInfo,
    SnapshotReply,
    TransferInfo,
)

MAX_DEADLINE_SECONDS = 86400
_MAX_NAMES = 10  # of engines, in one sentence

ReasonText = Annotated[str, Field(max_length=500, description="For the audit log and for whoever looks later.")]
DeadlineSeconds = Annotated[float, Field(ge=0, le=MAX_DEADLINE_SECONDS, allow_inf_nan=False)]


class _Body(BaseModel):
    # Strict: false is no deadline of 0 seconds, which would cut work, and "no" is no truth value.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Document(BaseModel):
    """What a route answers with."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


#: The wire says 0 for what has not happened.
MaybeAt = Annotated[float | None, BeforeValidator(lambda at: at or None)]


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


class SwitchBody(_Body):
    """What is to be allowed, and why."""

    # A mode is a word in JSON: strictness would ask for the type that JSON does not have.
    mode: Annotated[SwitchMode, Field(strict=False)]
    reason: ReasonText = ""


class ClearBody(_Body):
    """What to forget: exactly one of ``model``, ``namespace`` and ``all``. ``dry_run`` only counts."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["model"], "properties": {"model": {"minLength": 1}}},
                {"required": ["namespace"], "properties": {"namespace": {"minLength": 1}}},
                {"required": ["all"], "properties": {"all": {"const": True}}},
            ]
        }
    )

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


class Check(Document):
    """One health check. A critical one that fails makes the gateway unhealthy."""

    name: str
    ok: bool
    critical: bool
    age_seconds: float
    reason: str


class RemainingWork(Document):
    """What a drain still waits for."""

    operations: int
    leases: int
    dirty: int


class Drain(Document):
    """A drain of the gateway. ``done`` and ``aborted`` count operations ended and cut since it began."""

    id: str
    state: Lifecycle
    reason: str
    requested_by: str
    requested_at: float
    deadline_at: float
    finished_at: MaybeAt
    flush: bool
    exit: bool
    outcome: DrainOutcome | None
    remaining: RemainingWork
    done: int
    aborted: int
    engines: list[str]


class EngineState(StrEnum):
    """What an engine is, apart from the gateway."""

    READY = "ready"
    DRAINING = "draining"  # alone
    DRAINED = "drained"  # alone, or fenced
    STOPPED = "stopped"  # told by its own admin server: the adapter is closed
    GONE = "gone"  # its parties have left; what it counted is still shown


class EngineSummary(Document):
    """One engine in a line."""

    name: str
    model: str
    state: EngineState
    fenced: bool
    parties: int
    pending_stores: int
    pending_retrieves: int
    retained_events: int


class Party(Document):
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


class Engine(Document):
    """One engine over all its parties; the three counts equal those of the scrape."""

    name: str
    model: str
    state: EngineState
    fenced: bool
    pending_stores: int
    pending_retrieves: int
    retained_events: int
    last_heartbeat_at: float
    parties: list[Party]


class Engines(Document):
    """Every engine that is registered, and those an operator drained or removed."""

    engines: list[Engine]


class Switch(Document):
    """What an operator lets a node, a model or an engine do, for good. ``since_at`` null: it is the setting's."""

    scope: SwitchScope
    name: str
    mode: SwitchMode
    since_at: MaybeAt


class Switches(Document):
    """Every switch that is set; what has none is on."""

    switches: list[Switch]


class Pool(Document):
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


class GatewayState(Document):
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
    switches: list[Switch]
    pool: Pool


class NamespaceUsage(Document):
    """What the pool holds of one namespace."""

    namespace: str
    model: str
    chunks: int
    bytes: int
    last_hit_at: MaybeAt


class ModelUsage(Document):
    """What the pool holds of one model, over its namespaces."""

    model: str
    chunks: int
    bytes: int
    last_hit_at: MaybeAt


class Cache(Document):
    """What the pool holds."""

    pool: Pool
    models: list[ModelUsage]
    namespaces: list[NamespaceUsage]


class ClearResult(Document):
    """What a clear took, or would take; of it, what readers still hold."""

    dry_run: bool
    chunks: int
    bytes: int
    held_chunks: int


class TransferState(StrEnum):
    """Whether an operation has ended."""

    PENDING = "pending"
    SETTLED = "settled"


class Transfer(Document):
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
    settled_at: MaybeAt


class Transfers(Document):
    """Pending operations, then those settled lately."""

    transfers: list[Transfer]


class Ready(Document):
    """The gateway serves."""

    ready: bool
    checks: list[Check] | None = None


class Alive(Document):
    """The core's loop turns."""

    alive: bool


# -- from the snapshot -------------------------------------------------------------------------------------------------


def drain_of(drain: DrainInfo | None) -> Drain | None:
    """The gateway's drain under way, or its last; None before the first."""
    return None if drain is None else Drain.model_validate(drain)


def engines_of(snapshot: SnapshotReply) -> Engines:
    """Every engine, by name."""
    return Engines(engines=[_engine_of(engine) for engine in _by_name(snapshot.engines)])


class NoSuchEngineError(Exception):
    """No engine has the name, or nothing of it is here; the message says what there is."""


def find_engine(snapshot: SnapshotReply, name: str) -> Engine:
    """The engine of that name.

    Raises:
        NoSuchEngineError: there is none.
    """
    for engine in snapshot.engines:
        if engine.name == name:
            return _engine_of(engine)
    raise NoSuchEngineError(no_engine(name, _states(snapshot)))


def find_engine_here(snapshot: SnapshotReply, name: str) -> Engine:
    """The engine of that name, of which something can still be asked.

    Raises:
        NoSuchEngineError: there is none, or it is gone.
    """
    found = find_engine(snapshot, name)
    if found.state is EngineState.GONE:
        heard = f", last heard of at {_clock(found.last_heartbeat_at)}" if found.last_heartbeat_at else ""
        here = {other: state for other, state in _states(snapshot).items() if state is not EngineState.GONE}
        raise NoSuchEngineError(
            f"engine {name!r} is gone{heard}: nothing of it is left to change; here are: {_names(here)}"
        )
    return found


def no_engine(name: str, known: Mapping[str, EngineState]) -> str:
    """The sentence for whoever names an engine that is not among the ``known``."""
    return f"there is no engine {name!r}; known are: {_names(known)}"


def _states(snapshot: SnapshotReply) -> dict[str, EngineState]:
    return {engine.name: engine_state(engine) for engine in _by_name(snapshot.engines)}


def _names(engines: Mapping[str, EngineState]) -> str:
    """A few names, the gone marked as such."""
    names = [f"{name} (gone)" if state is EngineState.GONE else name for name, state in engines.items()]
    return ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "") or "none"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def engine_state(engine: EngineInfo) -> EngineState:
    """What an engine is. A name without parties is a memory: nothing of it can be ready."""
    is_gone = not engine.parties and not engine.fenced and engine.state is Lifecycle.READY
    return EngineState.GONE if is_gone else EngineState(engine.state)


def _engine_of(engine: EngineInfo) -> Engine:
    return Engine.model_validate(engine).model_copy(update={"state": engine_state(engine)})


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
        engines=[
            EngineSummary(
                name=engine.name,
                model=engine.model,
                state=engine_state(engine),
                fenced=engine.fenced,
                parties=len(engine.parties),
                pending_stores=engine.pending_stores,
                pending_retrieves=engine.pending_retrieves,
                retained_events=engine.retained_events,
            )
            for engine in _by_name(snapshot.engines)
        ],
        switches=switches_of(snapshot).switches,
        pool=Pool.model_validate(snapshot.slots),
    )


def switches_of(snapshot: SnapshotReply) -> Switches:
    """Every switch that is set."""
    return Switches(switches=[Switch.model_validate(switch) for switch in snapshot.switches])


def checks_of(snapshot: SnapshotReply) -> list[Check]:
    """The health checks, in the core's order."""
    return [Check.model_validate(check) for check in snapshot.checks]


def failing_of(snapshot: SnapshotReply) -> list[tuple[str, str]]:
    """Name and reason of each thing that keeps the gateway from serving; empty when it is ready."""
    failing = [] if snapshot.state is Lifecycle.READY else [("state", f"the gateway is {snapshot.state}")]
    failing += [(check.name, check.reason or "failed") for check in snapshot.checks if check.critical and not check.ok]
    if not failing and not snapshot.ready:
        failing.append(("health", f"the gateway is {snapshot.health}"))
    return failing


def cache_of(snapshot: SnapshotReply) -> Cache:
    """What the pool holds, by model and by namespace."""
    by_model: dict[str, list[NamespaceInfo]] = {}
    for namespace in snapshot.namespaces:
        by_model.setdefault(namespace.model, []).append(namespace)
    return Cache(
        pool=Pool.model_validate(snapshot.slots),
        models=[
            ModelUsage(
                model=model,
                chunks=sum(n.chunks for n in members),
                bytes=sum(n.bytes for n in members),
                last_hit_at=max(n.last_hit_at for n in members),
            )
            for model, members in sorted(by_model.items())
        ],
        namespaces=[NamespaceUsage.model_validate(namespace) for namespace in snapshot.namespaces],
    )


def clear_result_of(cleared: Cleared, *, dry_run: bool) -> ClearResult:
    """The answer to a clear."""
    return ClearResult(dry_run=dry_run, chunks=cleared.chunks, bytes=cleared.bytes, held_chunks=cleared.held_chunks)


def transfers_of(
    snapshot: SnapshotReply, engine: str | None = None, request: str | None = None, state: TransferState | None = None
) -> Transfers:
    """Operations that fit every given filter: the pending, oldest first, then the settled, latest first."""
    fitting = [
        transfer
        for transfer in map(_transfer_of, snapshot.transfers)
        if (engine is None or transfer.engine == engine)
        and (request is None or transfer.request_id == request)
        and (state is None or transfer.state is state)
    ]
    return Transfers(transfers=sorted(fitting, key=_story_order))


def _by_name(engines: Iterable[EngineInfo]) -> list[EngineInfo]:
    return sorted(engines, key=lambda engine: engine.name)


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
        settled_at=operation.settled_at,
    )


def _story_order(transfer: Transfer) -> tuple[bool, float]:
    if transfer.state is TransferState.PENDING:
        return False, -transfer.age_seconds
    return True, -(transfer.settled_at or 0.0)
