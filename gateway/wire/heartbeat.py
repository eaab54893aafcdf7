"""Heartbeats: what a party holds and how it fares, and what the gateway says of itself.

Owns: PING, PONG and the statistics that ride on them. Must not know: how either side keeps them. Pure.
"""

import msgspec

from gateway.wire.codes import Health, Lifecycle, OperationKind, OutcomeKind, Phase, Reason, State, SwitchMode
from gateway.wire.envelope import Reply, Request


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One counter or gauge of the metrics table: its short name (no prefix), label values in table order, value."""

    name: str
    labels: tuple[str, ...]
    value: float


class HistogramSample(msgspec.Struct, frozen=True, array_like=True):
    """One histogram: totals since the adapter began; ``counts`` one a bucket of the table, then +Inf, not summed."""

    name: str
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    sum: float


class OperationInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation as the adapter tells it: pending (``outcome`` None) or settled."""

    number: int
    request_id: str
    kind: OperationKind
    phase: Phase
    age_seconds: float
    chunks: int
    outcome: OutcomeKind | None = None
    reason: Reason = Reason.NONE
    chunks_done: int = 0
    settled_at: float = 0.0


class AdapterStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a party's heartbeat carries for the gateway's metrics and for ``/v1/transfers``.

    Gauges are levels now; counters and histograms are totals since the party began (the gateway adds the increments).
    """

    state: State
    gauges: tuple[Sample, ...] = ()
    counters: tuple[Sample, ...] = ()
    histograms: tuple[HistogramSample, ...] = ()
    pending: tuple[OperationInfo, ...] = ()  # the oldest, bounded
    settled: tuple[OperationInfo, ...] = ()  # since the last heartbeat, bounded


class Ping(Request, frozen=True, kw_only=True, tag="PING"):
    """Heartbeat. What is below ``next_*`` and not listed ends here: lost messages heal; only listed ones are renewed.

    ``party`` empty: a probe, which changes nothing.
    """

    party: bytes = b""
    next_operation: int = 0
    operations: tuple[int, ...] = ()
    next_session: int = 0
    sessions: tuple[int, ...] = ()
    stats: AdapterStats | None = None


class DrainNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A drain under way, of the whole gateway or of this party's engine."""

    id: str
    deadline: float


class Pong(Reply, frozen=True, kw_only=True, tag="PONG"):
    """State and health: the trigger of every clean-up. ``state`` is the party's view: its engine may be drained alone.

    Attributes:
        known: the daemon knows the party; False: register again.
        drain: set while ``state`` is draining.
        sessions: listed sessions whose lease lives, with its new deadline in ``lease_deadline``.
        switch: what operators let this party do, whatever the state.
    """

    state: Lifecycle
    health: Health
    known: bool
    reason: str = ""
    drain: DrainNotice | None = None
    sessions: tuple[int, ...] = ()
    lease_deadline: float = 0.0
    switch: SwitchMode = SwitchMode.ON
