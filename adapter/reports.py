"""What the ledger tells the engine about its requests: each once, and only when nothing of it is pending.

Owns: unsettled operations a request, ids the caller holds, ids received, blocks not filled. Must not know: chunks,
phases, the gateway. Pure.
"""

from collections import Counter
from collections.abc import Iterable

from gateway.wire.codes import OperationKind

#: Requests with a failed load that wait to be asked for; not every engine asks, and the oldest go.
MAX_FAILED = 4096


class Reports:
    """Requests of one worker, as far as the engine is told of them."""

    def __init__(self) -> None:
        #: unsettled operations by kind and request; a request without any has no entry
        self.open: dict[OperationKind, Counter[str]] = {kind: Counter() for kind in OperationKind}
        self._held: set[str] = set()  #: ids the caller holds for us, not reported yet
        self._sent: set[str] = set()  #: of them, those without an unsettled store, not told yet
        self._reported: set[str] = set()  #: reported, and passed again ever since
        self._received: set[str] = set()  #: last retrieve settled, not told yet
        self._load_errors: set[int] = set()
        self._failed: dict[str, None] = {}  #: the one that failed first goes first

    def opened(self, kind: OperationKind, request: str) -> None:
        """An operation of this request begins."""
        self.open[kind][request] += 1
        ended = self._received if kind is OperationKind.RETRIEVE else self._sent
        ended.discard(request)  # told when its last operation is settled

    def settled(self, kind: OperationKind, request: str) -> None:
        """An operation of this request is settled."""
        pending = self.open[kind]
        pending[request] -= 1
        if not pending[request]:
            del pending[request]
            if kind is OperationKind.RETRIEVE:
                self._received.add(request)
            elif request in self._held:
                self._sent.add(request)

    def load_failed(self, request: str, block_ids: Iterable[int]) -> None:
        """A retrieve of this request did not fill these blocks."""
        self._failed.pop(request, None)
        self._failed[request] = None
        if len(self._failed) > MAX_FAILED:
            del self._failed[next(iter(self._failed))]
        self._load_errors.update(block_ids)

    def take_finished(self, held_ids: Iterable[str]) -> tuple[set[str], set[str]]:
        """(finished_sending, finished_receiving) since the last call.

        Each id passed is reported sent once, when it has no unsettled store. Passing it again while it is not reported
        changes nothing; after that it is not reported again until a call has left it out.
        """
        # Called once a step of the engine, with all that is held: two passes over it, and none over what is pending.
        passed = set(held_ids)
        new = passed.difference(self._held, self._reported)
        self._held |= new
        self._reported &= passed
        sending = self._sent | new.difference(self.open[OperationKind.STORE])
        self._sent = set()
        self._held -= sending
        self._reported |= sending & passed
        receiving, self._received = self._received, set()
        return sending, receiving

    @property
    def has_received(self) -> bool:
        """Whether ``take_finished`` has a request to tell whose retrieves are settled."""
        return bool(self._received)

    def take_load_errors(self) -> set[int]:
        """Blocks not filled, since the last call."""
        errors, self._load_errors = self._load_errors, set()
        return errors

    def take_failed_requests(self) -> set[str]:
        """Requests with a retrieve that was not wholly loaded, since the last call; the last ``MAX_FAILED``."""
        failed = set(self._failed)
        self._failed.clear()
        return failed

    def sizes(self) -> dict[str, int]:
        """Entries by table."""
        return {
            "held_requests": len(self._held),
            "finished_requests": len(self._sent) + len(self._reported) + len(self._received),
            "failed_blocks": len(self._load_errors),
            "failed_requests": len(self._failed),
        }

    def is_open(self, request: str) -> bool:
        """Whether any operation of this request is not settled."""
        return any(request in pending for pending in self.open.values())

    def check(self) -> None:
        """Raise AssertionError where the sets contradict each other."""
        assert not self._received & self.open[OperationKind.RETRIEVE].keys()
        assert not self._held & self._reported
        assert self._sent == self._held - self.open[OperationKind.STORE].keys()
