"""Both sides of the race: their daemons with pools of one size, and engines over the same tensors.

Owns: how each is started, and which settings make the two equal. Must not know: what is measured.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from benchmarks.engine import BLOCK_SHAPE, BLOCKS_PER_CHUNK, CHUNK_TOKENS, LAYERS, PROMPT_CHUNKS
from benchmarks.gateway import gateway
from benchmarks.peer.server import SHM, Server
from benchmarks.peer.told import PEER_ENVIRONMENT, PEER_PYTHON, Told

#: A block more than the prompt has: block 0 is not used.
GEOMETRY = {
    "layers": LAYERS,
    "num_blocks": PROMPT_CHUNKS * BLOCKS_PER_CHUNK + 1,
    "block_shape": BLOCK_SHAPE,
    "chunk_tokens": CHUNK_TOKENS,
}
PROMPT_TOKENS = PROMPT_CHUNKS * CHUNK_TOKENS
#: Of both engines: kvgate's default; LMCache's is 10.
HEARTBEAT_SECONDS = 1.0
#: After which LMCache's engine gives a request up (``mq_timeout``); with its default, 300 s, the race would take hours.
TIMEOUT_SECONDS = 5.0
READY_SECONDS = 120.0


class Process(Protocol):
    """A daemon, as the race treats it."""

    @property
    def pid(self) -> int:
        """Of its first process."""

    def start(self) -> object:
        """Until it serves."""

    def kill(self) -> None:
        """SIGKILL."""

    def pause(self) -> None:
        """SIGSTOP."""

    def go_on(self) -> None:
        """SIGCONT."""


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        is_ours: kvgate's.
        daemon: its daemon.
        pool: the pool's file.
        engine: makes an engine that transfers so; it is ready when it has been heard once.
        clients: makes so many clients that ping.
    """

    is_ours: bool
    daemon: Process
    pool: Callable[[], Path | None]
    engine: Callable[[str], Told]
    clients: Callable[[int], Told]


class Sides:
    """Both daemons, not started yet; leaving ends them and removes what they shared.

    Args:
        pool_gib: the pool's size on each side.
    """

    def __init__(self, pool_gib: float) -> None:
        self._stack = ExitStack()
        self._gateway = gateway(f"{int(1024 * pool_gib)}MiB")
        self._server = Server(f"kvgate-race-{os.getpid()}", pool_gib)
        self._peer_engines: list[Told] = []
        self.base = self._gateway.base
        self.ours = Side(
            is_ours=True,
            daemon=self._gateway,
            pool=lambda: self._gateway.pool if self._gateway.pool.exists() else None,
            engine=self._our_engine,
            clients=lambda num: _ours({"kind": "clients", "num_clients": num, "socket": str(self._gateway.socket)}),
        )
        self.peer = Side(
            is_ours=False,
            daemon=self._server,
            pool=lambda: next(iter(self._server.shared_files()), None),
            engine=self._peer_engine,
            clients=lambda num: _theirs({"kind": "clients", "num_clients": num, "url": self._server.url}),
        )

    def in_turn(self, lap: int) -> tuple[Side, Side]:
        """Both, each first in every second lap."""
        return (self.peer, self.ours) if lap % 2 else (self.ours, self.peer)

    def peer_files(self) -> list[Path]:
        """What LMCache has in shared memory: the server's pool, and KV caches, named after their engine's pid."""
        caches = [path for engine in self._peer_engines for path in SHM.glob(f"lmcache_kv_{engine.pid}_*")]
        return [*self._server.shared_files(), *caches]

    def __enter__(self) -> Self:
        self._stack.enter_context(self._gateway)
        self._stack.enter_context(self._server)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for path in self.peer_files():
            path.unlink()

    def _our_engine(self, transfer: str) -> Told:
        own = {"run_dir": str(self._gateway.run_dir), "transfer": transfer, "heartbeat_seconds": HEARTBEAT_SECONDS}
        return _ours({"kind": "engine", **GEOMETRY, **own})

    def _peer_engine(self, transfer: str) -> Told:
        own = {
            "url": self._server.url,
            "transfer": transfer,
            "heartbeat_seconds": HEARTBEAT_SECONDS,
            "timeout_seconds": TIMEOUT_SECONDS,
        }
        engine = _theirs({"kind": "engine", **GEOMETRY, **own})
        self._peer_engines.append(engine)
        return engine


class Engines:
    """An engine of each side, by side; leaving ends them.

    Args:
        sides: whose.
        ours: how kvgate's transfers.
        peer: how LMCache's does.
    """

    def __init__(self, sides: Sides, *, ours: str, peer: str) -> None:
        self._stack = ExitStack()
        self._made = ((sides.ours, ours), (sides.peer, peer))
        self._of: dict[bool, Told] = {}

    def __getitem__(self, side: Side) -> Told:
        return self._of[side.is_ours]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for side, transfer in self._made:
                self._of[side.is_ours] = stack.enter_context(side.engine(transfer))
            for engine in self._of.values():
                engine.hear(READY_SECONDS)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def echo_clients(num_clients: int, echo: Path) -> Told:
    """So many clients of an echo."""
    return _ours({"kind": "echo", "num_clients": num_clients, "echo": str(echo)})


def _ours(settings: dict[str, Any]) -> Told:
    return Told("benchmarks.peer.ours", settings)


def _theirs(settings: dict[str, Any]) -> Told:
    return Told("benchmarks.peer.theirs", settings, python=PEER_PYTHON, environment=PEER_ENVIRONMENT)
