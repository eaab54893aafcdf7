"""The worker half: stores KV blocks in the node's gateway, and retrieves them.

Owns: the face an engine's worker calls, and what this half says of itself to the gateway. Must not know: how operations
go on and end (``Ledger``), who acts for them (``Transfers``), sockets (``Link``).

Threads: the engine's thread calls the face: checks, one ledger step under the link's lock, a post; it never waits and
does no I/O. Methods with a timeout wait that long at most. Methods of ``Half`` run on the link thread.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry

from adapter import measurements
from adapter.admin import AdminServer, Report
from adapter.config import AdapterConfig
from adapter.drain import OperatorDrain, Progress, progress
from adapter.geometry import Geometry, Tensor, read_layers
from adapter.handle_ledger import NUM_CELLS, HandleLedger
from adapter.identity import CacheIdentity
from adapter.ledger import Ledger, Limits
from adapter.link import SOFTWARE, Link
from adapter.log import EngineLog
from adapter.measurements import LinkCounts, Measurements, Readings
from adapter.metrics import AdapterCollector
from adapter.operation import IpcEvent, LoadStoreOp
from adapter.snapshot import PendingOperation, Snapshot
from adapter.switches import SwitchWatch
from adapter.telling import told
from adapter.transfer.chunks import CopyUnit, copy_unit
from adapter.transfer.handles import HandleTransfers
from adapter.transfer.memory import Memory
from adapter.transfer.request import transfer_of
from adapter.transfer.transfers import Transfers
from gateway.wire.codes import Lifecycle, OperationKind, Reason, Role, State, TransferMode, Trigger
from gateway.wire.messages import AdapterStats, Ping, Pong, Register, Reply

CLOSE_SECONDS = 1.5

_REASON_OF_STATE = {State.HEALTHY: Reason.NONE, State.DRAINING: Reason.DRAINING, State.CLOSED: Reason.CLOSED}


class WorkerAdapter:
    """Stores and retrieves one worker's KV blocks. The constructor returns at once, whether or not a gateway is there.

    Args:
        run_dir: the gateway's shared directory.
        identity: the model, and which part of a chunk this worker holds.
        group: shared by all halves of one model replica.
        config: settings; None: the defaults.
        registry: where the metrics are collected; None: a private registry, at ``registry``.
        copy: copies one unit. A seam for tests, not a setting.
        keeps_events: another: False drops events in handle mode before they are waited for.

    Raises:
        ValueError: the directory's path is too long for a socket in it, the engine's name is not allowed, or the admin
            server would be open to others.
        OSError: the admin server's address cannot be taken.
        RuntimeError: what the admin server needs is not installed.
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
        keeps_events: bool = True,
    ) -> None:
        self.identity = identity
        self.registry = CollectorRegistry() if registry is None else registry
        self._group = group
        self._config = config or AdapterConfig()
        self._engine_name = self._config.resolved_engine_name()
        self._measurements = Measurements()
        self._load_began: dict[str, float] = {}  # requests whose load is not reported yet
        self._memory = Memory(copy, Path(run_dir), NUM_CELLS if self._copies_there else 0)
        self._ledger = self._make_ledger()
        self._run_dir = os.fspath(run_dir)
        self._started_at = time.time()
        self._ticked_at = time.monotonic()
        self._drain = OperatorDrain(self._engine_name)
        self._log = EngineLog(self._engine_name)
        switches = SwitchWatch(run_dir, identity.model, self._config, self._log)
        self._link = Link(run_dir, self._config.heartbeat_seconds, self, "kvgate-worker", self._log, switches)
        self._admin = self._open_admin()
        if isinstance(self._ledger, HandleLedger):
            self._transfers: Transfers = HandleTransfers(
                self._ledger, self._link, self._memory, self._log, keeps_events=keeps_events
            )
        else:
            self._transfers = Transfers(self._ledger, self._link, self._memory, self._config.copy_threads, self._log)
        self._collector = AdapterCollector.of(self.registry)
        self._collector.add(self)
        self._transfers.start()
        self._link.start()
        if self._admin is not None:
            self._admin.start()

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
        if self._copies_there:
            self._memory.share(kv_caches)
        geometry, regions = read_layers(kv_caches, layout, block_axis, self.identity.block_tokens)
        self.identity.check_geometry(geometry)
        with self._link.lock:
            known = self._memory.geometry
            if self._ledger.has_unsettled():
                raise RuntimeError("the KV cache cannot be replaced while operations on it are pending")
            if known is not None and known != geometry:
                raise RuntimeError(f"the KV cache was registered as {known}, and is {geometry} now")
            self._memory.set_cache(kv_caches, geometry, regions, self.identity.blocks_per_chunk)
            self._link.announce()

    @property
    def geometry(self) -> Geometry:
        """The KV cache's shape, for the scheduler half.

        Raises:
            RuntimeError: no KV cache was registered yet.
        """
        geometry = self._memory.geometry
        if geometry is None:
            raise RuntimeError("there is no geometry before register_kv_caches")
        return geometry

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
        """Requests with a retrieve settled since the last call that was not wholly loaded, the last 4096 of them."""
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
            self._transfers.dispatch(self._ledger.revoke(blocks, time.monotonic()))

    def handle_preemptions(self, request_ids: Iterable[str], timeout_seconds: float) -> bool:
        """These requests lose their blocks: their operations give up what is not copied yet.

        Waits so long at most until all of them are settled, and returns whether they are.
        """
        self._link.check_process()
        requests = tuple(request_ids)
        with self._link.lock:
            self._transfers.dispatch(self._ledger.preempt(requests, time.monotonic()))
        return self._link.wait_for(lambda: not self._ledger.has_unsettled(requests), timeout_seconds)

    def wait_settled(self, timeout_seconds: float) -> bool:
        """Wait until no operation is pending, so long at most. Returns whether none is."""
        self._link.check_process()
        return self._link.wait_for(lambda: not self._ledger.has_unsettled(), timeout_seconds)

    def wait_received(self, timeout_seconds: float) -> bool:
        """Wait until ``get_finished`` has a request to report received, or nothing is pending, so long at most.

        Returns whether it is so.
        """
        self._link.check_process()
        return self._link.wait_for(
            lambda: self._ledger.has_received or not self._ledger.has_unsettled(), timeout_seconds
        )

    # -- the engine's face: operators ----------------------------------------------------------------------------------

    def drain(self, reason: str, deadline_seconds: float | None = None, *, requested_by: str = "the engine") -> None:
        """Take no new work until ``resume``; what is granted runs on to the deadline.

        Returns at once. Repeating it changes nothing, but that the earlier deadline wins.

        Args:
            reason: for the log and for whoever looks later.
            deadline_seconds: None: the configured time; 0: settle everything now.
            requested_by: the same.

        Raises:
            ValueError: the deadline is negative or not a number.
        """
        self._link.check_process()
        seconds = self._config.drain_deadline_seconds if deadline_seconds is None else deadline_seconds
        if not 0 <= seconds < math.inf:
            raise ValueError(f"deadline_seconds is {deadline_seconds!r}, expected a number of at least 0")
        self._log.info("drain", reason=reason, deadline_seconds=seconds, requested_by=requested_by)
        with self._link.lock:
            if self._link.state is State.CLOSED:
                return
            self._drain.request(
                secrets.token_hex(8),
                seconds,
                reason=reason,
                requested_by=requested_by,
                now=self._progress(),
                wall=time.time(),
            )
            self._link.drain(time.monotonic() + seconds)
            self._drain.look(self._progress(), time.time())

    def resume(self) -> None:
        """End the drain that ``drain`` began. Harmless when there is none."""
        self._link.check_process()
        with self._link.lock:
            self._drain.resume(time.time())
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
            state, boot, switch = self._link.state, self._link.boot, self._link.switch
            tables = {
                **self._transfers.table_sizes(),
                **self._link.table_sizes(),
                "loads_begun": len(self._load_began),
            }
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
            switch=switch,
            tables=tables,
        )

    def close(self) -> None:
        """Settle everything, leave the gateway, end the threads. Harmless when repeated.

        Short, however the gateway fares. What a running copy needs (its thread, the mapping, the party's lock) stays
        until that copy has ended.
        """
        self._link.check_process()
        self._link.close(CLOSE_SECONDS)
        self._transfers.join(0.1)
        if self._admin is not None:
            self._admin.close()

    # -- readings ------------------------------------------------------------------------------------------------------

    def readings(self) -> Readings:
        """Its metrics now. Any thread."""
        self._link.check_process()
        with self._link.lock:
            return measurements.read(
                state=self._link.state,
                counts=self._ledger.pending_counts(),
                totals=self._ledger.totals,
                measurements=self._measurements,
                link=LinkCounts(self._link.late_replies, self._link.reconnects, self._link.flaps),
                block_tokens=self.identity.block_tokens,
            )

    @property
    def admin_url(self) -> str | None:
        """Where the admin server listens: ``http://HOST:PORT`` or ``unix:PATH``; None without one."""
        return None if self._admin is None else self._admin.url

    def report(self) -> Report:
        """What the admin server tells of it, read in one step. Any thread."""
        self._link.check_process()
        with self._link.lock:
            self._drain.look(self._progress(), time.time())
            now, is_closed = time.monotonic(), self._link.state is State.CLOSED
            return Report(
                engine=self._engine_name,
                model=self.identity.model,
                party=self._link.party,
                identity=self._identity_message(self._link.party),
                run_dir=self._run_dir,
                started_at=self._started_at,
                lifecycle=Lifecycle.STOPPED if is_closed else self._drain.state,
                gateway=self._link.gateway_state,
                boot=self._link.boot,
                link_age_seconds=now - self._ticked_at,
                switches=self._link.switches,
                drain=self._drain.record,
                counts=self._ledger.pending_counts(),
                pending=told(self._ledger.pending_operations(now, self._config.max_pending_ops)),
                settled=told(self._transfers.recently_settled()),
            )

    # -- Half: called by the link, its lock held -----------------------------------------------------------------------

    def register_message(self, party: bytes) -> Register | None:
        """What this half says of itself; without a KV cache it has no namespace, and nothing to register.

        Raises:
            PoolUnusableError: the KV cache cannot be handed to the gateway that is to copy.
        """
        message = self._identity_message(party)
        if message is None or not self._copies_there:
            return message
        return msgspec.structs.replace(message, offer=self._memory.offer())

    def _identity_message(self, party: bytes) -> Register | None:
        identity, geometry = self.identity, self._memory.geometry
        if geometry is None:
            return None
        return Register(
            number=0,
            party=party,
            role=Role.WORKER,
            group=self._group,
            engine=self._engine_name,
            model=identity.model,
            namespace=identity.namespace(geometry),
            shard=identity.shard,
            shard_count=identity.shard_count,
            replica=identity.replica,
            replicas=identity.replicas,
            chunk_bytes=self._memory.chunk_bytes,
            chunk_tokens=identity.chunk_tokens,
            holds_nothing=not self._ledger.has_unsettled(),
            pid=os.getpid(),
            software=SOFTWARE,
            transfer=TransferMode.HANDLE if self._copies_there else TransferMode.POOL,
        )

    def ping_message(self, party: bytes) -> Ping:
        """A heartbeat with the operations whose grants are still in use."""
        readings = self.readings()
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
                pending=told(self._ledger.pending_operations(time.monotonic())),
                settled=told(self._transfers.take_settled()),
            ),
        )

    def prepare(self, pool: Path, pool_id: bytes) -> None:
        """Map the pool, if another one is mapped or none."""
        self._link.post(self._memory.map_pool(pool, pool_id))

    def is_idle(self) -> bool:
        """Whether no copy runs."""
        return self._ledger.running_units == 0

    def settle(self, trigger: Trigger) -> None:
        """Give up all operations."""
        self._transfers.dispatch(self._ledger.settle_all(trigger, time.monotonic()))

    def wind_down(self, trigger: Trigger, deadline: float) -> None:
        """Give up what is not granted; the rest runs on to the deadline."""
        self._transfers.dispatch(self._ledger.drain(trigger, deadline, time.monotonic()))

    def end_drain(self) -> None:
        """Work is accepted again."""
        self._ledger.end_drain()

    def heard_pong(self, ping: Ping, pong: Pong) -> None:
        """Reservations and read leases are renewed by the gateway alone."""

    def heard_late(self, reply: Reply) -> None:
        """The link lets a heartbeat give back what a late reply granted."""

    def tick(self, now: float) -> float:
        """Deadlines, and news of what has settled."""
        self._ticked_at = now
        due_at = self._transfers.tick(now)
        if self._drain.state is Lifecycle.DRAINING:
            self._drain.look(self._progress(), time.time())
        return due_at

    def release(self) -> None:
        """No copy runs and none will: end the threads, unmap the pool, let the KV cache go, leave the scrape."""
        self._transfers.close()
        self._memory.release()
        self._collector.remove(self)

    def gateway_died(self, now: float) -> None:
        """Nothing that was handed to that gateway runs any more."""
        if isinstance(self._transfers, HandleTransfers):
            self._transfers.gateway_died(now)

    # -- within --------------------------------------------------------------------------------------------------------

    @property
    def _copies_there(self) -> bool:
        """Whether the gateway copies, not this process."""
        return self._config.transfer == TransferMode.HANDLE

    def _make_ledger(self) -> Ledger:
        limits = Limits(
            max_pending_ops=self._config.max_pending_ops,
            max_pending_bytes=self._config.max_pending_bytes,
            operation_deadline_seconds=self._config.operation_deadline_seconds,
            verify=os.environ.get("KVGATE_VERIFY") == "1",
        )
        if self._copies_there:
            return HandleLedger(board=self._memory.cells, **limits)
        return Ledger(**limits)

    def _open_admin(self) -> AdminServer | None:
        if self._config.admin is None:
            return None
        try:
            return AdminServer.open(
                self._config.admin,
                self._config.admin_token_file,
                adapter=self,
                party=self._link.party,
                registry=self.registry,
                log=self._log,
            )
        except BaseException:
            self._link.discard()
            raise

    def _progress(self) -> Progress:
        counts = self._ledger.pending_counts()
        return progress(counts.stores + counts.retrieves, self._ledger.totals.operations)

    # -- submitting ----------------------------------------------------------------------------------------------------

    def _submit(self, kind: OperationKind, request_id: str, op: LoadStoreOp, event: IpcEvent | None) -> int:
        self._link.check_process()
        geometry = self._memory.geometry
        transfer = transfer_of(
            kind,
            request_id,
            op,
            identity=self.identity,
            chunk_bytes=self._memory.chunk_bytes,
            num_blocks=None if geometry is None else geometry.num_blocks,
        )
        if event is not None and not callable(getattr(event, "query", None)):
            raise ValueError(f"event is {event!r}, expected None or an object with query()")
        with self._link.lock:
            switch = self._link.switch
            refuse = _REASON_OF_STATE.get(self._link.state, Reason.NOT_HEALTHY)
            if geometry is None and refuse is Reason.NONE:
                refuse = Reason.NOT_HEALTHY
            if not (switch.stores if kind is OperationKind.STORE else switch.loads):
                refuse = Reason.OFF
            now = time.monotonic()
            number, actions = self._ledger.submit(transfer, event, refuse=refuse, now=now, wall=time.time())
            if kind is OperationKind.RETRIEVE:
                self._load_began.setdefault(request_id, now)
            self._transfers.dispatch(actions)
            return number
