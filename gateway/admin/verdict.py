"""Is it well, and if not, what is the one thing to do next: the judgement that page, ``top`` and ``status`` share.

Owns: which finding weighs how much, its sentence and its next step, and which engine is worse than which. Must not
know: HTTP, sockets, terminals. Pure: a snapshot and the time in, a verdict out.
"""

from enum import IntEnum, StrEnum
from typing import NamedTuple

from gateway.admin.views import EngineState, engine_state
from gateway.wire.codes import Lifecycle, State, SwitchMode, SwitchScope
from gateway.wire.messages import DrainInfo, EngineInfo, SnapshotReply, SwitchInfo

#: The deadline of an operation, and the time in which what is given up settles (defaults of an adapter).
OLD_PENDING_SECONDS = 40.0
#: Clocks of a busy node are looked at in turn.
_SLACK_SECONDS = 2.0

_OLDEST = "oldest_pending_timestamp_seconds"

_BACK_WARM = "kvgate bundle, then restart the gateway: engines compute meanwhile, and it comes back warm"

#: The one next step of each health check that does not hold.
_NEXT_STEPS = {
    "loop": _BACK_WARM,
    "reaper": _BACK_WARM,
    "pool": "kvgate doctor: it tells what is wrong with the pool's file",
    "admin": "kvgate doctor: it tells why the admin process ends",
    "quarantine": "kvgate engines: end those that hang; their bytes are free once they are proven dead",
}
_ELSE = "kvgate doctor"

#: Name of the finding that the gateway is not in state ready.
STATE = "state"


class Severity(StrEnum):
    """How much a finding matters."""

    GOOD = "good"
    NOTICE = "notice"  # asked for, or about to pass
    WARNING = "warning"  # the gateway serves; look at it today
    CRITICAL = "critical"  # the gateway does not do its work


class _Weight(IntEnum):
    GOOD = 0
    NOTICE = 1
    WARNING = 2
    CRITICAL = 3


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    name: str
    severity: Severity
    detail: str
    next_step: str


class Trouble(NamedTuple):
    """What is the matter with one engine; ``reason`` is empty when nothing is."""

    severity: Severity
    reason: str


_WELL = Trouble(Severity.GOOD, "")


def weight(severity: Severity) -> int:
    """A number that grows with the severity."""
    return _Weight[severity.name].value


def findings_of(snapshot: SnapshotReply, at: float) -> list[Finding]:
    """Everything that is not as it should be, the worst first; empty when all is well.

    Args:
        snapshot: of the core.
        at: Unix time at which it was taken.
    """
    found = [_of_check(check.name, check.reason, critical=check.critical) for check in snapshot.checks if not check.ok]
    if snapshot.state is not Lifecycle.READY:
        found.insert(0, _of_state(snapshot, at))
    found += [_of_switch(switch, at) for switch in snapshot.switches if switch.mode is not SwitchMode.ON]
    troubled = [(engine.name, trouble_of(engine, at, snapshot.silence_seconds)) for engine in snapshot.engines]
    found += [
        Finding(f"engine {name}", trouble.severity, trouble.reason, f"kvgate engines {name}")
        for name, trouble in troubled
        if weight(trouble.severity) >= weight(Severity.WARNING)
    ]
    # What was asked for explains more than what merely wants a look: it comes before all that is not critical.
    return sorted(found, key=lambda f: (f.severity is not Severity.CRITICAL, f.name != STATE, -weight(f.severity)))


def verdict_line(snapshot: SnapshotReply, findings: list[Finding]) -> str:
    """The whole judgement in one sentence."""
    pending = sum(engine.pending_stores + engine.pending_retrieves for engine in snapshot.engines)
    engines = sum(1 for engine in snapshot.engines if engine.parties)
    serves = f"serving {_count(engines, 'engine')}, {_count(pending, 'operation')} pending"
    if not findings:
        return f"All is well: {serves}." if engines else "All is well, and no engine is here."
    rest = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
    worst = findings[0]
    told = worst.detail if worst.name in (STATE, *_NEXT_STEPS) else f"{worst.name}: {worst.detail}"
    if snapshot.ready:
        lead = "As asked" if worst.severity is Severity.NOTICE else "Look at it"
        return f"{lead}: {told}{rest}. It is {serves}."
    return f"Not serving: {told}{rest}."


def trouble_of(engine: EngineInfo, at: float, silence_seconds: float) -> Trouble:
    """What is the matter with an engine.

    Args:
        engine: of a snapshot.
        at: Unix time.
        silence_seconds: after so long without a heartbeat it is silent.
    """
    oldest = oldest_pending_at(engine)
    if oldest and at - oldest > OLD_PENDING_SECONDS:
        return Trouble(Severity.CRITICAL, f"an operation has been pending for {at - oldest:.0f} s")
    silent = at - engine.last_heartbeat_at
    if engine.parties and engine.last_heartbeat_at and silent > silence_seconds + _SLACK_SECONDS:
        return Trouble(Severity.WARNING, f"silent for {silent:.0f} s")
    views = {party.state for party in engine.parties}
    for state in (State.INCOMPATIBLE, State.UNRESPONSIVE, State.DEAD, State.UNHEALTHY):
        if state in views:
            return Trouble(Severity.WARNING, f"sees the gateway as {state}")
    if engine.fenced:
        return Trouble(Severity.NOTICE, "removed by an operator")
    own = engine_state(engine)
    return _WELL if own in (EngineState.READY, EngineState.GONE) else Trouble(Severity.NOTICE, f"{own} alone")


def oldest_pending_at(engine: EngineInfo) -> float:
    """Unix time at which the engine's oldest unsettled operation was submitted; 0: it has none."""
    return max((sample.value for sample in engine.gauges if sample.name == _OLDEST), default=0.0)


def worst_first(snapshot: SnapshotReply, at: float) -> list[tuple[EngineInfo, Trouble]]:
    """Engines by trouble, then by how much they have pending, then by name; those gone last."""

    def rank(judged: tuple[EngineInfo, Trouble]) -> tuple[int, bool, int, str]:
        engine, trouble = judged
        pending = engine.pending_stores + engine.pending_retrieves + engine.retained_events
        # By its order of magnitude: rows that change places each second cannot be read.
        return -weight(trouble.severity), engine_state(engine) is EngineState.GONE, -pending.bit_length(), engine.name

    return sorted(((engine, trouble_of(engine, at, snapshot.silence_seconds)) for engine in snapshot.engines), key=rank)


def _of_check(name: str, reason: str, *, critical: bool) -> Finding:
    severity = Severity.CRITICAL if critical else Severity.WARNING
    return Finding(name, severity, reason or "the check failed", _NEXT_STEPS.get(name, _ELSE))


def _of_switch(switch: SwitchInfo, at: float) -> Finding:
    since = f"for {_how_long(at - switch.since_at)}" if switch.since_at else "by its settings"
    is_node = switch.scope is SwitchScope.NODE
    name = "this node" if is_node else f"{switch.scope} {switch.name}"
    back = "kvgate on --all" if is_node else f"kvgate on --{switch.scope} {switch.name}"
    return Finding(name, Severity.NOTICE, f"its switch has been at {switch.mode} {since}", back)


def _how_long(seconds: float) -> str:
    """A span in words that do not change with each second."""
    if seconds < 60:
        return "less than a minute"
    return f"{seconds // 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _of_state(snapshot: SnapshotReply, at: float) -> Finding:
    drain = snapshot.drain
    match snapshot.state:
        case Lifecycle.STARTING:
            detail, step = (
                f"starting, {snapshot.progress:.0%} of the pool is reserved",
                "wait; kvgate doctor if it stays",
            )
        case Lifecycle.DRAINING if drain is not None:
            left = (
                f"{_count(drain.remaining.operations, 'operation')} and {_count(drain.remaining.leases, 'lease')} left"
            )
            detail = f"draining, {_asked(drain)}; {left}"
            step = f"wait, {max(0.0, drain.deadline_at - at):.0f} s at most, or kvgate resume"
        case Lifecycle.DRAINED if drain is not None:
            detail, step = f"drained, {_asked(drain)}; engines compute everything themselves", "kvgate resume"
        case _:
            detail, step = f"{snapshot.state}", "kvgate serve, once it has ended"
    return Finding(STATE, Severity.NOTICE, detail, step)


def _asked(drain: DrainInfo) -> str:
    return f"asked for by {drain.requested_by or 'nobody who said so'}" + (f": {drain.reason}" if drain.reason else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
