"""The adapter where the gateway's admin routes expect the gateway's core.

Owns: which call of the adapter a route's message becomes, and its line in the audit log. Must not know: HTTP. Runs on
the admin server's event loop: a call takes the adapter's lock for microseconds.
"""

import logging
import os
from typing import Protocol

from adapter.admin.report import Report, to_snapshot
from gateway.client import GatewayRefused, GatewayUnreachable
from gateway.wire.codes import ErrorCode, Lifecycle
from gateway.wire.messages import AnyReply, Done, Drain, Drained, Error, Request, Resume, SnapshotReply

audit = logging.getLogger("kvgate.audit")


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

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
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
        """Drain or resume.

        Raises:
            GatewayRefused: it asks for what an adapter cannot do, or the adapter is closed. Nothing has changed.
        """
        before = self.report().lifecycle
        if before is Lifecycle.STOPPED:
            raise _refused(ErrorCode.STOPPING, "this adapter is closed")
        match message:
            case Drain(exit=True):
                raise _refused(ErrorCode.INVALID, "exit is true, and an adapter does not end its engine: stop that")
            case Drain():
                self._adapter.drain(message.reason, message.deadline_seconds, requested_by=message.requested_by)
                after = self.report()
                self._record("drain", message, before, after.lifecycle)
                return Drained(number=0, boot=b"", already=before is Lifecycle.DRAINED, drain=after.drain)
            case Resume():
                self._adapter.resume()
                self._record("resume", message, before, self.report().lifecycle)
                return Done(number=0, boot=b"")
            case _:
                raise _refused(ErrorCode.UNSUPPORTED, f"an adapter does not serve {type(message).__name__}")

    @staticmethod
    def _record(action: str, message: Drain | Resume, before: Lifecycle, after: Lifecycle) -> None:
        who, peer, reason = message.requested_by, message.peer or "unix socket", message.reason
        audit.info("%s of this adapter by %s from %s: %s, now %s (%s)", action, who, peer, before, after, reason)


def _refused(code: ErrorCode, reason: str) -> GatewayRefused:
    return GatewayRefused(Error(number=0, boot=b"", code=code, message=reason))
