"""The scheduler half: how much of a prompt is in the cache.

Owns: the face an engine's scheduler calls, and the order of its steps. Must not know: blocks, copies, sockets. Its
tables (``Prompts``, ``Lookups``) are guarded by the link's lock.

Threads: the engine's thread calls the face and never waits in it, but for ``lookup`` and ``wait_healthy``, which wait
as long as they are told. Methods of ``Half`` run on the link thread.

A lookup that cannot be answered says 0: a miss is always right for a cache.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from adapter import measurements
from adapter.config import AdapterConfig
from adapter.geometry import Geometry
from adapter.identity import CacheIdentity
from adapter.link import SOFTWARE, Link
from adapter.log import EngineLog
from adapter.lookups import Lookup, Lookups, Pending
from adapter.measurements import NOTHING_PENDING, LinkCounts, Measurements, Readings
from adapter.metrics import AdapterCollector
from adapter.prompts import Prompts
from adapter.snapshot import Snapshot
from adapter.switches import SwitchWatch
from adapter.totals import Totals
from gateway.wire.codes import Reason, Role, State, Trigger
from gateway.wire.messages import (
    MAX_KEYS,
    AdapterStats,
    EndSession,
    Found,
    Ping,
    Pong,
    Register,
    Release,
    Reply,
)
from gateway.wire.messages import Lookup as LookupRequest

__all__ = ["Pending", "SchedulerAdapter"]

CLOSE_SECONDS = 1.5
RESET_NONCE_BYTES = 16


class SchedulerAdapter:
    """Looks prompts up in the node's gateway. The constructor returns at once, whether or not a gateway is there.

    Args:
        run_dir: the gateway's shared directory.
        identity: the model.
        group: shared by all halves of one model replica.
        config: settings; None: the defaults.
        registry: where the metrics are collected; None: a private registry, at ``registry``.

    Raises:
        ValueError: the directory's path is too long for a socket in it, or the engine's name is not allowed.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        identity: CacheIdentity,
        group: str,
        config: AdapterConfig | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.identity = identity
        self.registry = CollectorRegistry() if registry is None else registry
        self._group = group
        self._config = config or AdapterConfig()
        self._engine_name = self._config.resolved_engine_name()
        self._geometry: Geometry | None = None
        self._namespace = b""
        self._prompts = Prompts(identity.chunk_tokens)
        self._lookups = Lookups()
        self._measurements = Measurements()
        #: Of this half; whoever drives it may say there what befell a request.
        self.log = EngineLog(self._engine_name)
        switches = SwitchWatch(run_dir, identity.model, self._config, self.log)
        self._link = Link(run_dir, self._config.heartbeat_seconds, self, "kvgate-scheduler", self.log, switches)
        self._collector = AdapterCollector.of(self.registry)
        self._collector.add(self)
        self._link.start()

    # -- the engine's face ---------------------------------------------------------------------------------------------

    def wait_healthy(self, timeout_seconds: float) -> bool:
        """Wait until lookups are served, so long at most. Returns whether they are."""
        self._link.check_process()
        return self._link.wait_healthy(timeout_seconds)

    def set_geometry(self, geometry: Geometry) -> None:
        """Tell the KV cache's shape, as the worker half read it. Lookups are 0 before.

        Raises:
            ValueError: it does not fit the identity.
        """
        self._link.check_process()
        self.identity.check_geometry(geometry)
        with self._link.lock:
            if geometry != self._geometry:
                self._geometry = geometry
                self._namespace = self.identity.namespace(geometry)
                self._end_sessions(self._lookups.end_all())

    def chunk_keys(
        self,
        request_id: str,
        token_ids: Sequence[int],
        cache_salt: str = "",
        extra_keys: Sequence[bytes | None] | None = None,
    ) -> list[bytes]:
        """The keys of every full chunk of a prompt, in order; hashed once a request, incrementally.

        Args:
            request_id: whose prompt it is.
            token_ids: from token 0 on.
            cache_salt: keeps tenants apart; empty equals none.
            extra_keys: None, or one ``bytes | None`` for each full chunk (LoRA, multimodal items).

        Raises:
            ValueError: a token id is out of range, or ``extra_keys`` has another length.
        """
        self._link.check_process()
        with self._link.lock:
            return self._prompts.keys(request_id, token_ids, cache_salt, extra_keys)

    def maybe_submit_lookup_request(
        self,
        request_id: str,
        token_ids: Sequence[int],
        cache_salt: str = "",
        extra_keys: Sequence[bytes | None] | None = None,
    ) -> None:
        """Begin a lookup, unless one of the same tokens is under way or its promise still good.

        Arguments and errors are those of ``chunk_keys``.
        """
        self._link.check_process()
        self._begin(request_id, token_ids, cache_salt, extra_keys, self._config.lookup_timeout_seconds)

    def check_lookup_result(self, request_id: str) -> int | Pending:
        """Leading tokens found and leased for the request: a multiple of ``chunk_tokens``, or PENDING.

        0 when nothing was found, no answer came in time, the lease has ended, the gateway is not healthy, or the
        request is unknown.
        """
        self._link.check_process()
        with self._link.lock:
            return self._check(request_id)

    def wait_lookup_result(self, request_id: str, timeout_seconds: float) -> int | Pending:
        """As ``check_lookup_result``, but waits so long at most for the answer. The lookup's own deadline stays."""
        self._link.check_process()
        with self._link.turn(timeout_seconds) as wait_for:
            wait_for(lambda: self._check(request_id) is not Pending.PENDING, timeout_seconds)
        return self.check_lookup_result(request_id)

    def lookup(
        self,
        request_id: str,
        token_ids: Sequence[int],
        cache_salt: str = "",
        extra_keys: Sequence[bytes | None] | None = None,
        timeout_seconds: float | None = None,
    ) -> int:
        """Look up and wait for the answer, so long at most (None: the configured time). Past it: 0.

        The other arguments and errors are those of ``chunk_keys``.
        """
        self._link.check_process()
        seconds = self._config.lookup_timeout_seconds if timeout_seconds is None else timeout_seconds
        with self._link.turn(seconds) as wait_for:
            self._begin(request_id, token_ids, cache_salt, extra_keys, seconds)
            wait_for(lambda: self._check(request_id) is not Pending.PENDING, seconds)
        with self._link.lock:
            found = self._check(request_id)
            return 0 if found is Pending.PENDING else found

    def release_lookup(self, request_id: str, start: int = 0, end: int | None = None) -> None:
        """Give up the promise for tokens [start, end): they will not be loaded. Harmless when there is none.

        Args:
            request_id: whose lookup.
            start: first token; a chunk that begins before it is kept.
            end: token after the last; a chunk that ends after it is kept. None: all.
        """
        self._link.check_process()
        chunk = self.identity.chunk_tokens
        first, last = -(-max(0, start) // chunk), MAX_KEYS if end is None else max(0, end) // chunk
        with self._link.lock:
            self._measurements.wasted_tokens["released"] += self._release(request_id, first, last) * chunk

    def end_lookup(self, request_id: str) -> None:
        """What was promised and not released has been loaded, or failed to: give its lease back."""
        self._link.check_process()
        with self._link.lock:
            self._release(request_id, 0, MAX_KEYS)

    def end_session(self, request_id: str) -> None:
        """The request is over: give its lease up and forget its keys. Harmless when repeated."""
        self._link.check_process()
        with self._link.lock:
            self._prompts.forget(request_id)
            self._end_sessions(self._lookups.end(request_id))

    def reset(self) -> bool:
        """Forget everything stored so far: no key of this half equals one from before. At once, and always True."""
        self._link.check_process()
        with self._link.lock:
            self._prompts.reset(secrets.token_bytes(RESET_NONCE_BYTES))
            self._end_sessions(self._lookups.end_all())
        return True

    @property
    def state(self) -> State:
        """The adapter's view of its gateway."""
        self._link.check_process()
        return self._link.state

    def snapshot(self) -> Snapshot:
        """This half now. It has no operations of its own: those are the worker's."""
        self._link.check_process()
        with self._link.lock:
            return Snapshot(
                state=self._link.state,
                pending_stores=0,
                pending_retrieves=0,
                retained_events=0,
                settling_operations=0,
                oldest_pending_at=0.0,
                boot_id=self._link.boot.hex(),
                operations=(),
                switch=self._link.switch,
                tables={
                    "lookups": len(self._lookups),
                    "prompts": len(self._prompts),
                    **self._link.table_sizes(),
                },
            )

    def close(self) -> None:
        """Leave the gateway and end the thread. Harmless when repeated; short, however the gateway fares."""
        self._link.check_process()
        self._link.close(CLOSE_SECONDS)

    # -- readings ------------------------------------------------------------------------------------------------------

    def readings(self) -> Readings:
        """Its metrics now. Any thread."""
        self._link.check_process()
        with self._link.lock:
            return measurements.read(
                state=self._link.state,
                counts=NOTHING_PENDING,
                totals=Totals(),
                measurements=self._measurements,
                link=LinkCounts(self._link.late_replies, self._link.reconnects, self._link.flaps),
                block_tokens=self.identity.block_tokens,
            )

    # -- Half: called by the link, its lock held -----------------------------------------------------------------------

    def register_message(self, party: bytes) -> Register:
        """What this half says of itself."""
        return Register(
            number=0,
            party=party,
            role=Role.SCHEDULER,
            group=self._group,
            engine=self._engine_name,
            model=self.identity.model,
            namespace=self._namespace,
            shard_count=self.identity.shard_count,
            replicas=self.identity.replicas,
            chunk_tokens=self.identity.chunk_tokens,
            pid=os.getpid(),
            software=SOFTWARE,
        )

    def ping_message(self, party: bytes) -> Ping:
        """A heartbeat with the sessions whose leases are to be renewed."""
        readings = self.readings()
        return Ping(
            number=0,
            party=party,
            next_session=self._lookups.next_session,
            sessions=self._lookups.live_sessions(time.monotonic()),
            stats=AdapterStats(
                state=self._link.state,
                gauges=readings.gauges,
                counters=readings.counters,
                histograms=readings.histograms,
            ),
        )

    def prepare(self, pool: Path, pool_id: bytes) -> None:
        """A scheduler half does not touch the pool."""

    def is_idle(self) -> bool:
        """A scheduler half copies nothing."""
        return True

    def gateway_died(self, now: float) -> None:
        """A lookup holds nothing that a dead gateway could touch."""

    def settle(self, trigger: Trigger) -> None:  # noqa: ARG002 - whatever the cause
        """No promise of before is good any more."""
        self._lookups.void_all()

    def wind_down(self, trigger: Trigger, deadline: float) -> None:
        """Lookups say 0 while the gateway drains; the leases go with the drain."""

    def end_drain(self) -> None:
        """Lookups are served again."""

    def heard_pong(self, ping: Ping, pong: Pong) -> None:
        """Leases were renewed, but for those that the gateway does not know any more."""
        self._lookups.renew(ping.sessions, pong.sessions, pong.lease_deadline)

    def heard_late(self, reply: Reply) -> None:
        """A lookup's answer came when nobody waited any more: what it found is computed instead."""
        if isinstance(reply, Found):
            self._measurements.wasted_tokens["lookup_timeout"] += reply.chunks * self.identity.chunk_tokens

    def tick(self, now: float) -> float:  # noqa: ARG002 - nothing is due by itself
        """The link ends what waits too long."""
        return math.inf

    def release(self) -> None:
        """Leave the scrape; a scheduler half holds nothing of the pool."""
        self._collector.remove(self)

    @property
    def _serves(self) -> bool:
        """Whether the gateway may be asked, and what it promised be relied on."""
        return self._link.state is State.HEALTHY and self._link.switch.loads

    # -- within --------------------------------------------------------------------------------------------------------

    def _begin(
        self,
        request_id: str,
        token_ids: Sequence[int],
        cache_salt: str,
        extra_keys: Sequence[bytes | None] | None,
        timeout_seconds: float,
    ) -> None:
        with self._link.lock:
            keys = tuple(self._prompts.keys(request_id, token_ids, cache_salt, extra_keys)[:MAX_KEYS])
            now = time.monotonic()
            if self._lookups.is_needless(request_id, keys, now):
                return
            if not self._lookups.knows(request_id):
                self._measurements.prompt_tokens += len(token_ids)
            is_served = self._serves and bool(self._namespace) and bool(keys)
            if not is_served or self._lookups.num_unanswered >= self._config.max_pending_ops:
                lookup, ended = self._lookups.begin(request_id, keys, now, now)
                self._lookups.answer(request_id, lookup.session, 0, 0.0)
                self._end_sessions(ended)
                return
            lookup, ended = self._lookups.begin(request_id, keys, now + timeout_seconds, now)
            self._link.post(partial(self._ask, request_id, lookup))
            self._end_sessions(ended)

    def _release(self, request_id: str, first: int, last: int) -> int:
        """Give chunks [first, last) of a promise back. Returns how many they were."""
        released = self._lookups.release(request_id, first, last)
        if released is None:
            return 0
        session, num_chunks, is_empty = released
        party = self._link.party
        if is_empty:
            self._tell(EndSession(number=0, party=party, session=session))
        else:
            self._tell(Release(number=0, party=party, session=session, start=first, end=last))
        return num_chunks

    def _check(self, request_id: str) -> int | Pending:
        if not self._serves:
            return 0
        found = self._lookups.check(request_id, time.monotonic())
        return found if found is Pending.PENDING else found * self.identity.chunk_tokens

    def _end_sessions(self, sessions: Iterable[int]) -> None:
        for session in sessions:
            self._tell(EndSession(number=0, party=self._link.party, session=session))

    def _tell(self, message: EndSession | Release) -> None:
        """Give something back: nobody waits for it, so the link thread is not woken for it."""
        self._link.post(partial(self._link.tell, message), is_urgent=False)

    def _ask(self, request_id: str, lookup: Lookup) -> None:
        message = LookupRequest(
            number=0,
            deadline=lookup.deadline,
            party=self._link.party,
            session=lookup.session,
            namespace=self._namespace,
            keys=lookup.keys,
        )
        self._link.ask(message, lookup.deadline, partial(self._answered, request_id, lookup))

    def _answered(self, request_id: str, lookup: Lookup, reply: Reply | Reason) -> None:
        now = time.monotonic()
        with self._link.lock:
            chunks, lease_deadline = 0, 0.0
            if isinstance(reply, Found) and reply.chunks <= len(lookup.keys):
                chunks, lease_deadline = reply.chunks, reply.lease_deadline
            if self._lookups.answer(request_id, lookup.session, chunks, lease_deadline) is None:
                return
            self._measurements.observe(self._measurements.lookup_wait, now - lookup.began)
            if reply is Reason.NO_REPLY:
                self._end_sessions([lookup.session])
                self.log.warning("lookup_unanswered", request=request_id)
            self._link.changed.notify_all()
