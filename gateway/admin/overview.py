"""Everything an operator looks at, in one document: for the page, for ``kvgate top`` and for ``kvgate status``.

Owns: its shape, and how it is read from a snapshot. Must not know: HTTP, sockets, how it is drawn. Pure.

It is made once a second for everybody who watches, so its size has a bound whatever the engines do: operations are
those pending longest and those settled last, ``MAX_TRANSFERS`` of each; the rest is counted.
"""

from gateway.admin import verdict, views
from gateway.admin.verdict import Severity, Trouble
from gateway.wire.codes import Health, Lifecycle
from gateway.wire.messages import EngineInfo, Sample, SnapshotReply

MAX_TRANSFERS = 100


class Finding(views.Document):
    """One thing that is not as it should be, and the one next step."""

    name: str
    severity: Severity
    detail: str
    next_step: str


class Verdict(views.Document):
    """Whether all is well, in a sentence, and everything that is not, worst first."""

    severity: Severity
    line: str
    findings: list[Finding]


class EngineRow(views.Document):
    """One engine. ``trouble`` is a few words, empty when nothing is the matter."""

    name: str
    model: str
    state: views.EngineState
    fenced: bool
    severity: Severity
    trouble: str
    parties: int
    pending_stores: int
    pending_retrieves: int
    retained_events: int
    oldest_pending_at: views.MaybeAt
    last_heartbeat_at: views.MaybeAt


class Totals(views.Document):
    """What only grows, since the gateway's boot; for rates, take the difference of two documents of one boot.

    ``prompt_tokens`` are all that engines were given; ``loaded_tokens`` of them were loaded, so not computed: saved.
    """

    prompt_tokens: int
    loaded_tokens: int
    lookup_tokens: int
    hit_tokens: int
    stored_bytes: int
    retrieved_bytes: int
    evictions: int


class Overview(views.Document):
    """The gateway at one moment. ``at`` is the admin process's clock, to which all ages refer."""

    at: float
    verdict: Verdict
    state: Lifecycle
    health: Health
    ready: bool
    checks: list[views.Check]
    boot_id: str
    version: str
    run_dir: str
    started_at: float
    start_progress: float
    drain: views.Drain | None
    switches: list[views.Switch]
    pool: views.Pool
    totals: Totals
    engines: list[EngineRow]
    pending: int
    transfers: list[views.Transfer]


def overview_of(snapshot: SnapshotReply, at: float) -> Overview:
    """The document of a snapshot that was taken at this Unix time."""
    findings = verdict.findings_of(snapshot, at)
    return Overview(
        at=at,
        verdict=Verdict(
            severity=findings[0].severity if findings else Severity.GOOD,
            line=verdict.verdict_line(snapshot, findings),
            findings=[Finding.model_validate(finding._asdict()) for finding in findings],
        ),
        state=snapshot.state,
        health=snapshot.health,
        ready=snapshot.ready,
        checks=views.checks_of(snapshot),
        boot_id=snapshot.boot.hex(),
        version=snapshot.version,
        run_dir=snapshot.run_dir,
        started_at=snapshot.started_at,
        start_progress=snapshot.progress,
        drain=views.drain_of(snapshot.drain),
        switches=views.switches_of(snapshot).switches,
        pool=views.Pool.model_validate(snapshot.slots),
        totals=_totals_of(snapshot),
        engines=[_row_of(engine, trouble) for engine, trouble in verdict.worst_first(snapshot, at)],
        pending=sum(engine.pending_stores + engine.pending_retrieves for engine in snapshot.engines),
        transfers=_bounded(views.transfers_of(snapshot).transfers),
    )


def _row_of(engine: EngineInfo, trouble: Trouble) -> EngineRow:
    return EngineRow(
        name=engine.name,
        model=engine.model,
        state=views.engine_state(engine),
        fenced=engine.fenced,
        severity=trouble.severity,
        trouble=trouble.reason,
        parties=len(engine.parties),
        pending_stores=engine.pending_stores,
        pending_retrieves=engine.pending_retrieves,
        retained_events=engine.retained_events,
        oldest_pending_at=verdict.oldest_pending_at(engine),
        last_heartbeat_at=engine.last_heartbeat_at,
    )


def _totals_of(snapshot: SnapshotReply) -> Totals:
    told = [sample for engine in snapshot.engines for sample in engine.counters]
    return Totals(
        prompt_tokens=_sum(told, "prompt_tokens"),
        loaded_tokens=_sum(told, "loaded_tokens"),
        lookup_tokens=_sum(snapshot.counters, "lookup_tokens"),
        hit_tokens=_sum(snapshot.counters, "hit_tokens"),
        stored_bytes=_sum(snapshot.counters, "transfer_bytes", "store"),
        retrieved_bytes=_sum(snapshot.counters, "transfer_bytes", "retrieve"),
        evictions=_sum(snapshot.counters, "evictions"),
    )


def _sum(samples: list[Sample] | tuple[Sample, ...], name: str, *labels: str) -> int:
    return int(sum(s.value for s in samples if s.name == name and (not labels or s.labels == labels)))


def _bounded(transfers: list[views.Transfer]) -> list[views.Transfer]:
    """So many of each kind, in the order they come in."""
    pending = [one for one in transfers if one.state is views.TransferState.PENDING]
    return pending[:MAX_TRANSFERS] + transfers[len(pending) :][:MAX_TRANSFERS]
