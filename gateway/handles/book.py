"""Which operations the gateway copies for, and which numbers start nothing any more.

Owns: operations under way, the answers given, the tombstones of CANCEL. Must not know: copies, threads, messages' ways.
Pure: the time is passed in. Belongs to the loop's thread.

A STORE or RETRIEVE can arrive twice, or after its CANCEL: whoever asked may have given up waiting, and its blocks may
be others' by now. So a number that was answered or cancelled is remembered until its operation's deadline, after which
the request itself is refused as too late.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.deadlines import GONE, Deadlines
from gateway.handles.operation import Operation
from gateway.wire.codes import CopyStatus

Name = tuple[bytes, int]


class Book:
    """All operations of all parties."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, dict[int, Operation]] = {}
        self._over: dict[Name, tuple[float, tuple[CopyStatus, ...]]] = {}  #: deadline, and the answer; empty: cancelled
        self._deadlines: Deadlines[Name] = Deadlines()  #: of these

    def __len__(self) -> int:
        return sum(map(len, self._under_way.values()))

    def num_remembered(self) -> int:
        """Numbers that start nothing."""
        return len(self._over)

    def find(self, party: bytes, number: int) -> Operation | None:
        """The operation, if it is under way."""
        return self._under_way.get(party, {}).get(number)

    def of_party(self, party: bytes) -> list[Operation]:
        """What is under way for a party, oldest first."""
        return list(self._under_way.get(party, {}).values())

    def __iter__(self) -> Iterator[Operation]:
        return iter([operation for of_party in self._under_way.values() for operation in of_party.values()])

    def begin(self, operation: Operation) -> None:
        """One more is under way."""
        self._under_way.setdefault(operation.party, {})[operation.number] = operation

    def end(self, operation: Operation) -> None:
        """It was answered."""
        of_party = self._under_way[operation.party]
        del of_party[operation.number]
        if not of_party:
            del self._under_way[operation.party]
        self._remember((operation.party, operation.number), operation.deadline, operation.answer())

    def bury(self, party: bytes, number: int, deadline: float) -> None:
        """It was cancelled: until its deadline the number starts nothing, whatever is still on its way."""
        self._remember((party, number), deadline, ())

    def over(self, party: bytes, number: int, num_chunks: int) -> tuple[CopyStatus, ...] | None:
        """The answer to a request whose number starts nothing; None: it may start."""
        known = self._over.get((party, number))
        if known is None:
            return None
        return known[1] or (CopyStatus.CANCELLED,) * num_chunks

    def expire(self, now: float) -> None:
        """Forget the numbers whose requests would come too late."""
        for name in self._deadlines.due(now, self._deadline_of):
            del self._over[name]

    def _remember(self, name: Name, deadline: float, answer: tuple[CopyStatus, ...]) -> None:
        if name not in self._over:
            self._over[name] = (deadline, answer)
            self._deadlines.add(name, deadline)

    def _deadline_of(self, name: Name) -> float:
        known = self._over.get(name)
        return GONE if known is None else known[0]
