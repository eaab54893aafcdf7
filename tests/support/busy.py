"""A gateway with much to do, as its snapshot tells it: engines, operations and totals that go on with the time."""

import math
import random
import time

import msgspec

from gateway.metrics.table import ADAPTER, Type
from gateway.wire.codes import Lifecycle, OperationKind, OutcomeKind, Phase, Reason, Role, State
from gateway.wire.messages import (
    EngineInfo,
    HistogramSample,
    NamespaceInfo,
    OperationInfo,
    PartyInfo,
    Sample,
    SlotCounts,
    SnapshotReply,
    TransferInfo,
)
from tests.support import core_double

GIB = 1 << 30
MODELS = ("llama-3.3-70b", "qwen3-32b", "mistral-small")
#: What one of a hundred operations comes to, and why.
ENDS = (
    *[(OutcomeKind.STORED, Reason.NONE)] * 52,
    *[(OutcomeKind.LOADED, Reason.NONE)] * 40,
    *[(OutcomeKind.REFUSED, Reason.BUSY)] * 4,
    *[(OutcomeKind.REVOKED, Reason.NONE)] * 2,
    (OutcomeKind.PARTIAL, Reason.MISSING),
    (OutcomeKind.FAILED, Reason.NO_REPLY),
)


class Busy:
    """Made once; every ``snapshot`` is of the moment it is asked for.

    Args:
        engines: how many, of three models.
        pending: operations that each has pending.
        settled: operations settled lately, over all.
    """

    def __init__(self, engines: int, *, pending: int = 3, settled: int = 120) -> None:
        self._random = random.Random(7)
        self._began_at = time.time()
        self.names = [f"gpu{number // 8 + 1:02}-{number % 8}" for number in range(engines)]
        self._pending = pending
        self._settled = [self._operation(number, number % engines) for number in range(settled)]

    def snapshot(self, **changes: object) -> SnapshotReply:
        """The gateway now; ``changes`` replace fields."""
        now = time.time()
        ran = now - self._began_at + 3600
        used = 0.72 + 0.1 * ((ran / 40) % 1)
        ready = int(used * 1900)
        looked_up = int(61_000 * _flow(ran, 110))
        base = core_double.snapshot(
            started_at=self._began_at - 3 * 86400,
            run_dir="/run/kvgate",
            engines=tuple(self._engine(index, now, ran) for index in range(len(self.names))),
            namespaces=tuple(
                NamespaceInfo(
                    namespace=f"{i:032x}", model=model, chunks=ready // 3, bytes=ready * 11 << 20, last_hit_at=now
                )
                for i, model in enumerate(MODELS)
            ),
            slots=SlotCounts(
                ready=ready, writing=24, quarantined=0, ready_bytes=ready << 25, writing_bytes=24 << 25,
                quarantined_bytes=0, free_bytes=64 * GIB - ((ready + 24) << 25), pool_bytes=64 * GIB,
                allocated_bytes=64 * GIB,
            ),
            counters=(
                Sample("lookup_tokens", (MODELS[0],), looked_up),
                Sample("hit_tokens", (MODELS[0],), int(0.6 * looked_up + 3_000 * _flow(ran, 150))),
                Sample("transfer_bytes", ("store",), int(_flow(ran, 70) * 1.4 * GIB)),
                Sample("transfer_bytes", ("retrieve",), int(_flow(ran, 90) * 3.1 * GIB)),
                Sample("evictions", ("capacity",), int(ran * 3)),
            ),
        )  # fmt: skip
        return msgspec.structs.replace(base, **changes)

    def with_transfers(self, most: int = 0, **changes: object) -> SnapshotReply:
        """The same with operations: so many of each kind, or all."""
        now = time.time()
        pending = [
            TransferInfo(engine=name, party=f"{index:032x}", operation=self._underway(index, number))
            for index, name in enumerate(self.names)
            for number in range(self._num_pending(index, now))
        ]
        settled = [
            msgspec.structs.replace(one, operation=msgspec.structs.replace(one.operation, settled_at=now - i * 0.7))
            for i, one in enumerate(self._settled)
        ]
        kept = (pending[:most], settled[:most]) if most else (pending, settled)
        return self.snapshot(transfers=(*kept[0], *kept[1]), **changes)

    def _engine(self, index: int, now: float, ran: float) -> EngineInfo:
        name = self.names[index]
        pending = self._num_pending(index, now)
        loaded = _flow(ran, 80) * (700 + 13 * (index % 9))
        return core_double.engine(
            name,
            model=MODELS[index % 3],
            parties=tuple(self._party(index, role, now) for role in Role),
            state=Lifecycle.READY,
            pending_stores=pending - 1,
            pending_retrieves=1,
            retained_events=pending - 1,
            last_heartbeat_at=now - 0.1 - 0.013 * index,
            gauges=_gauges(now - 0.2 - 0.02 * (index % 17)),
            counters=_counters({"prompt_tokens": loaded * 1.7, "loaded_tokens": loaded}),
            histograms=_histograms(),
        )

    def _num_pending(self, index: int, now: float) -> int:
        """How many operations an engine has pending; one of them at least, and the last is a retrieve."""
        return max(1, self._pending + (index * 7 + int(now)) % 3 + int(2 * math.cos(now / 23)))

    def _party(self, index: int, role: Role, now: float) -> PartyInfo:
        return PartyInfo(
            party=f"{index:031x}{'0' if role is Role.WORKER else '1'}", role=role, group=f"g{index}", pid=4000 + index,
            namespace="ab" * 16, shard=0, replica=0, state=State.HEALTHY, registered_at=self._began_at,
            last_heartbeat_at=now, reserved_bytes=0, quarantined_bytes=0, read_leases=1, sessions=2,
            software="kvgate-adapter/0.1.0",
        )  # fmt: skip

    def _operation(self, number: int, engine: int) -> TransferInfo:
        outcome, reason = self._random.choice(ENDS)
        is_load = outcome in (OutcomeKind.LOADED, OutcomeKind.PARTIAL)
        chunks = self._random.choice((4, 8, 16, 32))
        done = {OutcomeKind.STORED: chunks, OutcomeKind.LOADED: chunks, OutcomeKind.PARTIAL: chunks - 3}.get(outcome, 0)
        operation = OperationInfo(
            number=number, request_id=self._request_id(),
            kind=OperationKind.RETRIEVE if is_load else OperationKind.STORE,
            phase=Phase.SETTLED, age_seconds=self._random.uniform(0.01, 0.3), chunks=chunks, outcome=outcome,
            reason=reason, chunks_done=done, settled_at=1.0,
        )  # fmt: skip
        return TransferInfo(engine=self.names[engine], party=f"{engine:032x}", operation=operation)

    def _underway(self, engine: int, number: int) -> OperationInfo:
        return OperationInfo(
            number=1_000_000 + number, request_id=f"chatcmpl-{engine:04x}{number:04x}", kind=OperationKind.STORE,
            phase=Phase.COPYING, age_seconds=0.02 * ((engine + number) % 17), chunks=16,
            chunks_done=(engine * 5 + number) % 16,
        )  # fmt: skip

    def _request_id(self) -> str:
        return f"chatcmpl-{self._random.getrandbits(48):012x}"


def _flow(seconds: float, period_seconds: float) -> float:
    """What has flowed after so long, one a second in the mean, by turns more and less."""
    turn = 2 * math.pi / period_seconds
    return seconds + 0.3 * math.sin(turn * seconds) / turn + 0.15 * math.sin(2.7 * turn * seconds) / (2.7 * turn)


def _counters(values: dict[str, float]) -> tuple[Sample, ...]:
    """Every counter of the table without labels or with closed ones, as a running adapter tells them."""
    return tuple(
        Sample(metric.name, labels, values.get(metric.name, 17.0))
        for metric in ADAPTER
        if metric.type is Type.COUNTER
        for labels in _label_sets(metric.labels)
    )


def _gauges(oldest_at: float) -> tuple[Sample, ...]:
    return (
        Sample("settling_operations", (), 0),
        Sample("oldest_pending_timestamp_seconds", (), oldest_at),
        *(Sample("gateway_state", (state,), float(state is State.HEALTHY)) for state in State),
    )


def _histograms() -> tuple[HistogramSample, ...]:
    return tuple(
        HistogramSample(metric.name, labels, tuple(range(len(metric.buckets) + 1)), 12.5)
        for metric in ADAPTER
        if metric.type is Type.HISTOGRAM
        for labels in _label_sets(metric.labels)
    )


def _label_sets(labels: tuple) -> list[tuple[str, ...]]:
    sets: list[tuple[str, ...]] = [()]
    for label in labels:
        sets = [(*before, value) for before in sets for value in label.values or ("x",)]
    return sets
