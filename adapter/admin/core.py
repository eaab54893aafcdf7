"""The adapter where the gateway's admin routes expect the gateway's core.

Owns: which call of the adapter a route's message becomes, and its line in the audit log. Must not know: HTTP. Runs on
the admin server's event loop: a call takes the adapter's lock for microseconds.
"""

import os
from typing import Protocol

from adapter.admin.report import Report, to_snapshot
from adapter.log import EngineLog
from gateway.client import GatewayRefused, GatewayUnreachable
from gateway.wire.codes import ErrorCode, Lifecycle
from gateway.wire.messages import AnyReply, Done, Drain, Drained, Error, Request, Resume, SnapshotReply


class Adapter(Protocol):
    """The worker half, as its admin server uses it. Any thread."""

    def report(self) -> Report:
        """What it is now, read in one step."""
        ...

    def drain(self, reason: str, deadline_seconds: float | None = None, *, requested_by: str) -> None:
        """Take no new work until ``resume``."""
        ...

    def resume(self) -> None:
        """End the drain."""
        ...


class AdapterCore:
    """Answers the routes' messages from the adapter itself, whatever the gateway does."""

    def __init__(self, adapter: Adapter, log: EngineLog) -> None:
        self._adapter = adapter
        self._log = log
        self._is_closed = False

    def report(self) -> Report:
        """The adapter now.

        Raises:
            GatewayUnreachable: the server is closing: who waits is told so.
        """
        if self._is_closed:
            raise GatewayUnreachable("this adapter is closing")
        return self._adapter.report()

    def close(self) -> None:
        """Answer nothing more."""
        self._is_closed = True

    async def snapshot(self, *, transfers: bool = False, max_transfers: int = 0) -> SnapshotReply:  # noqa: ARG002 - they cost nothing here
        """What is, now."""
        return to_snapshot(self.report(), os.getpid())

    async def change(self, message: Request) -> AnyReply:
        """Drain or resume, and write it down, whether it was done or refused.

        Raises:
            GatewayRefused: it asks for what an adapter cannot do, or the adapter is closed. Nothing has changed.
        """
        before = self.report().lifecycle
        try:
            reply = self._change(message, before)
        except GatewayRefused as refused:
            self._record(message, before, "refused", code=str(refused.code))
            raise
        self._record(message, before, "ok")
        return reply

    def _change(self, message: Request, before: Lifecycle) -> AnyReply:
        if before is Lifecycle.STOPPED:
            raise _refused(ErrorCode.STOPPING, "this adapter is closed")
        match message:
            case Drain(exit=True):
                raise _refused(ErrorCode.INVALID, "exit is true, and an adapter does not end its engine: stop that")
            case Drain():
                self._adapter.drain(message.reason, message.deadline_seconds, requested_by=message.requested_by)
                drain = self.report().drain
                return Drained(number=0, boot=b"", already=before is Lifecycle.DRAINED, drain=drain)
            case Resume():
                self._adapter.resume()
                return Done(number=0, boot=b"")
            case _:
                raise _refused(ErrorCode.UNSUPPORTED, f"an adapter does not serve {type(message).__name__}")

    def _record(self, message: Request, before: Lifecycle, result: str, code: str = "") -> None:
        if not isinstance(message, Drain | Resume):
            return  # no route asks for anything else
        why = {name: fact for name, fact in {"reason": message.reason, "code": code}.items() if fact}
        self._log.audit(
            who=message.requested_by,
            peer=message.peer or "unix socket",
            action="drain" if isinstance(message, Drain) else "resume",
            before=before,
            after=self.report().lifecycle,
            result=result,
            **why,
        )


def _refused(code: ErrorCode, reason: str) -> GatewayRefused:
    return GatewayRefused(Error(number=0, boot=b"", code=code, message=reason))
