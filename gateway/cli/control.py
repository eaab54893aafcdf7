"""How a command reaches a gateway: by its admin socket, or by its admin API.

Owns: what can be asked, the errors of asking, and the way over the wire. Must not know: how answers are shown. Runs on
the main thread. Both ways give the same documents.
"""

import contextlib
import getpass
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gateway import __version__
from gateway.admin import views
from gateway.admin.overview import MAX_TRANSFERS, Overview, overview_of
from gateway.client import GatewayClient, GatewayRefused, GatewayUnreachable
from gateway.lock import LockObserver, daemon_offset
from gateway.run_dir import POOL
from gateway.wire import messages
from gateway.wire.codes import Lifecycle, SwitchMode, SwitchScope

_POLL_SECONDS = 0.1


class ControlError(Exception):
    """A command cannot be done. ``exit_code`` is the process's; ``next_step`` is what helps, where that is known."""

    exit_code = 1
    next_step = ""


class Refused(ControlError):  # noqa: N818 - reads as what happened
    """The gateway said no; nothing has changed."""


class Unreachable(ControlError):  # noqa: N818 - reads as what happened
    """Nobody answered. Whether a change was made is unknown."""

    exit_code = 4

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


class Control(Protocol):
    """One gateway, as commands see it. Every method may raise ``ControlError``."""

    #: The directory shared with engines, where this command may work without the gateway; None: it may not.
    run_dir: Path | None

    def state(self) -> views.GatewayState:
        """The gateway now."""
        ...

    def overview(self) -> Overview:
        """The gateway now, with a verdict, engines worst first, and operations."""
        ...

    def last_drain(self, wait_seconds: float) -> views.Drain | None:
        """The last drain; waits while it is under way, so long at most."""
        ...

    def drain(self, body: views.DrainBody) -> views.Drain:
        """Begin or join a drain."""
        ...

    def resume(self, reason: str) -> views.GatewayState:
        """Take new work again."""
        ...

    def engines(self) -> views.Engines:
        """All engines."""
        ...

    def engine(self, name: str) -> views.Engine:
        """One engine."""
        ...

    def drain_engine(self, name: str, body: views.EngineDrainBody) -> views.Engine:
        """Begin or join the drain of one engine."""
        ...

    def resume_engine(self, name: str, reason: str) -> views.Engine:
        """Take new work from one engine again."""
        ...

    def transfers(self, engine: str | None, request: str | None, state: views.TransferState | None) -> views.Transfers:
        """Operations that fit the filters."""
        ...

    def clear(self, body: views.ClearBody) -> views.ClearResult:
        """Forget chunks."""
        ...

    def switch(self, scope: SwitchScope, name: str, mode: SwitchMode | None, reason: str) -> views.Switches:
        """Set a switch for good; None takes it away."""
        ...

    def is_gone(self) -> bool:
        """Whether it has ended, as far as can be seen from here; False while somebody listens, however silent.

        Never raises.
        """
        ...

    def close(self) -> None:
        """End the connection."""
        ...


def requested_by() -> str:
    """Who asks, for the audit log: the user's name, or the number where the user has none."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user} (kvgate)"


class WireControl:
    """A gateway by its admin socket."""

    def __init__(self, admin_dir: Path, timeout_seconds: float, run_dir: Path | None = None) -> None:
        self.run_dir = run_dir
        self._path = admin_dir / "admin.sock"
        self._client = GatewayClient(self._path, timeout_seconds=timeout_seconds, software=f"kvgate-cli/{__version__}")
        self._peer = f"pid {os.getpid()}"
        self._timeout_seconds = timeout_seconds
        self._lock: LockObserver | None = None  # of the pool, once the gateway is asked to end

    def close(self) -> None:
        """End the connection."""
        self._client.close()
        if self._lock is not None:
            self._lock.close()

    def is_gone(self) -> bool:
        """Whether nobody listens any more, and its lock on the pool is free: its process has let everything go."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self._path))
            except (FileNotFoundError, ConnectionRefusedError):
                return self._lock is None or not self._lock.is_held(daemon_offset())
            except OSError:
                return False
        return False

    def state(self) -> views.GatewayState:
        """The gateway now."""
        return views.state_of(self._snapshot())

    def overview(self) -> Overview:
        """The gateway now, with a verdict, engines worst first, and operations."""
        return overview_of(self._snapshot(transfers=True, max_transfers=MAX_TRANSFERS), time.time())

    def last_drain(self, wait_seconds: float) -> views.Drain | None:
        """The last drain; waits while it is under way, so long at most."""
        give_up = time.monotonic() + wait_seconds
        while True:
            found = self._snapshot().drain
            left = give_up - time.monotonic()
            if found is None or found.state is not Lifecycle.DRAINING or left <= 0:
                return views.drain_of(found)
            time.sleep(min(_POLL_SECONDS, left))

    def drain(self, body: views.DrainBody) -> views.Drain:
        """Begin or join a drain."""
        if body.exit:
            self._watch_lock()
        reply = self._ask(
            messages.Drain(
                number=0,
                requested_by=requested_by(),
                peer=self._peer,
                deadline_seconds=body.deadline_seconds,
                reason=body.reason,
                flush=body.flush,
                exit=body.exit,
            )
        )
        if not isinstance(reply, messages.Drained) or reply.drain is None:
            raise _unexpected(reply)
        return views.Drain.model_validate(reply.drain)

    def resume(self, reason: str) -> views.GatewayState:
        """Take new work again."""
        self._ask(messages.Resume(number=0, requested_by=requested_by(), peer=self._peer, reason=reason))
        return self.state()

    def engines(self) -> views.Engines:
        """All engines."""
        return views.engines_of(self._snapshot())

    def engine(self, name: str) -> views.Engine:
        """One engine."""
        return self._find(views.find_engine, name)

    def drain_engine(self, name: str, body: views.EngineDrainBody) -> views.Engine:
        """Begin or join the drain of one engine."""
        self._find(views.find_engine_here, name)
        self._ask(
            messages.Drain(
                number=0,
                requested_by=requested_by(),
                peer=self._peer,
                engine=name,
                deadline_seconds=body.deadline_seconds,
                reason=body.reason,
            )
        )
        return self.engine(name)

    def resume_engine(self, name: str, reason: str) -> views.Engine:
        """Take new work from one engine again."""
        self._find(views.find_engine_here, name)
        self._ask(messages.Resume(number=0, requested_by=requested_by(), peer=self._peer, engine=name, reason=reason))
        return self.engine(name)

    def transfers(self, engine: str | None, request: str | None, state: views.TransferState | None) -> views.Transfers:
        """Operations that fit the filters."""
        return views.transfers_of(self._snapshot(transfers=True), engine, request, state)

    def clear(self, body: views.ClearBody) -> views.ClearResult:
        """Forget chunks."""
        reply = self._ask(
            messages.Clear(
                number=0,
                requested_by=requested_by(),
                peer=self._peer,
                model=body.model,
                namespace=body.namespace,
                all=body.all,
                reason=body.reason,
                dry_run=body.dry_run,
            )
        )
        if not isinstance(reply, messages.Cleared):
            raise _unexpected(reply)
        return views.clear_result_of(reply, dry_run=body.dry_run)

    def switch(self, scope: SwitchScope, name: str, mode: SwitchMode | None, reason: str) -> views.Switches:
        """Set a switch for good; None takes it away."""
        self._ask(
            messages.Switch(
                number=0,
                # Read later, by a gateway that was hung, it must not undo what was asked for meanwhile.
                deadline=time.monotonic() + self._timeout_seconds,
                requested_by=requested_by(),
                peer=self._peer,
                scope=scope,
                name=name,
                mode=mode,
                reason=reason,
            )
        )
        return views.switches_of(self._snapshot())

    def _snapshot(self, *, transfers: bool = False, max_transfers: int = 0) -> messages.SnapshotReply:
        reply = self._ask(messages.SnapshotRequest(number=0, transfers=transfers, max_transfers=max_transfers))
        if not isinstance(reply, messages.SnapshotReply):
            raise _unexpected(reply)
        return reply

    def _find(self, find: Callable[[messages.SnapshotReply, str], views.Engine], name: str) -> views.Engine:
        try:
            return find(self._snapshot(), name)
        except views.NoSuchEngineError as error:
            raise Refused(str(error)) from None

    def _watch_lock(self) -> None:
        """Keep an eye on the daemon's lock, on the very file it holds now: it may be removed before the lock is free.

        Where the pool cannot be seen from here, in another container, the sockets alone tell.
        """
        if self._lock is None:
            with contextlib.suppress(OSError):
                self._lock = LockObserver.open(Path(self._snapshot().run_dir) / POOL)

    def _ask(self, message: messages.Request) -> messages.AnyReply:
        try:
            return self._client.request(message)
        except GatewayUnreachable as error:
            raise Unreachable(str(error), next_step="kvgate doctor tells more") from None
        except GatewayRefused as refusal:
            raise Refused(refusal.error.message) from None


def _unexpected(reply: messages.Reply) -> Refused:
    return Refused(f"the gateway answered with {type(reply).__name__}")
