"""The ledger and those who act for it: every step's actions find their way to the link, the events, the copy threads.

Owns: the ``Ledger`` of a worker, the event thread and the copy threads; how an action becomes a message, and a reply a
step. Must not know: the engine's face, what an operation goes through (``Ledger``), sockets (``Link``).

Every step is taken with the link's lock held, and its actions go to the link thread in the order of the steps, all of
them: an event dropped before the order to watch it was carried out would be watched for ever. The list of actions is
handed over, not its items, and the link thread takes them out of it: so the last reference to an event dies there,
whatever its destructor costs.

Threads: a step may be taken on any; actions are performed on the link thread; ``_copy_chunk`` runs on copy threads,
``_event_ended`` on the event thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from adapter.actions import (
    Action,
    AskCommit,
    AskRead,
    AskReserve,
    Begin,
    CopyChunk,
    DropEvent,
    Grant,
    TellAbort,
    TellEndRead,
    WatchEvent,
)
from adapter.ledger import Ledger
from adapter.link import REPLY_SECONDS, Link
from adapter.log import EngineLog
from adapter.transfer.copier import CopyThreads
from adapter.transfer.events import EventWatcher
from adapter.transfer.memory import Memory
from gateway.wire.codes import ErrorCode, OutcomeKind, Reason, ReserveStatus
from gateway.wire.messages import (
    Abort,
    Commit,
    Committed,
    EndRead,
    Error,
    OperationInfo,
    Read,
    Readable,
    Reply,
    Reserve,
    Reserved,
)

#: Settled operations kept for the next heartbeat and for operators, the newest of them.
MAX_SETTLED_KEPT = 64

_REASON_OF_ERROR = {
    ErrorCode.STARTING: Reason.DRAINING,
    ErrorCode.DRAINING: Reason.DRAINING,
    ErrorCode.STOPPING: Reason.DRAINING,
    ErrorCode.EXPIRED: Reason.NO_REPLY,
    ErrorCode.UNKNOWN_PARTY: Reason.RESTARTED,
    ErrorCode.WRONG_BOOT: Reason.RESTARTED,
}


class Transfers:
    """Drives one ledger. Its tables may be read with the link's lock held."""

    def __init__(self, ledger: Ledger, link: Link, memory: Memory, copy_threads: int, log: EngineLog) -> None:
        self.ledger = ledger
        self._link = link
        self._memory = memory
        self._log = log
        self._events = EventWatcher(self._event_ended, "kvgate-events")
        self._copy_threads = CopyThreads(copy_threads, self._copy_chunk, "kvgate-copy")
        self._settled: deque[OperationInfo] = deque(maxlen=MAX_SETTLED_KEPT)
        self._num_untold = 0  #: of them, the newest so many were in no heartbeat yet

    def start(self) -> None:
        """Begin."""
        self._events.start()
        self._copy_threads.start()

    def dispatch(self, actions: list[Action]) -> None:
        """Hand a step's actions over. The link's lock is held since before the step."""
        if actions:
            self._link.post(partial(self._perform, actions))

    def tick(self, now: float) -> float:
        """Deadlines; and what has settled is told to those who wait, to the log and to the next heartbeat.

        Returns:
            When something is due next (monotonic).
        """
        if self.ledger.next_deadline() <= now:
            self.dispatch(self.ledger.tick(now))
        settled = self.ledger.take_settled()
        if settled:
            self._settled.extend(settled)
            self._num_untold = min(self._num_untold + len(settled), MAX_SETTLED_KEPT)
            self._link.changed.notify_all()
            for info in settled:
                if info.outcome is OutcomeKind.EXPIRED or info.reason is Reason.NO_REPLY:
                    self._warn_late(info)
        return self.ledger.next_deadline()

    def take_settled(self) -> tuple[OperationInfo, ...]:
        """The newest operations settled since the last call."""
        settled = tuple(self._settled)[len(self._settled) - self._num_untold :]
        self._num_untold = 0
        return settled

    def recently_settled(self) -> tuple[OperationInfo, ...]:
        """The newest settled operations, told or not."""
        return tuple(self._settled)

    def table_sizes(self) -> dict[str, int]:
        """Entries by table, the ledger's among them. The link's lock is held."""
        return {
            **self.ledger.table_sizes(),
            "watched_events": len(self._events),
            "told_operations": len(self._settled),
        }

    def close(self) -> None:
        """No copy runs and none will: let the threads end."""
        self._events.close()
        self._copy_threads.close()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the end of the threads."""
        self._events.join(timeout_seconds)
        self._copy_threads.join(timeout_seconds)

    # -- actions: on the link thread -----------------------------------------------------------------------------------

    def _perform(self, actions: list[Action]) -> None:
        actions.reverse()
        while actions:
            self._perform_one(actions.pop())

    def _perform_one(self, action: Action) -> None:
        party = self._link.party
        match action:
            case Begin(number):
                self._step(lambda now: self.ledger.begin(number, now))
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
                commit = Commit(
                    number=0,
                    party=party,
                    operation=number,
                    pool_id=self._memory.pool_id,
                    reservations=generations,
                )
                self._link.ask(commit, time.monotonic() + REPLY_SECONDS, partial(self._committed, number, chunks))
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

    # -- replies: on the link thread -----------------------------------------------------------------------------------

    def _reserved(self, number: int, chunks: Sequence[int], reply: Reply | Reason) -> None:
        grants: list[Grant] = []
        if isinstance(reply, Reserved) and reply.pool_id == self._memory.pool_id:
            grants = [Grant(grant.status, grant.slot, grant.offset, grant.generation) for grant in reply.grants]
        self._granted(number, chunks, grants, reply)

    def _readable(self, number: int, chunks: Sequence[int], reply: Reply | Reason) -> None:
        grants: list[Grant] = []
        if isinstance(reply, Readable) and reply.pool_id == self._memory.pool_id:
            granted, missing = ReserveStatus.GRANTED, ReserveStatus.FULL
            grants = [
                Grant(granted if slot.slot >= 0 else missing, slot.slot, slot.offset, slot.generation)
                for slot in reply.slots
            ]
        self._granted(number, chunks, grants, reply)

    def _granted(self, number: int, chunks: Sequence[int], grants: list[Grant], reply: Reply | Reason) -> None:
        if len(grants) == len(chunks) and all(map(self._is_usable, grants)):
            self._step(lambda now: self.ledger.granted(number, chunks, grants, now))
        else:
            self._step(lambda now: self.ledger.failed(number, chunks, reason_of(reply), now))

    def _committed(self, number: int, chunks: Sequence[int], reply: Reply | Reason) -> None:
        if isinstance(reply, Committed) and len(reply.results) == len(chunks):
            results = reply.results
            self._step(lambda now: self.ledger.committed(number, chunks, results, now))
        else:
            self._step(lambda now: self.ledger.commit_failed(number, chunks, reason_of(reply), now))

    def _is_usable(self, grant: Grant) -> bool:
        """Whether a grant is what it says, and its slot lies in the pool: nothing is copied to where a fault points."""
        if grant.slot < 0:
            return grant.status is not ReserveStatus.GRANTED
        return grant.status is ReserveStatus.GRANTED and self._memory.has_room_at(grant.offset)

    def _step(self, step: Callable[[float], list[Action]]) -> None:
        with self._link.lock:
            self.dispatch(step(time.monotonic()))

    # -- the event thread and the copy threads -------------------------------------------------------------------------

    def _event_ended(self, numbers: Sequence[int], has_fired: bool) -> None:
        end = self.ledger.event_fired if has_fired else self.ledger.event_failed
        with self._link.lock:
            now = time.monotonic()
            for number in numbers:
                self.dispatch(end(number, now))

    def _copy_chunk(self, chunk: CopyChunk) -> None:
        with self._link.lock:
            unit = self.ledger.begin_copy(chunk.number, chunk.chunk, time.monotonic())
        if unit is None:
            return
        try:
            reason = self._memory.copy(unit)
        except Exception:  # noqa: BLE001 - whatever a copy raises ends its chunk, and neither the thread nor the engine
            reason = Reason.COPY_ERROR
            self._log.exception("copy_failed", operation=unit.number, chunk=unit.chunk, request=unit.request_id)
        self._step(lambda now: self.ledger.end_copy(unit.number, unit.chunk, reason, now))

    def _warn_late(self, info: OperationInfo) -> None:
        self._log.warning(
            "operation_late",
            reason=f"{info.outcome} {info.reason}".rstrip(),
            kind=str(info.kind),
            operation=info.number,
            request=info.request_id,
            seconds=round(info.age_seconds, 1),
        )


def reason_of(reply: Reply | Reason) -> Reason:
    """Why a request has no usable answer."""
    if isinstance(reply, Reason):
        return reply
    if isinstance(reply, Error):
        return _REASON_OF_ERROR.get(reply.code, Reason.REFUSED_BY_GATEWAY)
    return Reason.BAD_REPLY
