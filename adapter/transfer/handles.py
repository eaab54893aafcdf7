"""Handle mode's messenger: what its ledger asks for becomes STORE, RETRIEVE and CANCEL, and their answers its steps.

Owns: the events of answers that are waited for. Must not know: what an operation goes through (``HandleLedger``). Runs
as ``Transfers`` does: actions and replies on the link thread, events' ends on the event thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from adapter.actions import Action, AskCopy, DropEvent, TellCancel
from adapter.handle_ledger import GRACE_SECONDS, HandleLedger
from adapter.link import REPLY_SECONDS, Link
from adapter.log import EngineLog
from adapter.transfer.memory import Memory
from adapter.transfer.transfers import Transfers, reason_of
from gateway.device.base import DeviceError
from gateway.wire.codes import CopyStatus, ErrorCode, OperationKind, Reason
from gateway.wire.messages import Cancel, Copied, Done, Error, ReleaseEvent, Reply, Retrieve, Store

#: A request that ends for one of these was never sent.
_NEVER_SENT = (Reason.ENCODE_ERROR, Reason.SEND_ERROR)


class HandleTransfers(Transfers):
    """Drives one ``HandleLedger``.

    Args:
        keeps_events: False: an event's object is dropped once its handle is made, as the field's fault does. A seam for
            tests, not a setting.
    """

    def __init__(
        self,
        ledger: HandleLedger,
        link: Link,
        memory: Memory,
        log: EngineLog,
        *,
        keeps_events: bool = True,
    ) -> None:
        super().__init__(ledger, link, memory, 1, log)
        self._handles = ledger
        self._keeps_events = keeps_events
        self._ending: dict[int, tuple[CopyStatus, ...]] = {}  #: answers whose event is waited for

    def gateway_died(self, now: float) -> None:
        """The gateway is proven dead. The link's lock is held."""
        self.dispatch(self._handles.gateway_died(now, self._memory.settle_seconds))

    def table_sizes(self) -> dict[str, int]:
        """Entries by table. The link's lock is held."""
        return {**super().table_sizes(), "awaited_answers": len(self._ending)}

    def _perform_one(self, action: Action) -> None:
        match action:
            case AskCopy():
                self._ask_copy(action)
            case TellCancel(number, deadline):
                cancel = Cancel(number=0, party=self._link.party, operation=number, deadline=deadline)
                self._link.ask(cancel, time.monotonic() + REPLY_SECONDS, partial(self._acknowledged, number))
            case _:
                super()._perform_one(action)

    def _ask_copy(self, ask: AskCopy) -> None:
        try:
            handle = b"" if ask.event is None else ask.event.ipc_handle()
        except Exception:  # noqa: BLE001 - whatever the caller's event raises, its operation ends for it
            self._step(lambda now: self._handles.refused(ask.number, Reason.EVENT_ERROR, now))
            return
        if not self._keeps_events:
            self._step(lambda _: self._drop(ask.number))
        blocks = np.asarray(ask.block_ids, "<u4").tobytes()
        party, number = self._link.party, ask.number
        message: Store | Retrieve
        if ask.kind is OperationKind.STORE:
            message = Store(
                number=0,
                deadline=ask.deadline,
                party=party,
                operation=number,
                keys=ask.keys,
                blocks=blocks,
                event=handle,
                cell=ask.cell,
                depth=ask.depth,
                parent=ask.parent,
            )
        else:
            message = Retrieve(
                number=0,
                deadline=ask.deadline,
                party=party,
                operation=number,
                keys=ask.keys,
                blocks=blocks,
                event=handle,
                skip_blocks=ask.skip_blocks,
            )
        self._link.ask(message, ask.deadline + GRACE_SECONDS, partial(self._copied, number))

    # -- replies: on the link thread -----------------------------------------------------------------------------------

    def _copied(self, number: int, reply: Reply | Reason) -> None:
        match reply:
            case Copied(event=b""):
                self._step(lambda now: self._handles.answered(number, reply.results, now))
            case Copied():
                self._wait_for(number, reply)
            case Error() if reply.code is not ErrorCode.INTERNAL:  # it was not done, and changed nothing
                self._step(lambda now: self._handles.refused(number, reason_of(reply), now))
            case Reason() if reply in _NEVER_SENT:
                self._step(lambda now: self._handles.refused(number, reply, now))
            case _:
                self._step(lambda now: self._handles.unanswered(number, reason_of(reply), now))

    def _acknowledged(self, number: int, reply: Reply | Reason) -> None:
        if isinstance(reply, Done):  # else it is told again
            self._step(lambda now: self._handles.acknowledged(number, now))

    # -- events of answers ---------------------------------------------------------------------------------------------

    def _wait_for(self, number: int, reply: Copied) -> None:
        """The gateway has recorded an event behind its last copy: with it the blocks are filled for our device too."""
        try:
            event = self._memory.open_event(reply.event)
            has_fired = event.query()
        except (DeviceError, RuntimeError, OSError):
            self._ended(number, tuple(CopyStatus.EVENT_ERROR for _ in reply.results))
            return
        if has_fired:
            self._ended(number, reply.results)
        else:
            self._ending[number] = reply.results
            self._events.watch(number, event)

    def _event_ended(self, numbers: Sequence[int], has_fired: bool) -> None:
        for number in numbers:
            results = self._ending.pop(number)
            ended = results if has_fired else tuple(CopyStatus.EVENT_ERROR for _ in results)
            self._link.post(partial(self._ended, number, ended))

    def _ended(self, number: int, results: Sequence[CopyStatus]) -> None:
        self._link.tell(ReleaseEvent(number=0, party=self._link.party, operation=number))
        self._step(lambda now: self._handles.answered(number, results, now))

    def _drop(self, number: int) -> list[Action]:
        event = self._handles.drop_event(number)
        return [] if event is None else [DropEvent(event)]
