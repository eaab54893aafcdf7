"""One worker half as its admin server tells of it.

Owns: the reading that a worker gives, and how it becomes the document source that the gateway's admin API has too: a
snapshot in the words of the wire. Must not know: HTTP, the adapter. Pure.

What an operator asked of this adapter is its ``state``, beside which its switches are told; what it observes of the
gateway is a check, and so its health. Slots and namespaces are the gateway's to tell: they are empty here.
"""

from dataclasses import dataclass

from adapter.totals import PendingCounts
from gateway import __version__
from gateway.wire.codes import Health, Lifecycle, Role, State
from gateway.wire.messages import (
    CheckInfo,
    DrainInfo,
    EngineInfo,
    OperationInfo,
    PartyInfo,
    Register,
    SlotCounts,
    SnapshotReply,
    SwitchInfo,
    TransferInfo,
)

#: A link that did not go round for so long has failed; it goes round at least every 50 ms.
MAX_LINK_AGE_SECONDS = 5.0
LINK_CHECK = "link"

_NO_SLOTS = SlotCounts(
    ready=0,
    writing=0,
    quarantined=0,
    ready_bytes=0,
    writing_bytes=0,
    quarantined_bytes=0,
    free_bytes=0,
    pool_bytes=0,
    allocated_bytes=0,
)


@dataclass(frozen=True)
class Report:
    """A worker half now, read in one step.

    Attributes:
        lifecycle: what an operator asked of it.
        gateway: its view of the gateway.
        party: who it is.
        identity: what it says of itself when it registers; None without a KV cache.
        link_age_seconds: since the link thread went round last.
        boot: the gateway's, as adopted; empty: none.
        switches: every one that it obeys.
    """

    engine: str
    model: str
    party: bytes
    identity: Register | None
    run_dir: str
    started_at: float
    lifecycle: Lifecycle
    gateway: State
    boot: bytes
    link_age_seconds: float
    switches: tuple[SwitchInfo, ...]
    drain: DrainInfo | None
    counts: PendingCounts
    pending: tuple[OperationInfo, ...]
    settled: tuple[OperationInfo, ...]


def to_snapshot(report: Report, pid: int) -> SnapshotReply:
    """The report as the snapshot from which the admin API's documents are read."""
    checks = _checks(report)
    party = report.party.hex()
    health = Health.HEALTHY
    if not all(check.ok for check in checks):
        health = Health.DEGRADED if all(check.ok for check in checks if check.critical) else Health.UNHEALTHY
    return SnapshotReply(
        number=0,
        boot=report.boot,
        version=__version__,
        state=report.lifecycle,
        health=health,
        ready=report.lifecycle is Lifecycle.READY and health is Health.HEALTHY,
        checks=checks,
        started_at=report.started_at,
        progress=1.0,
        drain=report.drain,
        engines=(_engine(report, pid),),
        namespaces=(),
        slots=_NO_SLOTS,
        gauges=(),
        counters=(),
        histograms=(),
        transfers=tuple(
            TransferInfo(engine=report.engine, party=party, operation=info)
            for info in (*report.pending, *report.settled)
        ),
        run_dir=report.run_dir,
        loop_age_seconds=report.link_age_seconds,
        switches=report.switches,
    )


def _checks(report: Report) -> tuple[CheckInfo, ...]:
    link_ok, gateway_ok = report.link_age_seconds < MAX_LINK_AGE_SECONDS, report.gateway is State.HEALTHY
    return (
        CheckInfo(
            name=LINK_CHECK,
            ok=link_ok,
            critical=True,
            age_seconds=report.link_age_seconds,
            reason="" if link_ok else "the link thread does not go round",
        ),
        CheckInfo(
            name="gateway",
            ok=gateway_ok,
            critical=False,
            age_seconds=report.link_age_seconds,
            reason="" if gateway_ok else f"the gateway is {report.gateway}, as this adapter sees it",
        ),
    )


def _engine(report: Report, pid: int) -> EngineInfo:
    identity = report.identity
    party = PartyInfo(
        party=report.party.hex(),
        role=Role.WORKER,
        group="" if identity is None else identity.group,
        pid=pid,
        namespace="" if identity is None else identity.namespace.hex(),
        shard=0 if identity is None else identity.shard,
        replica=0 if identity is None else identity.replica,
        state=report.gateway,
        registered_at=0.0,
        last_heartbeat_at=0.0,
        reserved_bytes=0,
        quarantined_bytes=0,
        read_leases=0,
        sessions=0,
        software=f"kvgate {__version__}",
    )
    return EngineInfo(
        name=report.engine,
        model=report.model,
        state=report.lifecycle,
        fenced=False,
        parties=(party,),
        pending_stores=report.counts.stores,
        pending_retrieves=report.counts.retrieves,
        retained_events=report.counts.events,
        last_heartbeat_at=0.0,
        gauges=(),
        counters=(),
        histograms=(),
    )
