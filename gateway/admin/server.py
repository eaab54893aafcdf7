"""The admin process: listeners, links and watchdog put together.

Owns: the order of start and stop, and ``admin.json``, which tells where the API listens. Must not know: routes. Runs on
the process's main thread.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from gateway.admin.app import control_app, probe_app
from gateway.admin.arrival import ImpatientProtocol
from gateway.admin.auth import Access
from gateway.admin.core import CoreClient
from gateway.admin.events import Feed
from gateway.admin.watchdog import Watchdog
from gateway.config import parse_address
from gateway.listener import listen

log = logging.getLogger("kvgate.admin")

ADMIN_FILE = "admin.json"
_PARENT_POLL_SECONDS = 0.2
_GRACE_SECONDS = 2  # for requests under way when we stop
_DEAF_PEER_MILLISECONDS = 10_000


@dataclass(frozen=True)
class AdminSettings:
    """What one admin process serves.

    Attributes:
        run_dir: where ``gateway.sock`` is.
        admin_dir: where ``admin.sock`` is and ``admin.json`` goes.
        address: HOST:PORT of the control listener.
        access: its rule.
        probe: HOST:PORT of the probe listener; empty: none.
        core_pid: our parent, the core: we end when it does, and the watchdog may kill it. None: we were started alone.
        watchdog_seconds: 0: no watchdog.
    """

    run_dir: Path
    admin_dir: Path
    address: str
    access: Access
    probe: str = ""
    core_pid: int | None = None
    watchdog_seconds: float = 0.0


async def serve(settings: AdminSettings) -> None:
    """Serve until a signal comes or the parent is gone.

    Raises:
        ListenError: a listener's address cannot be taken.
    """
    admin_socket = settings.admin_dir / "admin.sock"
    engine_socket = settings.run_dir / "gateway.sock"
    with contextlib.ExitStack() as stack:
        control = stack.enter_context(_listen("admin", settings.address))
        probe = stack.enter_context(_listen("probe", settings.probe)) if settings.probe else None
        async with (
            CoreClient(admin_socket=admin_socket, engine_socket=engine_socket) as core,
            Feed(core).running() as feed,
        ):
            servers = {_server(control_app(core, feed, settings.access, settings.core_pid)): control}
            if probe is not None:
                servers[_server(probe_app(core, settings.core_pid))] = probe
            stopping = asyncio.Event()
            _stop_on_signals(stopping)
            stack.enter_context(_watching(settings, admin_socket))
            stack.enter_context(_announced(settings.admin_dir / ADMIN_FILE, settings.address, control))
            serving = [asyncio.create_task(server.serve([listener])) for server, listener in servers.items()]
            await _until_stopped_or_orphaned(stopping, settings.core_pid)
            core.close()  # who waits for the end of a drain is answered, not cut off
            await feed.close()  # and who watches is at the end of the stream
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*serving)


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers: this process has two servers and one way to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _server(app: ASGIApp) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            http=ImpatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # the audit log names the peer the kernel sees
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )


def _listen(name: str, address: str) -> socket.socket:
    listener = listen(name, address)
    # Accepted connections inherit it: an answer's head and body are two writes, and must not wait for each other's ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The same: a peer that takes nothing of what is sent to it is gone after so long, and what the kernel holds for it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAF_PEER_MILLISECONDS)
    return listener


def _stop_on_signals(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)


async def _until_stopped_or_orphaned(stopping: asyncio.Event, core_pid: int | None) -> None:
    while core_pid is None or os.getppid() == core_pid:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _PARENT_POLL_SECONDS)
            return
    log.warning("core_gone", extra={"facts": {"core_pid": core_pid}})


@contextlib.contextmanager
def _watching(settings: AdminSettings, admin_socket: Path) -> Iterator[None]:
    if settings.core_pid is None or not settings.watchdog_seconds:
        yield
        return
    watchdog = Watchdog(admin_socket, settings.core_pid, settings.watchdog_seconds)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()


@contextlib.contextmanager
def _announced(path: Path, address: str, listener: socket.socket) -> Iterator[None]:
    """Tell where the API listens, in a file that is there whole or not at all, for as long as we serve."""
    host, _ = parse_address("admin", address)
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    shown = f"[{reachable}]" if ":" in reachable else reachable
    url = f"http://{shown}:{listener.getsockname()[1]}"
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    text = json.dumps({"url": url, "pid": os.getpid()}) + "\n"
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o600)
    fresh.replace(path)
    log.info("admin_listening", extra={"facts": {"url": url}})
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            if path.read_text(encoding="utf-8") == text:  # another admin process may have come since
                path.unlink()
