"""Draining: of the whole gateway, along its lifecycle, and of one engine alone.

Owns: the lifecycle state, the record of the gateway's last drain, the drains of engines. Must not know: what work is,
only whether some remains and how to cut it. Runs on the loop's thread.
"""

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.core.lifecycle import Action, Event, IllegalStep, step
from gateway.core.types import Counts, DrainRecord, Refusal
from gateway.wire.codes import DrainOutcome, ErrorCode, Lifecycle

MAX_DEADLINE_SECONDS = 86400.0
#: An engine that was drained alone and has left may come back under its name for so long, and is drained still.
FORGET_SECONDS = 3600.0

_OUTCOMES = {
    Action.COMPLETE: DrainOutcome.COMPLETED,
    Action.CUT_LATE: DrainOutcome.DEADLINE_EXCEEDED,
    Action.CUT_NOW: DrainOutcome.FORCED,
    Action.CANCEL: DrainOutcome.CANCELLED,
}


class Work(Protocol):
    """What a drain waits for. ``engine`` empty: all of it."""

    def remaining(self, engine: str = "") -> tuple[int, int]:
        """Operations with live reservations, and read leases."""
        ...

    def num_ended(self) -> int:
        """How many of either have ended so far."""
        ...

    def cut(self, now: float, engine: str = "") -> None:
        """End what remains: reservations are quarantined, leases dropped."""
        ...


@dataclass
class EngineDrain:
    """One engine drained alone.

    Attributes:
        left_at: since when it has no party (monotonic); None while it has one, or has not been looked at.
    """

    id: str
    deadline: float
    state: Lifecycle = Lifecycle.DRAINING
    left_at: float | None = None


class Drains:
    """The lifecycle, and all drains."""

    def __init__(self, work: Work, counts: Counts, new_id: Callable[[], str]) -> None:
        self.state = Lifecycle.STARTING
        self.engines: dict[str, EngineDrain] = {}
        self._work = work
        self._counts = counts
        self._new_id = new_id
        self._record: DrainRecord | None = None
        self._ended_before = 0  # what had ended when the drain began
        self._was_signalled = False

    def init_done(self) -> None:
        """The pool is there.

        Raises:
            IllegalStep: not starting.
        """
        self.state, _ = step(self.state, Event.INIT_DONE)

    def ended(self) -> None:
        """The shell has closed everything.

        Raises:
            IllegalStep: not stopping.
        """
        self.state, _ = step(self.state, Event.ENDED)

    # -- the gateway

    def request(
        self,
        deadline_seconds: float,
        *,
        reason: str,
        requested_by: str,
        flush: bool,
        exits: bool,
        now: float,
        wall: float,
    ) -> bool:
        """Begin, join or force a drain. Returns whether the gateway was drained already.

        Raises:
            Refusal: the deadline makes no sense, or the lifecycle has no such step.
        """
        check_deadline(deadline_seconds)
        was_drained = self.state is Lifecycle.DRAINED
        self._enter(Event.DRAIN, deadline_seconds, reason, requested_by, flush=flush, exits=exits, now=now, wall=wall)
        if deadline_seconds == 0:
            self._force(now, wall)
        self.move(now, wall)
        return was_drained

    def resume(self, wall: float) -> None:
        """Take new work again.

        Raises:
            IllegalStep: the lifecycle has no such step, or the drain under way ends the process.
        """
        if self._record is not None and self._record.exit and self.state is Lifecycle.DRAINING:
            raise IllegalStep(self.state, Event.RESUME)
        self._finish(Event.RESUME, wall)

    def signal(self, deadline_seconds: float, now: float, wall: float) -> None:
        """SIGTERM or SIGINT: drain and exit; the second one cuts."""
        if self.state is Lifecycle.DRAINING and self._was_signalled:
            self._force(now, wall)
        else:
            self._was_signalled = True
            self._enter(Event.SIGNAL, deadline_seconds, "signal", "signal", flush=False, exits=True, now=now, wall=wall)
        self.move(now, wall)

    def record(self) -> DrainRecord | None:
        """The last drain of the gateway, under way or over."""
        if self._record is None or self.state is not Lifecycle.DRAINING:
            return self._record
        return replace(self._record, done=self._work.num_ended() - self._ended_before)

    def notice(self, engine: str = "") -> tuple[str, float]:
        """Id and deadline of the drain that a party of this engine is told of; "" and 0 when there is none."""
        own = self.engines.get(engine)
        drain_id, deadlines = (own.id, [own.deadline]) if own is not None else ("", [])
        if self.state in (Lifecycle.DRAINING, Lifecycle.DRAINED) and self._record is not None:
            drain_id = self._record.id
            deadlines.append(self._record.deadline)
        return drain_id, min(deadlines, default=0.0)

    def _enter(
        self,
        event: Event,
        deadline_seconds: float,
        reason: str,
        requested_by: str,
        *,
        flush: bool,
        exits: bool,
        now: float,
        wall: float,
    ) -> None:
        self.state, action = step(self.state, event)
        if action is Action.BEGIN:
            self._ended_before = self._work.num_ended()
            self._record = DrainRecord(
                id=self._new_id(),
                state=self.state,
                reason=reason,
                requested_by=requested_by,
                requested_at=wall,
                deadline=now + deadline_seconds,
                deadline_at=wall + deadline_seconds,
                finished_at=0.0,
                flush=flush,
                exit=exits,
                outcome=None,
                done=0,
                aborted=0,
            )
        elif self._record is not None:
            self._record = replace(self._record, flush=self._record.flush or flush, exit=self._record.exit or exits)
            if action is Action.JOIN and now + deadline_seconds < self._record.deadline:
                self._record = replace(
                    self._record, deadline=now + deadline_seconds, deadline_at=wall + deadline_seconds
                )

    def _force(self, now: float, wall: float) -> None:
        """Cut what remains; a drain that waits for nothing is not forced but complete."""
        if self.state is Lifecycle.DRAINING and self._work.remaining() != (0, 0):
            self._cut(Event.FORCE, now, wall)

    def _move_gateway(self, now: float, wall: float) -> None:
        """Complete the drain, or cut it at its deadline."""
        if self.state is not Lifecycle.DRAINING or self._record is None:
            return
        if self._work.remaining() == (0, 0):
            self._finish(Event.EMPTIED, wall)
        elif now >= self._record.deadline:
            self._cut(Event.DEADLINE, now, wall)

    def _cut(self, event: Event, now: float, wall: float) -> None:
        aborted = sum(self._work.remaining())
        self._finish(event, wall, aborted)
        self._work.cut(now)

    def _finish(self, event: Event, wall: float, aborted: int = 0) -> None:
        record = self.record()
        self.state, action = step(self.state, event)
        outcome = _OUTCOMES.get(action)
        if record is not None and outcome is not None:
            self._record = replace(record, state=self.state, finished_at=wall, outcome=outcome, aborted=aborted)
            self._counts.drains[outcome] = self._counts.drains.get(outcome, 0) + 1

    # -- one engine

    def request_engine(self, engine: str, deadline_seconds: float, now: float) -> bool:
        """Begin, join or force a drain of one engine; ``move`` must follow. Returns whether it was drained already.

        Raises:
            Refusal: the deadline makes no sense, or the gateway is starting or stopping.
        """
        check_deadline(deadline_seconds)
        if self.state in (Lifecycle.STARTING, Lifecycle.STOPPING, Lifecycle.STOPPED):
            raise IllegalStep(self.state, Event.DRAIN)
        drain = self.engines.get(engine)
        if drain is None:
            drain = self.engines[engine] = EngineDrain(self._new_id(), now + deadline_seconds)
        was_drained = drain.state is Lifecycle.DRAINED
        drain.deadline = min(drain.deadline, now + deadline_seconds)
        return was_drained

    def resume_engine(self, engine: str) -> None:
        """End an engine's own drain, if there is one.

        Raises:
            IllegalStep: the gateway is starting or stopping.
        """
        if self.state in (Lifecycle.STARTING, Lifecycle.STOPPING, Lifecycle.STOPPED):
            raise IllegalStep(self.state, Event.RESUME)
        self.engines.pop(engine, None)

    def _move_engine(self, engine: str, drain: EngineDrain, now: float) -> None:
        if drain.state is Lifecycle.DRAINED:
            return
        if self._work.remaining(engine) == (0, 0):
            drain.state = Lifecycle.DRAINED
        elif now >= drain.deadline:
            self._work.cut(now, engine)
            drain.state = Lifecycle.DRAINED

    # -- time

    def forget_left(self, present: Container[str], now: float) -> None:
        """Forget the drain of an engine whose last party left long ago: names of pods come and go for ever."""
        for engine, drain in list(self.engines.items()):
            if engine in present:
                drain.left_at = None
            elif drain.left_at is None:
                drain.left_at = now
            elif drain.state is Lifecycle.DRAINED and now - drain.left_at >= FORGET_SECONDS:
                del self.engines[engine]

    def move(self, now: float, wall: float) -> None:
        """Something may have ended, or time has passed: complete or cut what is due."""
        self._move_gateway(now, wall)
        for engine, drain in self.engines.items():
            self._move_engine(engine, drain, now)
        self._move_gateway(now, wall)  # the cut of an engine may have been all it waited for
        if self.state is Lifecycle.DRAINED and self._record is not None and self._record.exit:
            self.state, _ = step(self.state, Event.EXIT)


def check_deadline(deadline_seconds: float) -> None:
    """Check a drain's deadline.

    Raises:
        Refusal: INVALID; it is not a number from 0 to a day.
    """
    if not (math.isfinite(deadline_seconds) and 0 <= deadline_seconds <= MAX_DEADLINE_SECONDS):
        raise Refusal(
            ErrorCode.INVALID, f"deadline_seconds is {deadline_seconds}, expected 0 to {MAX_DEADLINE_SECONDS:g}"
        )
