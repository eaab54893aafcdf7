"""kvgate's side of the race: an engine with both adapters, a client that pings, and the yardsticks.

``python -m benchmarks.peer.ours SETTINGS`` is the process; SETTINGS is JSON, ``kind`` says which of them.
"""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapter import AdapterConfig, CacheIdentity, LoadStoreOp, SchedulerAdapter, State, WorkerAdapter
from benchmarks.echo import EchoClient
from benchmarks.peer.racer import Client, Clients, Racer, Told
from benchmarks.rows.copies import Yardstick
from gateway.client import GatewayClient
from gateway.wire import codec
from gateway.wire.messages import Ping
from tests.engine.lines import serve

LOOKUP_SECONDS = 5.0


class Engine(Racer):
    """Settings beside a racer's: ``run_dir``, ``transfer``, ``heartbeat_seconds``."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self._identity = CacheIdentity(model="race", block_tokens=self.block_tokens, chunk_tokens=self.chunk_tokens)
        config = AdapterConfig(
            engine_name="race", heartbeat_seconds=settings["heartbeat_seconds"], transfer=settings["transfer"]
        )
        run_dir, group = settings["run_dir"], uuid.uuid4().hex
        self._worker = WorkerAdapter(run_dir, self._identity, group, config=config)
        self._worker.register_kv_caches(self.caches, layout="NHD", block_axis=1)
        self._scheduler = SchedulerAdapter(run_dir, self._identity, group, config=config)
        self._scheduler.set_geometry(self._worker.geometry)
        assert self._worker.wait_healthy(30)
        assert self._scheduler.wait_healthy(30)

    def bare_copy(self) -> float:
        """Seconds of ``np.copyto`` of the whole KV cache by one thread."""
        if not hasattr(self, "_yardstick"):
            self._yardstick = Yardstick(self.caches, 1)
        began = time.perf_counter()
        self._yardstick.copy()
        return time.perf_counter() - began

    def lookup(self, request: str, tokens: list[int]) -> int:
        """Waits for the answer."""
        return self._scheduler.lookup(request, tokens, timeout_seconds=LOOKUP_SECONDS)

    def submit(self, request: str, tokens: list[int], start: int, blocks: Sequence[int], *, is_retrieve: bool) -> None:
        """Keys come from the scheduler half, which has hashed what it looked up."""
        keys = self._scheduler.chunk_keys(request, tokens)[start // self.chunk_tokens :]
        op = LoadStoreOp(keys, blocks, start=start)
        begin = self._worker.submit_retrieve_request if is_retrieve else self._worker.submit_store_request
        begin(request, op)

    def finished(self, request: str, *, is_retrieve: bool) -> bool:
        """As an engine asks each step."""
        sending, receiving = self._worker.get_finished(() if is_retrieve else (request,))
        return request in (receiving if is_retrieve else sending)

    def load_errors(self) -> set[int]:
        """Of the worker half."""
        return self._worker.get_block_ids_with_load_errors()

    def end(self, request: str, tokens: list[int], held: int) -> None:  # noqa: ARG002 - the session knows
        """Gives back the lease."""
        self._scheduler.end_session(request)

    def is_healthy(self) -> bool:
        """Of the worker half."""
        return self._worker.state is State.HEALTHY


class Pinger(Client):
    """Sends PING. Setting: ``socket``."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._client = GatewayClient(settings["socket"])
        self._client.hello()

    def ping(self) -> None:
        """To the gateway."""
        self._client.request(Ping(number=0))


class Bare(Client):
    """Sends as many bytes to an echo. Setting: ``echo``."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._client = EchoClient(Path(settings["echo"]))
        self._payload = codec.encode(Ping(number=1, boot=bytes(16)))

    def ping(self) -> None:
        """To the echo."""
        self._client.ask(self._payload)


def make(settings: dict[str, Any]) -> Told:
    """What ``kind`` says: an engine, or ``num_clients`` clients of the gateway or of the echo."""
    if settings["kind"] == "engine":
        return Engine(settings)
    client = Bare if settings["kind"] == "echo" else Pinger
    return Clients(settings["num_clients"], lambda: client(settings))


if __name__ == "__main__":
    serve(make)
