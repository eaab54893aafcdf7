"""Handle mode's desk: STORE and RETRIEVE come in, slots are asked of the core, copies go out and come back.

Owns: who the gateway copies for, what is under way for them, what was exported to them. Must not know: sockets, how a
chunk is copied (``Peer``), how an event is waited for (``EventWatch``). Runs on the loop's thread; what other threads
have to say is posted to it.

The daemon stands here where an adapter stands in pool mode: it reserves, copies and commits, or reads and releases, in
the worker's name, through the same steps of the same core. So every rule about slots is written once. Two rules are the
desk's own:

- While a unit runs nothing may free its slot: a party that is proven dead is buried when none does (``is_busy``), and
  what a heartbeat does not list any more is stopped here first.
- An answer is given when no unit of the operation runs, and that is what a worker may rely on.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from gateway.core.core import Core
from gateway.core.types import Refusal
from gateway.device.base import Device, DeviceError, RecordedEvent
from gateway.device.host import HostDevice
from gateway.handles.book import Book, Name
from gateway.handles.event_watch import EventWatch
from gateway.handles.line import Line, Unit
from gateway.handles.operation import Acknowledge, Finish, Operation, Place
from gateway.handles.peer import Peer
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import (
    CommitStatus,
    CopyStatus,
    ErrorCode,
    OperationKind,
    ReserveStatus,
    Role,
    TransferMode,
)
from gateway.wire.messages import Cancel, Register, ReleaseEvent, Retrieve, Sample, Store

_log = logging.getLogger("kvgate.handles")

STORE, RETRIEVE = OperationKind.STORE, OperationKind.RETRIEVE
#: Slots that one operation holds at once: enough that the line never waits for the loop.
WINDOW = 16
#: Operations under way or remembered, of all parties: thirty seconds of eight thousand a second.
MAX_NUMBERS = 1 << 18
#: How far off a deadline may be: as long as a number is remembered.
MAX_DEADLINE_SECONDS = 86400.0
#: How long an end waits for a copy that runs.
CLOSE_SECONDS = 2.0

_STATUS_OF_RESERVE = {
    ReserveStatus.EXISTS: CopyStatus.EXISTS,
    ReserveStatus.BUSY: CopyStatus.BUSY,
    ReserveStatus.FULL: CopyStatus.FULL,
}
_STATUS_OF_COMMIT = {
    CommitStatus.COMMITTED: CopyStatus.COPIED,
    CommitStatus.EXISTS: CopyStatus.EXISTS,
    CommitStatus.DRAINED: CopyStatus.DRAINED,
    CommitStatus.CLEARED: CopyStatus.CLEARED,
    CommitStatus.UNKNOWN: CopyStatus.CANCELLED,
}
_DRAINING = (ErrorCode.DRAINING, ErrorCode.STOPPING)


class Desk:
    """Copies for all workers in handle mode.

    Args:
        core: owner of all tables.
        mode: what this gateway offers.
        write: brings what a step of the core decided into the pool file.
        open_device: a device by name, as a worker calls it.
        host: the CPU, in whose memory boards lie.
        open_mapping: the pool, mapped for copies; called when the first worker comes.
        post: has a step run on the loop's thread.
        clock: monotonic seconds.
        wall: Unix seconds.
    """

    def __init__(
        self,
        core: Core,
        *,
        mode: TransferMode,
        write: Callable[[], None],
        open_device: Callable[[str], Device],
        host: HostDevice,
        open_mapping: Callable[[], PoolMapping],
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.mode = mode
        self._core = core
        self._write = write
        self._open_device = open_device
        self._host = host
        self._open_mapping = open_mapping
        self._post = post
        self._clock = clock
        self._wall = wall
        self._mapping: PoolMapping | None = None
        self._peers: dict[bytes, Peer] = {}
        self._lines: dict[bytes, Line] = {}
        self._watches: dict[bytes, EventWatch] = {}
        self._leaving: list[Line] = []  # not ended yet
        self._book = Book()
        self._exported: dict[Name, RecordedEvent] = {}
        self._copies: dict[tuple[OperationKind, CopyStatus], int] = {}

    # -- parties

    def agree(self, request: Register) -> None:
        """Who copies must be the same on both sides.

        Raises:
            Refusal: INCOMPATIBLE, with both values.
        """
        if request.role is Role.WORKER and self.mode is not TransferMode.AUTO and request.transfer is not self.mode:
            raise Refusal(
                ErrorCode.INCOMPATIBLE, f"you registered with transfer {request.transfer}, this gateway has {self.mode}"
            )

    @contextlib.contextmanager
    def opened(self, request: Register) -> Iterator[Callable[[], None]]:
        """Open what a worker in handle mode offers, while it is registered.

        Yields:
            To be called once it is registered: the gateway copies for it from then on. If it is not called, nothing
            stays open.

        Raises:
            Refusal: INCOMPATIBLE or INVALID; nothing stays open.
        """
        if request.transfer is not TransferMode.HANDLE or self._book.of_party(request.party):
            yield lambda: None  # what copies now goes on with what it has
            return
        peer = self._open(request)
        try:
            yield partial(self._seat, peer)
        finally:
            if self._peers.get(peer.party) is not peer:
                peer.close()

    def _open(self, request: Register) -> Peer:
        if self._mapping is None:
            self._mapping = self._open_mapping()
        try:
            name = request.offer.device if request.offer is not None else ""
            device = self._open_device(name)
        except DeviceError as error:
            raise Refusal(ErrorCode.INCOMPATIBLE, f"this gateway cannot copy for this worker: {error}") from None
        return Peer(request, device, self._host, self._mapping, self._clock)

    def _seat(self, peer: Peer) -> None:
        self._unseat(peer.party)
        name = peer.party.hex()[:8]
        watch = EventWatch(
            peer.device.open_event,
            ended=lambda operation, fired: self._hear(partial(self._event_ended, operation, fired)),
            name=f"events-{name}",
        )

        def let_go() -> None:  # on the line's thread: it takes a tenth of a second a GiB
            watch.join()
            peer.close()

        try:
            line = Line(
                copy=peer.copy,
                unit_ended=lambda unit, status: self._hear(partial(self._unit_ended, unit, status)),
                has_ended=let_go,
                name=f"copy-{name}",
            )
        except RuntimeError:  # no more threads are to be had
            watch.close()
            raise
        self._peers[peer.party], self._watches[peer.party], self._lines[peer.party] = peer, watch, line

    def leave(self, parties: Iterable[bytes], now: float) -> None:
        """These parties left, died or were fenced: stop their copies, let go what was exported to them."""
        for party in parties:
            if party in self._peers:
                self._peers[party].is_leaving = True
                self._stop_all(party, lambda _: True, now)
                self._release(party, lambda _: True)

    def is_busy(self, party: bytes) -> bool:
        """Whether a unit of this party runs: its slots must stay what they are."""
        return bool(self._book.of_party(party))

    def serves(self, party: bytes) -> bool:
        """Whether the gateway copies for this party."""
        return party in self._peers

    def parties_of(self, engine: str) -> list[bytes]:
        """The parties of this engine that the gateway copies for."""
        return [peer.party for peer in self._peers.values() if peer.engine == engine]

    # -- requests

    def store(self, request: Store, now: float, finish: Finish) -> None:
        """Begin a STORE; ``finish`` is called once, now or later.

        Raises:
            Refusal: as RESERVE, or INVALID; nothing has changed.
        """
        peer = self._peer_for(request)
        if not 0 <= request.cell < peer.num_cells:
            raise Refusal(ErrorCode.INVALID, f"cell is {request.cell}, expected 0 to {peer.num_cells - 1}")
        if len(set(request.keys)) < len(request.keys):  # the core sees a window at a time
            raise Refusal(ErrorCode.INVALID, "a key stands twice in one operation")
        if not self._is_repeated(request, finish):
            operation = Operation(request, peer.blocks_per_chunk)
            self._reserve(operation, now)
            self._begin(operation, finish, now)

    def retrieve(self, request: Retrieve, now: float, finish: Finish) -> None:
        """Begin a RETRIEVE; ``finish`` is called once, now or later.

        Raises:
            Refusal: as READ, or INVALID; nothing has changed.
        """
        peer = self._peer_for(request)
        if not 0 <= request.skip_blocks <= len(request.keys) * peer.blocks_per_chunk:
            raise Refusal(ErrorCode.INVALID, f"skip_blocks is {request.skip_blocks}, expected at most all blocks")
        if not self._is_repeated(request, finish):
            operation = Operation(request, peer.blocks_per_chunk)
            grants, _ = self._core.read(request.party, request.operation, request.keys, now, self._wall())
            operation.next_chunk = len(grants)
            for chunk, grant in enumerate(grants):
                if grant.slot < 0:
                    operation.end_chunk(chunk, CopyStatus.MISSING)
                else:
                    operation.places[chunk] = Place(grant.slot, grant.offset, grant.generation)
            self._begin(operation, finish, now)

    def cancel(self, request: Cancel, now: float, acknowledge: Acknowledge) -> None:
        """End an operation; ``acknowledge`` is called once, when no unit of it runs."""
        operation = self._book.find(request.party, request.operation)
        if operation is not None:
            operation.acknowledges.append(acknowledge)
            self._stop(operation, CopyStatus.CANCELLED, now)
            return
        # One that is further off could start nothing; nor could one that is no number.
        if now < request.deadline <= now + MAX_DEADLINE_SECONDS and self._book.num_remembered() < MAX_NUMBERS:
            self._book.bury(request.party, request.operation, request.deadline)
        acknowledge()

    def release_event(self, request: ReleaseEvent) -> None:
        """Drop what was exported with this operation's answer."""
        self._exported.pop((request.party, request.operation), None)

    def heartbeat(self, party: bytes, next_operation: int, listed: Sequence[int], now: float) -> tuple[int, ...]:
        """A party lives. What it does not list any more is stopped and let go.

        Returns:
            What must be renewed: what is listed, and what still runs.
        """
        if party not in self._peers:
            return tuple(listed)
        unsettled = frozenset(listed)
        self._stop_all(party, lambda number: number < next_operation and number not in unsettled, now)
        self._release(party, lambda number: number < next_operation and number not in unsettled)
        return tuple(unsettled.union(operation.number for operation in self._book.of_party(party)))

    # -- time

    def tick(self, now: float) -> None:
        """Deadlines, stores that the quota stopped, threads that have ended."""
        self._host.receive()
        self._book.expire(now)
        for operation in self._book:
            if now >= operation.deadline:
                self._stop(operation, CopyStatus.EXPIRED, now)
            else:
                self._advance(operation, now)
        for party, peer in list(self._peers.items()):
            if peer.is_leaving and not self.is_busy(party):
                self._unseat(party)
        self._leaving = [line for line in self._leaving if line.is_alive()]

    def close(self) -> None:
        """Stop all copies; what runs is waited for a little while."""
        for party in list(self._peers):
            self._unseat(party)
        for line in self._leaving:
            line.join(CLOSE_SECONDS)
        if self._mapping is not None and not any(line.is_alive() for line in self._leaving):
            self._mapping.close()
        self._exported.clear()

    # -- readings

    def gauges(self) -> list[Sample]:
        """What is, for a snapshot."""
        return [
            Sample("exported_events", (), len(self._exported)),
            Sample("imported_events", (), sum(watch.num_open for watch in self._watches.values())),
            Sample("copying_operations", (), len(self._book)),
            Sample("mapped_workers", (), len(self._peers) + len(self._leaving)),
        ]

    def table_sizes(self) -> dict[str, int]:
        """Entries of the table that no other gauge tells, by its name in the metric ``table_entries``."""
        return {"answered_copies": self._book.num_remembered()}

    def counters(self) -> list[Sample]:
        """What happened, for a snapshot."""
        return [Sample("copies", tuple(map(str, name)), count) for name, count in self._copies.items()]

    # -- within

    def _peer_for(self, request: Store | Retrieve) -> Peer:
        """The worker that asks, if what it asks makes sense.

        Raises:
            Refusal: INVALID or UNKNOWN_PARTY.
        """
        peer = self._peers.get(request.party)
        if peer is None or peer.is_leaving:
            raise Refusal(
                ErrorCode.UNKNOWN_PARTY, f"party {request.party.hex()} is not registered with transfer handle"
            )
        num_ids, expected = len(request.blocks) // 4, len(request.keys) * peer.blocks_per_chunk
        if len(request.blocks) % 4 or num_ids != expected or not request.keys:
            raise Refusal(
                ErrorCode.INVALID,
                f"{len(request.blocks)} bytes of block ids for {len(request.keys)} keys, expected {4 * expected}",
            )
        # Not the other way round: one that is no number compares with nothing, and would never come.
        if not 0 < request.deadline <= self._clock() + MAX_DEADLINE_SECONDS:
            raise Refusal(
                ErrorCode.INVALID,
                f"deadline is {request.deadline}, expected a moment within {MAX_DEADLINE_SECONDS:g} s from now",
            )
        if self._book.num_remembered() + len(self._book) >= MAX_NUMBERS:
            raise Refusal(ErrorCode.LIMIT, f"{MAX_NUMBERS} operations are remembered, no more can be", 1.0)
        return peer

    def _is_repeated(self, request: Store | Retrieve, finish: Finish) -> bool:
        """Whether this number starts nothing; it is answered then, now or with the one under way."""
        name = (request.party, request.operation)
        under_way = self._book.find(*name)
        if under_way is not None:
            under_way.finishes.append(finish)
            return True
        answer = self._book.over(*name, len(request.keys))
        if answer is None:
            return False
        exported = self._exported.get(name)
        finish(answer, b"" if exported is None else exported.ipc_handle())
        return True

    def _begin(self, operation: Operation, finish: Finish, now: float) -> None:
        operation.finishes.append(finish)
        self._book.begin(operation)
        if operation.waits_for_event:
            self._watches[operation.party].watch(operation)
        else:
            self._put(operation, operation.places)
        self._advance(operation, now)

    def _put(self, operation: Operation, chunks: Iterable[int]) -> None:
        units = [Unit(operation, chunk, operation.places[chunk]) for chunk in chunks]
        operation.running += len(units)
        self._lines[operation.party].put(units)

    def _reserve(self, operation: Operation, now: float) -> list[int]:
        """Ask for the next window of slots; returns the chunks that got one.

        Raises:
            Refusal: as RESERVE.
        """
        first = operation.next_chunk
        keys = operation.keys[first : first + WINDOW - len(operation.places)]
        parent = operation.keys[first - 1] if first else operation.parent
        grants, _ = self._core.reserve(operation.party, operation.number, keys, operation.depth + first, parent, now)
        granted: list[int] = []
        for chunk, grant in enumerate(grants, first):
            is_early = grant.status is ReserveStatus.FULL and self._is_coming(operation, parent)
            if grant.status is ReserveStatus.QUOTA or is_early:
                break  # and so are those behind it: ask again when some are committed
            operation.next_chunk = chunk + 1
            if grant.status is ReserveStatus.GRANTED:
                operation.places[chunk] = Place(grant.slot, grant.offset, grant.generation)
                granted.append(chunk)
            else:
                operation.end_chunk(chunk, _STATUS_OF_RESERVE[grant.status])
        self._write()
        return granted

    def _is_coming(self, operation: Operation, key: bytes) -> bool:
        """Whether another store of this party has this chunk still before it: it asks for slots a window at a time."""
        return any(
            result is None and other is not operation and other.kind is STORE and other.keys[chunk] == key
            for other in self._book.of_party(operation.party)
            for chunk, result in enumerate(other.results)
        )

    def _advance(self, operation: Operation, now: float) -> None:
        """Take the operation as far as it goes by itself: ask for more slots, or answer."""
        if operation.has_ended():
            self._end(operation, now)
            return
        wants_more = operation.stopped is None and not operation.waits_for_event
        if wants_more and operation.next_chunk < len(operation.keys) and len(operation.places) <= WINDOW // 2:
            try:
                self._put(operation, self._reserve(operation, now))
            except Refusal as refusal:
                is_drain = refusal.code in _DRAINING
                self._stop(operation, CopyStatus.DRAINED if is_drain else CopyStatus.CANCELLED, now)
            else:
                if operation.has_ended():
                    self._end(operation, now)

    def _stop(self, operation: Operation, status: CopyStatus, now: float) -> None:
        """Nothing more of it begins; it is answered when the unit that runs has come back. The first reason stays."""
        if operation.stopped is None:
            operation.stopped = status
            operation.waits_for_event = False
            self._watches[operation.party].withdraw(operation)
            operation.running -= len(self._lines[operation.party].withdraw(operation))
        if operation.has_ended():
            self._end(operation, now)

    def _stop_all(self, party: bytes, chosen: Callable[[int], bool], now: float) -> None:
        for operation in self._book.of_party(party):
            if chosen(operation.number):
                self._stop(operation, CopyStatus.CANCELLED, now)

    def _release(self, party: bytes, chosen: Callable[[int], bool]) -> None:
        for name in [name for name in self._exported if name[0] == party and chosen(name[1])]:
            del self._exported[name]

    def _hear(self, step: Callable[[], None]) -> None:
        """On another thread: have the loop take this step; a defect in it must not end the daemon for all engines."""

        def guarded() -> None:
            try:
                step()
            except Exception:  # noqa: BLE001
                _log.exception("copy_step_failed")

        self._post(guarded)

    def _event_ended(self, operation: Operation, fired: bool) -> None:
        if self._book.find(operation.party, operation.number) is not operation or not operation.waits_for_event:
            return
        operation.waits_for_event = False
        now = self._clock()
        if fired:
            self._put(operation, operation.places)
            self._advance(operation, now)
        else:
            self._stop(operation, CopyStatus.EVENT_ERROR, now)

    def _unit_ended(self, unit: Unit, status: CopyStatus) -> None:
        operation, now = unit.operation, self._clock()
        operation.running -= 1
        if operation.kind is STORE:
            status = self._publish(operation, unit.place, status, now)
        operation.end_chunk(unit.chunk, status)
        name = (operation.kind, status)
        self._copies[name] = self._copies.get(name, 0) + 1
        self._advance(operation, now)

    def _publish(self, operation: Operation, place: Place, status: CopyStatus, now: float) -> CopyStatus:
        """Commit a chunk that was copied, or give its slot back; returns what became of it."""
        party, number, reservations = operation.party, operation.number, (place.generation,)
        try:
            if status is CopyStatus.COPIED:
                [result] = self._core.commit(party, number, reservations, now).statuses
                return _STATUS_OF_COMMIT[result]
            self._core.abort(party, number, reservations, now)
        except Refusal:  # the party left or was fenced: the slot waits for its death
            return CopyStatus.CANCELLED
        finally:
            self._write()
        return status

    def _end(self, operation: Operation, now: float) -> None:
        """Nothing of it runs and nothing will: give back what it held, and say so."""
        party, number = operation.party, operation.number
        try:
            if operation.kind is STORE:
                if operation.places:
                    self._core.abort(party, number, (), now)
            else:
                self._core.end_read(party, number, now)
        except Refusal:
            _log.debug("slots of operation %d wait for the death of %s", number, party.hex())
        finally:
            self._write()
        self._watches[party].withdraw(operation)  # one with nothing to copy does not wait for its event
        self._book.end(operation)
        results, handle = operation.answer(), b""
        if operation.kind is RETRIEVE and CopyStatus.COPIED in results and not self._peers[party].is_leaving:
            handle = self._export(operation)
        for finish in operation.finishes:
            finish(results, handle)
        for acknowledge in operation.acknowledges:
            acknowledge()

    def _export(self, operation: Operation) -> bytes:
        """An event behind the operation's last copy, kept until the worker has waited for it; its handle.

        The copies are complete by now: where no event can be made, the answer alone says so.
        """
        try:
            event = self._peers[operation.party].device.record_event()
        except (OSError, RuntimeError) as error:
            _log.warning("event_not_made", extra={"facts": {"reason": str(error)}})
            return b""
        self._exported[operation.party, operation.number] = event
        return event.ipc_handle()

    def _unseat(self, party: bytes) -> None:
        self._peers.pop(party, None)
        line = self._lines.pop(party, None)
        if line is not None:
            self._watches.pop(party).close()
            line.close()
            self._leaving.append(line)
