"""The worker half: stores KV blocks in the node's gateway, and retrieves them.

Owns: the face an engine's worker calls, the KV cache it was given, the mapping of the pool, and the way of each action
of the ledger to whoever performs it. Must not know: how operations go on and end (``Ledger``), sockets (``Link``).

Threads, and who touches what:

    engine    the face: checks, one ledger step under the link's lock, a post; it never waits and does no I/O
    link      performs actions: sends, watches events, queues copies, drops events; deadlines
    copy      one unit at a time: ``begin_copy``, the copy without any lock, ``end_copy``
    events    polls device events

Actions go to the link thread in the order of the ledger's steps, all of them: an event dropped before the order to
watch it was carried out would be watched for ever. The list of actions is handed over, not its items, and the link
thread takes them out of it: so the last reference to an event dies there, whatever its destructor costs.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from adapter import measurements
from adapter.actions import (
    Action,
    AskCommit,
    AskRead,
    AskReserve,
    CopyChunk,
    DropEvent,
    Grant,
    TellAbort,
    TellEndRead,
    WatchEvent,
)
from adapter.config import AdapterConfig
from adapter.geometry import Geometry, Tensor, read_layers
from adapter.identity import CacheIdentity
from adapter.ledger import Ledger
from adapter.link import REPLY_SECONDS, SOFTWARE, Link, PoolUnusableError
from adapter.measurements import LinkCounts, Measurements, Readings
from adapter.metrics import AdapterCollector
from adapter.operation import IpcEvent, LoadStoreOp
from adapter.snapshot import PendingOperation, Snapshot
from adapter.throttle import Throttle
from adapter.transfer.chunks import CopyUnit, copy_unit
from adapter.transfer.copier import CopyThreads
from adapter.transfer.events import EventWatcher
from adapter.transfer.prefault import Prefault
from adapter.transfer.request import transfer_of
from gateway.device.copy import ChunkCopier
from gateway.pool.format import PoolFormatError
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import ErrorCode, OperationKind, OutcomeKind, Reason, ReserveStatus, Role, State, Trigger
from gateway.wire.messages import (
    Abort,
    AdapterStats,
    Commit,
    Committed,
    EndRead,
    Error,
    OperationInfo,
    Ping,
    Pong,
    Read,
    Readable,
    Register,
    Reply,
    Reserve,
    Reserved,
)

logger = logging.getLogger("kvgate.adapter")

CLOSE_SECONDS = 1.5
#: Settled operations kept for the next heartbeat, and sent with one.
MAX_SETTLED_TOLD = 64

_REASON_OF_STATE = {State.HEALTHY: Reason.NONE, State.DRAINING: Reason.DRAINING, State.CLOSED: Reason.CLOSED}
_REASON_OF_ERROR = {
    ErrorCode.STARTING: Reason.DRAINING,
    ErrorCode.DRAINING: Reason.DRAINING,
    ErrorCode.STOPPING: Reason.DRAINING,
    ErrorCode.EXPIRED: Reason.NO_REPLY,
    ErrorCode.UNKNOWN_PARTY: Reason.RESTARTED,
    ErrorCode.WRONG_BOOT: Reason.RESTARTED,
}

#: What the ledger is told of a request's end: chunk by chunk, or a reason for all.
LedgerStep = Callable[[float], list[Action]]


class WorkerAdapter:
    """Stores and retrieves one worker's KV blocks. The constructor returns at once, whether or not a gateway is there.

    Args:
        run_dir: the gateway's shared directory.
        identity: the model, and which part of a chunk this worker holds.
        group: shared by all halves of one model replica.
        config: settings; None: the defaults.
        registry: where the metrics are collected; None: a private registry, at ``registry``.
        copy: copies one unit. A seam for tests, not a setting.

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
        *,
        copy: CopyUnit = copy_unit,
    ) -> None:
        self.identity = identity
        self.registry = CollectorRegistry() if registry is None else registry
        self._group = group
        self._config = config or AdapterConfig()
        self._engine_name = self._config.resolved_engine_name()
        self._copy = copy
        self._kv_caches: Mapping[str, Tensor] = {}  # keeps the memory alive that the copier writes to
        self._geometry: Geometry | None = None
        self._copier: ChunkCopier | None = None
        self._chunk_bytes = 0
        self._mapping: PoolMapping | None = None
        self._prefault: Prefault | None = None
        self._measurements = Measurements()
        self._load_began: dict[str, float] = {}  # requests whose load is not reported yet
        self._settled: deque[OperationInfo] = deque(maxlen=MAX_SETTLED_TOLD)
        self._late_endings = Throttle(1.0)
        self._copy_faults = Throttle(1.0)
        self._ledger = Ledger(
            max_pending_ops=self._config.max_pending_ops,
            max_pending_bytes=self._config.max_pending_bytes,
            operation_deadline_seconds=self._config.operation_deadline_seconds,
            verify=os.environ.get("KVGATE_VERIFY") == "1",
        )
        self._link = Link(run_dir, self._config.heartbeat_seconds, self, "kvgate-worker")
        self._events = EventWatcher(self._event_ended, "kvgate-events")
        self._copy_threads = CopyThreads(self._config.copy_threads, self._copy_chunk, "kvgate-copy")
        self._collector = AdapterCollector.of(self.registry)
        self._collector.add(self)
        self._events.start()
        self._copy_threads.start()
        self._link.start()

    # -- the engine's face: set-up -------------------------------------------------------------------------------------

    def wait_healthy(self, timeout_seconds: float) -> bool:
        """Wait until work is accepted, so long at most. Returns whether it is."""
        self._link.check_process()
        return self._link.wait_healthy(timeout_seconds)

    def register_kv_caches(
        self, kv_caches: Mapping[str, Tensor], layout: str | None = None, block_axis: int | None = None
    ) -> None:
        """Tell the KV cache. Its memory must stay where it is until ``close``; the adapter keeps the tensors alive.

        Args:
            kv_caches: layer name to tensor, such as ``[2, num_blocks, block_size, num_kv_heads, head_dim]``.
            layout: ``"NHD"``, ``"HND"`` or the engine's own name; None only where one axis alone can be the blocks'.
            block_axis: which axis counts the blocks; None: the one that can.

        Raises:
            ValueError: a tensor cannot be read as blocks, or does not fit the identity. Nothing has changed.
            RuntimeError: a cache was told before, and operations on it are pending or the new one is of another shape.
                Nothing has changed.
        """
        self._link.check_process()
        geometry, regions = read_layers(kv_caches, layout, block_axis, self.identity.block_tokens)
        self.identity.check_geometry(geometry)
        copier = ChunkCopier(regions, geometry.num_blocks)
        with self._link.lock:
            if self._ledger.has_unsettled():
                raise RuntimeError("the KV cache cannot be replaced while operations on it are pending")
            if self._geometry is not None and self._geometry != geometry:
                raise RuntimeError(f"the KV cache was registered as {self._geometry}, and is {geometry} now")
            self._kv_caches = dict(kv_caches)
            self._geometry = geometry
            self._copier = copier
            self._chunk_bytes = copier.chunk_bytes(self.identity.blocks_per_chunk)
            self._link.announce()

    @property
    def geometry(self) -> Geometry:
        """The KV cache's shape, for the scheduler half.

        Raises:
            RuntimeError: no KV cache was registered yet.
        """
        if self._geometry is None:
            raise RuntimeError("there is no geometry before register_kv_caches")
        return self._geometry

    # -- the engine's face: operations ---------------------------------------------------------------------------------

    def submit_store_request(self, request_id: str, op: LoadStoreOp, event: IpcEvent | None = None) -> int:
        """Begin to store chunks.

        Args:
            request_id: whose they are; a request may have many operations.
            op: which chunks, in which blocks. What is needed of it is copied.
            event: fires when the blocks are computed; None: they are. One may be shared by many operations.

        Returns:
            The operation's number.

        Raises:
            ValueError: the operation makes no sense; nothing has changed.
        """
        return self._submit(OperationKind.STORE, request_id, op, event)

    def submit_retrieve_request(self, request_id: str, op: LoadStoreOp, event: IpcEvent | None = None) -> int:
        """Begin to load chunks.

        Arguments, return value and errors are those of ``submit_store_request``; ``event`` fires when the blocks may be
        written.
        """
        return self._submit(OperationKind.RETRIEVE, request_id, op, event)

    def get_finished(self, held_ids: Iterable[str] = ()) -> tuple[set[str], set[str]]:
        """(finished_sending, finished_receiving) since the last call.

        Args:
            held_ids: requests whose blocks the caller holds for our stores. Each is reported in ``finished_sending``
                once, when it has no unsettled store; passing it again before that changes nothing.

        Returns:
            The second set has a request once, when its last retrieve is settled, loaded or not.
        """
        self._link.check_process()
        with self._link.lock:
            sending, receiving = self._ledger.take_finished(held_ids)
            now = time.monotonic()
            for request_id in receiving:
                began = self._load_began.pop(request_id, None)
                if began is not None:
                    self._measurements.observe(self._measurements.load_wait, now - began)
            return sending, receiving

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that retrieves settled since the last call did not fill."""
        self._link.check_process()
        with self._link.lock:
            return self._ledger.take_load_errors()

    def get_failed_request_ids(self) -> set[str]:
        """Requests with a retrieve settled since the last call that was not wholly loaded."""
        self._link.check_process()
        with self._link.lock:
            return self._ledger.take_failed_requests()

    def revoke_blocks(self, block_ids: Iterable[int]) -> None:
        """These blocks are about to be reused: stores give up what of them is not copied yet.

        After it returns nothing read from them later is ever committed.
        """
        self._link.check_process()
        blocks = frozenset(block_ids)
        with self._link.lock:
            self._dispatch(self._ledger.revoke(blocks, time.monotonic()))

    def handle_preemptions(self, request_ids: Iterable[str], timeout_seconds: float) -> bool:
        """These requests lose their blocks: their operations give up what is not copied yet.

        Waits so long at most until all of them are settled, and returns whether they are.
        """
        self._link.check_process()
        requests = tuple(request_ids)
        with self._link.lock:
            self._dispatch(self._ledger.preempt(requests, time.monotonic()))
        return self._link.wait_for(lambda: not self._ledger.has_unsettled(requests), timeout_seconds)

    def wait_settled(self, timeout_seconds: float) -> bool:
        """Wait until no operation is pending, so long at most. Returns whether none is."""
        self._link.check_process()
        return self._link.wait_for(lambda: not self._ledger.has_unsettled(), timeout_seconds)

    # -- the engine's face: operators ----------------------------------------------------------------------------------

    def drain(self, reason: str, deadline_seconds: float | None = None) -> None:
        """Take no new work until ``resume``; what is granted runs on to the deadline.

        Returns at once. Repeating it changes nothing, but that the earlier deadline wins.

        Args:
            reason: for the log.
            deadline_seconds: None: the configured time; 0: settle everything now.

        Raises:
            ValueError: the deadline is negative or not a number.
        """
        self._link.check_process()
        seconds = self._config.drain_deadline_seconds if deadline_seconds is None else deadline_seconds
        if not 0 <= seconds < math.inf:
            raise ValueError(f"deadline_seconds is {deadline_seconds!r}, expected a number of at least 0")
        logger.info("drain of this adapter within %s s: %s", seconds, reason)
        self._link.drain(time.monotonic() + seconds)

    def resume(self) -> None:
        """End the drain that ``drain`` began. Harmless when there is none."""
        self._link.check_process()
        self._link.resume()

    @property
    def state(self) -> State:
        """The adapter's view of its gateway."""
        self._link.check_process()
        return self._link.state

    def snapshot(self) -> Snapshot:
        """This adapter now, read in one step."""
        self._link.check_process()
        with self._link.lock:
            counts = self._ledger.pending_counts()
            operations = self._ledger.pending_operations(time.monotonic(), self._config.max_pending_ops)
            state, boot = self._link.state, self._link.boot
        return Snapshot(
            state=state,
            pending_stores=counts.stores,
            pending_retrieves=counts.retrieves,
            retained_events=counts.events,
            settling_operations=counts.settling,
            oldest_pending_at=counts.oldest_wall,
            boot_id=boot.hex(),
            operations=tuple(
                PendingOperation(info.number, info.request_id, info.kind, info.phase, info.age_seconds)
                for info in operations
            ),
        )

    def close(self) -> None:
        """Settle everything, leave the gateway, end the threads. Harmless when repeated.

        Short, however the gateway fares. What a running copy needs (its thread, the mapping, the party's lock) stays
        until that copy has ended.
        """
        self._link.check_process()
        self._link.close(CLOSE_SECONDS)
        self._events.join(0.1)
        self._copy_threads.join(0.1)

    # -- readings ------------------------------------------------------------------------------------------------------

    def readings(self) -> Readings:
        """Its metrics now. Any thread."""
        with self._link.lock:
            return measurements.read(
                state=self._link.state,
                counts=self._ledger.pending_counts(),
                totals=self._ledger.totals,
                measurements=self._measurements,
                link=LinkCounts(self._link.late_replies, self._link.reconnects, self._link.flaps),
                block_tokens=self.identity.block_tokens,
            )

    # -- Half: called by the link, its lock held -----------------------------------------------------------------------

    def register_message(self, party: bytes) -> Register | None:
        """What this half says of itself; without a KV cache it has no namespace, and nothing to register."""
        identity = self.identity
        if self._geometry is None:
            return None
        return Register(
            number=0,
            party=party,
            role=Role.WORKER,
            group=self._group,
            engine=self._engine_name,
            model=identity.model,
            namespace=identity.namespace(self._geometry),
            shard=identity.shard,
            shard_count=identity.shard_count,
            replica=identity.replica,
            replicas=identity.replicas,
            chunk_bytes=self._chunk_bytes,
            chunk_tokens=identity.chunk_tokens,
            holds_nothing=not self._ledger.has_unsettled(),
            pid=os.getpid(),
            software=SOFTWARE,
        )

    def ping_message(self, party: bytes) -> Ping:
        """A heartbeat with the operations whose grants are still in use."""
        readings = self.readings()
        settled = tuple(self._settled)
        self._settled.clear()
        return Ping(
            number=0,
            party=party,
            next_operation=self._ledger.next_number,
            operations=self._ledger.unsettled_numbers(),
            stats=AdapterStats(
                state=self._link.state,
                gauges=readings.gauges,
                counters=readings.counters,
                histograms=readings.histograms,
                pending=self._ledger.pending_operations(time.monotonic()),
                settled=settled,
            ),
        )

    def prepare(self, pool: Path, pool_id: bytes) -> None:
        """Map the pool, if another one is mapped or none."""
        if self._mapping is not None and self._mapping.pool_id == pool_id:
            return
        try:
            mapping = PoolMapping.open(pool)
        except PoolFormatError as error:
            raise PoolUnusableError(str(error), is_lasting=True) from None
        except OSError as error:
            raise PoolUnusableError(f"cannot map {pool}: {error}", is_lasting=False) from None
        if mapping.pool_id != pool_id:
            mapping.close()
            raise PoolUnusableError(f"{pool} is another pool than the gateway's", is_lasting=False)
        self._link.post(partial(_unmap, self._mapping, self._prefault))  # it may take long: not with the lock held
        self._mapping, self._prefault = mapping, Prefault(mapping)

    def is_idle(self) -> bool:
        """Whether no copy runs."""
        return self._ledger.running_units == 0

    def settle(self, trigger: Trigger) -> None:
        """Give up all operations."""
        self._dispatch(self._ledger.settle_all(trigger, time.monotonic()))

    def wind_down(self, trigger: Trigger, deadline: float) -> None:
        """Give up what is not granted; the rest runs on to the deadline."""
        self._dispatch(self._ledger.drain(trigger, deadline, time.monotonic()))

    def end_drain(self) -> None:
        """Work is accepted again."""
        self._ledger.end_drain()

    def heard_pong(self, pong: Pong) -> None:
        """Reservations and read leases are renewed by the gateway alone."""

    def heard_late(self, reply: Reply) -> None:
        """The link lets a heartbeat give back what a late reply granted."""

    def tick(self, now: float) -> float:
        """Deadlines; and what has settled is told to those who wait, the log and the next heartbeat."""
        if self._ledger.next_deadline() <= now:
            self._dispatch(self._ledger.tick(now))
        settled = self._ledger.take_settled()
        if settled:
            self._settled.extend(settled)
            self._link.changed.notify_all()
            for info in settled:
                if info.outcome is OutcomeKind.EXPIRED or info.reason is Reason.NO_REPLY:
                    self._warn_late(info, now)
        return self._ledger.next_deadline()

    def release(self) -> None:
        """No copy runs and none will: end the threads, unmap the pool, let the KV cache go, leave the scrape."""
        self._events.close()
        self._copy_threads.close()
        _unmap(self._mapping, self._prefault)
        self._mapping = self._prefault = None
        self._copier = None
        self._kv_caches = {}
        self._collector.remove(self)

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _submit(self, kind: OperationKind, request_id: str, op: LoadStoreOp, event: IpcEvent | None) -> int:
        self._link.check_process()
        num_blocks = None if self._geometry is None else self._geometry.num_blocks
        transfer = transfer_of(
            kind, request_id, op, identity=self.identity, chunk_bytes=self._chunk_bytes, num_blocks=num_blocks
        )
        if event is not None and not callable(getattr(event, "query", None)):
            raise ValueError(f"event is {event!r}, expected None or an object with query()")
        with self._link.lock:
            refuse = _REASON_OF_STATE.get(self._link.state, Reason.NOT_HEALTHY)
            if self._geometry is None and refuse is Reason.NONE:
                refuse = Reason.NOT_HEALTHY
            now = time.monotonic()
            number, actions = self._ledger.submit(transfer, event, refuse=refuse, now=now, wall=time.time())
            if kind is OperationKind.RETRIEVE:
                self._load_began.setdefault(request_id, now)
            if actions:
                self._dispatch(actions)
            return number

    # -- actions -------------------------------------------------------------------------------------------------------

    def _dispatch(self, actions: list[Action]) -> None:
        """Hand a step's actions to the link thread. The lock is held: the order of posts is that of the steps."""
        self._link.post(partial(self._perform, actions))

    def _perform(self, actions: list[Action]) -> None:
        actions.reverse()
        while actions:
            self._perform_one(actions.pop())

    def _perform_one(self, action: Action) -> None:
        party = self._link.party
        match action:
            case AskReserve(number, chunks, keys, depth, parent, deadline):
                until = min(deadline, time.monotonic() + REPLY_SECONDS)
                request = Reserve(
                    number=0, deadline=until, party=party, operation=number, keys=keys, depth=depth, parent=parent
                )
                self._link.ask(request, until, partial(self._reserved, number, chunks))
            case AskRead(number, chunks, keys, deadline):
                until = min(deadline, time.monotonic() + REPLY_SECONDS)
                read = Read(number=0, deadline=until, party=party, operation=number, keys=keys)
                self._link.ask(read, until, partial(self._readable, number, chunks))
            case AskCommit(number, chunks, generations):
                pool_id = b"" if self._mapping is None else self._mapping.pool_id
                commit = Commit(number=0, party=party, operation=number, pool_id=pool_id, reservations=generations)
                until = time.monotonic() + REPLY_SECONDS
                self._link.ask(commit, until, partial(self._committed, number, chunks))
            case TellAbort(number):
                self._link.tell(Abort(number=0, party=party, operation=number))
            case TellEndRead(number):
                self._link.tell(EndRead(number=0, party=party, operation=number))
            case WatchEvent(number, event):
                self._events.watch(number, event)
            case CopyChunk():
                self._copy_threads.put(action)
            case DropEvent(event):
                self._events.forget(event)

    def _step(self, step: LedgerStep) -> None:
        with self._link.lock:
            self._dispatch(step(time.monotonic()))

    # -- answers of the gateway

    def _reserved(self, number: int, chunks: Sequence[int], reply: Reply | Reason) -> None:
        grants: list[Grant] | None = None
        if isinstance(reply, Reserved) and self._is_my_pool(reply.pool_id):
            grants = [Grant(g.status, g.slot, g.offset, g.generation) for g in reply.grants]
        self._granted(number, chunks, grants, reply)

    def _readable(self, number: int, chunks: Sequence[int], reply: Reply | Reason) -> None:
        grants: list[Grant] | None = None
        if isinstance(reply, Readable) and self._is_my_pool(reply.pool_id):
            granted, missing = ReserveStatus.GRANTED, ReserveStatus.FULL
            grants = [
                Grant(granted if slot.slot >= 0 else missing, slot.slot, slot.offset, slot.generation)
                for slot in reply.slots
            ]
        self._granted(number, chunks, grants, reply)

    def _granted(self, number: int, chunks: Sequence[int], grants: list[Grant] | None, reply: Reply | Reason) -> None:
        if grants is not None and len(grants) == len(chunks) and all(map(self._is_usable, grants)):
            usable = grants
            self._step(lambda now: self._ledger.granted(number, chunks, usable, now))
        else:
            self._step(lambda now: self._ledger.failed(number, chunks, _reason(reply), now))

    def _committed(self, number: int, chunks: Sequence[int], reply: Reply | Reason) -> None:
        if isinstance(reply, Committed) and len(reply.results) == len(chunks):
            results = reply.results
            self._step(lambda now: self._ledger.committed(number, chunks, results, now))
        else:
            self._step(lambda now: self._ledger.commit_failed(number, chunks, _reason(reply), now))

    def _is_my_pool(self, pool_id: bytes) -> bool:
        return self._mapping is not None and self._mapping.pool_id == pool_id

    def _is_usable(self, grant: Grant) -> bool:
        """Whether a grant is what it says, and its slot lies in the pool: nothing is copied to where a bug points."""
        if grant.slot < 0:
            return grant.status is not ReserveStatus.GRANTED
        if grant.status is not ReserveStatus.GRANTED or self._mapping is None:
            return False
        return 0 <= grant.offset <= self._mapping.data_bytes - self._chunk_bytes

    # -- the event thread and the copy threads

    def _event_ended(self, numbers: Sequence[int], has_fired: bool) -> None:
        with self._link.lock:
            now = time.monotonic()
            for number in numbers:
                if has_fired:
                    self._dispatch(self._ledger.event_fired(number, now))
                else:
                    self._dispatch(self._ledger.event_failed(number, now))

    def _copy_chunk(self, chunk: CopyChunk) -> None:
        with self._link.lock:
            unit = self._ledger.begin_copy(chunk.number, chunk.chunk, time.monotonic())
            mapping, copier = self._mapping, self._copier
        if unit is None:
            return
        reason = Reason.COPY_ERROR
        try:
            if mapping is not None and copier is not None:
                reason = self._copy(unit, mapping, copier)
        except Exception:  # whatever a copy raises ends its chunk, and neither the thread nor the engine
            if self._copy_faults.let_through(time.monotonic()) is not None:
                logger.exception("copy of chunk %d of operation %d failed", unit.chunk, unit.number)
        self._step(lambda now: self._ledger.end_copy(unit.number, unit.chunk, reason, now))

    def _warn_late(self, info: OperationInfo, now: float) -> None:
        held_back = self._late_endings.let_through(now)
        if held_back is not None:
            logger.warning(
                "%s of request %s ended after %.1f s: %s %s (%d more like it before)",
                info.kind,
                info.request_id,
                info.age_seconds,
                info.outcome,
                info.reason,
                held_back,
            )


def _unmap(mapping: PoolMapping | None, prefault: Prefault | None) -> None:
    """Close a mapping to which nobody copies any more."""
    if prefault is not None:
        prefault.stop()
    if mapping is not None:
        mapping.close()


def _reason(reply: Reply | Reason) -> Reason:
    """Why a request has no usable answer."""
    if isinstance(reply, Reason):
        return reply
    if isinstance(reply, Error):
        return _REASON_OF_ERROR.get(reply.code, Reason.REFUSED_BY_GATEWAY)
    return Reason.BAD_REPLY
