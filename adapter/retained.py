"""The events that unsettled operations retain.

An engine records a device event and hands it to a store or retrieve; the daemon, or our own copier, waits on it later.
Were the event object collected meanwhile, its handle would no longer open. So the ledger keeps a reference from submit
until the operation is settled. One event may be shared by several operations: it is kept until the last of them. Pure.
"""

from adapter.operation import IpcEvent


class RetainedEvents:
    """Distinct events by identity, each with the number of operations that hold it."""

    def __init__(self) -> None:
        self._holders: dict[int, tuple[IpcEvent, int]] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def retain(self, event: IpcEvent) -> None:
        """One more operation holds the event."""
        _, holders = self._holders.get(id(event), (event, 0))
        self._holders[id(event)] = (event, holders + 1)

    def release(self, event: IpcEvent) -> bool:
        """One operation fewer holds it; True: that was the last, and it is no longer referenced here."""
        _, holders = self._holders.pop(id(event))
        if holders > 1:
            self._holders[id(event)] = (event, holders - 1)
        return holders == 1

    def holders(self) -> dict[int, int]:
        """Operations an event, by the event's identity."""
        return {key: count for key, (_, count) in self._holders.items()}
