"""The admin server of one worker half: a thread with an event loop of its own.

Owns: its start and its end. Must not know: routes, what the adapter does. Made and closed on the engine's thread, which
never serves a request; ``_run`` is the server's thread.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from adapter.admin.address import Address, resolve
from adapter.admin.core import Adapter, AdapterCore
from adapter.admin.listener import Listener
from adapter.log import EngineLog

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

CLOSE_SECONDS = 2.0
_GRACE_SECONDS = 1  # for requests under way when it closes


class AdminServer:
    """Serves one adapter from ``start`` to ``close``."""

    def __init__(self, listener: Listener, server: uvicorn.Server, core: AdapterCore, log: EngineLog) -> None:
        self._listener = listener
        self._server = server
        self._core = core
        self._log = log
        self._thread = threading.Thread(target=self._run, name="kvgate-admin", daemon=True)

    @classmethod
    def open(
        cls,
        admin: str,
        token_file: str | None,
        *,
        adapter: Adapter,
        party: bytes,
        registry: CollectorRegistry,
        log: EngineLog,
    ) -> AdminServer:
        """Take the address; nothing is served yet. Imports the web framework, which takes a moment.

        Args:
            admin: ``"unix"`` or HOST:PORT.
            token_file: a file with the bearer token; None: ``KVGATE_ADMIN_TOKEN``, or no token.
            adapter: whom it serves.
            party: the adapter's id, which names its Unix socket.
            registry: what /metrics shows.
            log: where it says where it is.

        Raises:
            ValueError: others could reach the address and there is no token, or the token cannot be read.
            RuntimeError: the web framework is not installed.
            OSError: the address cannot be taken.
        """
        address = resolve(admin, token_file)
        core = AdapterCore(adapter, log)
        app = _app(core, registry, address)
        return cls(Listener.open(address, party), _server(app), core, log)

    @property
    def url(self) -> str:
        """``http://HOST:PORT`` with the port taken, or ``unix:PATH``."""
        return self._listener.url

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()
        self._log.info("admin_listening", url=self.url)

    def close(self) -> None:
        """Answer who waits, end the thread. Harmless when repeated."""
        self._core.close()
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        self._listener.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._listener.socket]))
        except Exception:  # noqa: BLE001 - the engine's life does not depend on it
            self._log.exception("admin_ended")
        finally:
            self._listener.close()


def _app(core: AdapterCore, registry: CollectorRegistry, address: Address) -> ASGIApp:
    try:
        from adapter.admin.app import admin_app  # noqa: PLC0415 - only who asked for a server pays for it
        from gateway.admin.auth import Access  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise RuntimeError(f"admin needs the extra kvgate[admin]: {error}") from error
    return admin_app(core, registry, Access(token=address.token, is_loopback=address.is_loopback))


def _server(app: ASGIApp) -> uvicorn.Server:
    import uvicorn  # noqa: PLC0415 - as above

    from gateway.admin.arrival import ImpatientProtocol  # noqa: PLC0415 - as above

    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        proxy_headers=False,  # the audit log names the peer the kernel sees
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    # Not as an argument: that would silence the access log of a server that the engine itself may have.
    config.access_log = False
    return uvicorn.Server(config)
