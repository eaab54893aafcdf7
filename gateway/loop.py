"""The daemon's one loop: it waits, answers what came, and keeps house in between.

Owns: the order of work on the thread that owns all tables, and what a pause of that thread means. Must not know: what
messages or chores do. Runs on the main thread, and nothing else does.

Chores (leases and reservations that ran out, deaths, drains) are done only after what waits in the queues was read:
when this process was stopped for a while, or the machine was, the renewal that keeps a lease is already here and only
unread. After such a pause chores are held back a moment more, so that peers who were paused too can speak first.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import zmq

from gateway.endpoint import Endpoint
from gateway.health import HealthChecks
from gateway.traffic import Traffic
from gateway.wakeup import Wakeup

_log = logging.getLogger("kvgate.loop")

#: Messages taken from one socket before others have their turn.
_BATCH = 64
#: A round later than it should be by so much means that this process did not run.
_PAUSE_SECONDS = 0.5
#: Chores wait no longer than this for the queues to be empty: a flood does not stop time.
_MAX_CHORE_DELAY_SECONDS = 0.5


class Answers(Protocol):
    """Turns a request into its reply."""

    def answer(self, frame: bytes, *, is_admin: bool, later: Callable[[bytes], None]) -> bytes:
        """Exactly one reply, whatever came; empty: it goes out through ``later``."""
        ...


class Housework(Protocol):
    """What is to do without being asked."""

    interval_seconds: float

    def run(self, now: float) -> None:
        """Everything that is due. ``now`` is monotonic."""
        ...


class Loop:
    """One poller over all sockets. ``round`` is one turn of it; ``run`` turns until it is told to end."""

    def __init__(
        self,
        *,
        endpoints: Sequence[Endpoint],
        wakeup: Wakeup,
        answers: Answers,
        housework: Housework,
        checks: HealthChecks,
        traffic: Traffic,
        on_signal: Callable[[int], None],
        grace_seconds: float,
    ) -> None:
        """Take the parts; all of them outlive the loop.

        Args:
            endpoints: the bound sockets.
            wakeup: signals and posted steps.
            answers: the service.
            housework: done every ``housework.interval_seconds``.
            checks: told how long this process did not run.
            traffic: counts bad frames and connections.
            on_signal: called with each signal's number.
            grace_seconds: how long after a pause chores are held back: one heartbeat, so that every live peer spoke.
        """
        self._endpoints = endpoints
        self._wakeup = wakeup
        self._answers = answers
        self._housework = housework
        self._checks = checks
        self._traffic = traffic
        self._on_signal = on_signal
        self._grace_seconds = grace_seconds
        self._poller = zmq.Poller()
        self._poller.register(wakeup.fileno(), zmq.POLLIN)
        for endpoint in endpoints:
            self._poller.register(endpoint.socket, zmq.POLLIN)
            self._poller.register(endpoint.monitor, zmq.POLLIN)
        now = time.monotonic()
        self._round_began_at = now
        self._chores_due_at = now
        self._chores_late_since = 0.0  # 0: they are not late

    def run(self, is_over: Callable[[], bool]) -> None:
        """Turn until ``is_over``, then answer what came meanwhile."""
        while not is_over():
            self.round()
        for endpoint in self._endpoints:
            self._read(endpoint)

    def round(self) -> None:
        """Wait until something is to do, and do it."""
        wait_seconds = max(0.0, self._chores_due_at - time.monotonic())
        ready = dict(self._poller.poll(math.ceil(wait_seconds * 1000)))
        now = time.monotonic()
        self._note_pause(now - self._round_began_at - wait_seconds, now)
        self._round_began_at = now
        if self._wakeup.fileno() in ready:
            self._wake()
        for endpoint in self._endpoints:
            if endpoint.monitor in ready:
                for event in endpoint.connection_events():
                    self._traffic.connection(event)
            if endpoint.socket in ready:
                self._read(endpoint)
        self._keep_house(now)

    def _note_pause(self, late_seconds: float, now: float) -> None:
        if late_seconds < _PAUSE_SECONDS:
            return
        _log.warning("loop_paused", extra={"facts": {"seconds": round(late_seconds, 3)}})
        self._checks.skip(late_seconds)
        self._chores_due_at = now + self._grace_seconds
        self._chores_late_since = 0.0

    def _wake(self) -> None:
        signals, steps = self._wakeup.take()
        for step in steps:
            step()
        for number in signals:
            self._on_signal(number)

    def _read(self, endpoint: Endpoint) -> None:
        for frames in endpoint.receive(_BATCH):
            if len(frames) != 2:
                self._traffic.bad_message("frames")
                continue
            peer, frame = frames
            reply = self._answers.answer(frame, is_admin=endpoint.is_admin, later=partial(endpoint.send, peer))
            if reply:
                endpoint.send(peer, reply)

    def _keep_house(self, now: float) -> None:
        if now < self._chores_due_at:
            return
        if not self._chores_late_since:
            self._chores_late_since = now
        waited = now - self._chores_late_since
        if waited < _MAX_CHORE_DELAY_SECONDS and any(endpoint.has_more() for endpoint in self._endpoints):
            return
        self._chores_late_since = 0.0
        self._housework.run(now)
        self._chores_due_at = now + self._housework.interval_seconds
