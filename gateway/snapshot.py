"""One reading of everything an operator or a scrape may see.

Owns: how the core's readings, the engines' statistics, the checks and the counts become one ``SnapshotReply``. Must not
know: who asks, how it is shown. Runs on the loop's thread, in one step of it, so that its parts cannot disagree.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway import __version__
from gateway.audit import AuditLog
from gateway.core.core import Core
from gateway.core.types import DrainRecord, NamespaceRecord, PartyState
from gateway.engines import EngineReading, EngineStats
from gateway.handles.desk import Desk
from gateway.health import HealthChecks
from gateway.switchboard import Switchboard
from gateway.traffic import Traffic
from gateway.wire.codes import Health, Lifecycle, OperationKind, Role
from gateway.wire.messages import (
    DrainInfo,
    EngineInfo,
    HistogramSample,
    NamespaceInfo,
    PartyInfo,
    Remaining,
    Sample,
    SlotCounts,
    SnapshotReply,
)

#: Record, chunks, bytes, wall time of the last hit.
NamespaceUsage = tuple[NamespaceRecord, int, int, float]

_NOBODY = EngineReading(model="", gauges=(), counters=(), histograms=(), last_heartbeat_at=0.0)


@dataclass
class StartProgress:
    """How far the start has come; written by the loop's thread only."""

    share: float = 0.0  # of the pool's memory reserved, 0 to 1
    is_reserving: bool = True
    recovered_chunks: int = 0


@dataclass(frozen=True)
class SnapshotSource:
    """Everything a snapshot is read from."""

    core: Core
    engines: EngineStats
    checks: HealthChecks
    traffic: Traffic
    switches: Switchboard
    audit: AuditLog
    progress: StartProgress
    boot: bytes
    started_at: float
    run_dir: str
    allocated_bytes: Callable[[], int]
    desk: Desk

    def take(self, number: int, *, transfers: bool, now: float, max_transfers: int = 0) -> SnapshotReply:
        """What is, at this moment; of operations the most telling ``max_transfers`` of each kind, 0: all."""
        state = self.core.state
        health, _ = self.checks.health(now)
        usage = self.core.namespace_usage()
        return SnapshotReply(
            number=number,
            boot=self.boot,
            version=__version__,
            state=state,
            health=health,
            ready=state is Lifecycle.READY and health is not Health.UNHEALTHY,
            checks=self.checks.readings(now),
            started_at=self.started_at,
            progress=self.progress.share,
            drain=self.drain(),
            engines=tuple(self._engines()),
            namespaces=tuple(
                NamespaceInfo(
                    namespace=record.namespace.hex(),
                    model=record.model,
                    chunks=chunks,
                    bytes=num_bytes,
                    last_hit_at=last_hit_at,
                )
                for record, chunks, num_bytes, last_hit_at in usage
            ),
            slots=SlotCounts(**self.core.slot_counts(), allocated_bytes=self.allocated_bytes()),
            gauges=tuple(self._gauges(usage)),
            counters=tuple(self._counters()),
            histograms=tuple(self._histograms()),
            transfers=tuple(self.engines.transfers(max_transfers)) if transfers else (),
            run_dir=self.run_dir,
            loop_age_seconds=self.checks.age_seconds("loop", now),
            switches=self.switches.infos(),
            silence_seconds=self.engines.silence_seconds,
        )

    def drain(self) -> DrainInfo | None:
        """The gateway's present or last drain; None before the first."""
        record = self.core.drain_record()
        return None if record is None else self._drain_info(record)

    def _drain_info(self, record: DrainRecord) -> DrainInfo:
        operations, leases = self.core.remaining()
        return DrainInfo(
            id=record.id,
            state=record.state,
            reason=record.reason,
            requested_by=record.requested_by,
            requested_at=record.requested_at,
            deadline_at=record.deadline_at,
            finished_at=record.finished_at,
            flush=record.flush,
            exit=record.exit,
            outcome=record.outcome,
            remaining=Remaining(operations=operations, leases=leases),
            done=record.done,
            aborted=record.aborted,
            engines=tuple(sorted(self.core.engine_states())),
        )

    def _engines(self) -> Iterator[EngineInfo]:
        """Every engine name that has parties, or had some lately."""
        readings = self.engines.readings()
        states = {self.engines.engine_label(name): state for name, state in self.core.engine_states().items()}
        parties: dict[str, list[PartyInfo]] = {}
        models: dict[str, str] = {}
        for party in self.core.party_states():
            label = self.engines.engine_label(party.spec.engine)
            parties.setdefault(label, []).append(self._party(party))
            models[label] = party.spec.model
        for name in sorted(readings.keys() | states.keys()):
            reading = readings.get(name, _NOBODY)
            state, is_fenced = states.get(name, (Lifecycle.READY, False))
            yield EngineInfo(
                name=name,
                model=reading.model or models.get(name, ""),
                state=state,
                fenced=is_fenced,
                parties=tuple(parties.get(name, ())),
                pending_stores=int(reading.gauge("pending_stores")),
                pending_retrieves=int(reading.gauge("pending_retrieves")),
                retained_events=int(reading.gauge("retained_events")),
                last_heartbeat_at=reading.last_heartbeat_at,
                gauges=reading.gauges,
                counters=reading.counters,
                histograms=reading.histograms,
            )

    def _party(self, party: PartyState) -> PartyInfo:
        spec = party.spec
        return PartyInfo(
            party=spec.party.hex(),
            role=spec.role,
            group=spec.group,
            pid=spec.pid,
            namespace=spec.namespace.hex(),
            shard=spec.shard,
            replica=spec.replica,
            state=self.engines.state_of(spec.party),
            registered_at=party.registered_at,
            last_heartbeat_at=party.last_heartbeat_at,
            reserved_bytes=party.reserved_bytes,
            quarantined_bytes=party.quarantined_bytes,
            read_leases=party.read_leases,
            sessions=party.sessions,
            software=spec.software,
        )

    def _gauges(self, usage: Sequence[NamespaceUsage]) -> Iterator[Sample]:
        """What the reply's own fields do not already say."""
        lookup_leases, read_leases, reservations = self.core.lease_counts()
        yield Sample("leases", ("lookup",), lookup_leases)
        yield Sample("leases", ("read",), read_leases)
        yield Sample("reservations", (), reservations)
        yield from self.desk.gauges()
        yield Sample("recovered_chunks", (), self.progress.recovered_chunks)
        yield Sample("queue_length", ("reserve_pool",), float(self.progress.is_reserving))
        yield Sample("queue_bound", ("reserve_pool",), 1)
        states = ["fenced" if is_fenced else str(state) for state, is_fenced in self.core.engine_states().values()]
        for name in ("ready", "draining", "drained", "fenced"):
            yield Sample("engines", (name,), states.count(name))
        roles = [party.spec.role for party in self.core.party_states()]
        for role in Role:
            yield Sample("parties", (role,), roles.count(role))
        yield from self.switches.gauges()
        for owner in (self.core, self.engines, self.desk):
            for table, entries in owner.table_sizes().items():
                yield Sample("table_entries", (table,), entries)
        models: dict[str, tuple[int, int]] = {}
        for record, chunks, num_bytes, _ in usage:
            label = self.engines.model_label(record.model)
            chunks_before, bytes_before = models.get(label, (0, 0))
            models[label] = (chunks_before + chunks, bytes_before + num_bytes)
        for model, (chunks, num_bytes) in models.items():
            yield Sample("model_chunks", (model,), chunks)
            yield Sample("model_bytes", (model,), num_bytes)

    def _counters(self) -> Iterator[Sample]:
        counts = self.core.counts
        yield Sample("lookup_evicted_keys", (), counts.lookup_evicted_keys)
        yield Sample("commits", (), counts.commits)
        yield Sample("aborts", (), counts.aborts)
        yield Sample("engine_deaths", (), counts.deaths)
        yield Sample("transfer_bytes", (OperationKind.STORE,), counts.stored_bytes)
        yield Sample("transfer_bytes", (OperationKind.RETRIEVE,), counts.leased_bytes)
        for name in ("evictions", "drains", "lookup_tokens", "hit_tokens"):
            for label, count in getattr(counts, name).items():
                yield Sample(name, (label,), count)
        yield from self.desk.counters()
        yield from self.traffic.counters()
        yield from self.audit.counters()

    def _histograms(self) -> Iterator[HistogramSample]:
        counts = self.core.counts
        yield HistogramSample(
            "eviction_idle_seconds", (), tuple(counts.eviction_idle_seconds), counts.eviction_idle_sum
        )
        yield from self.traffic.histograms()
