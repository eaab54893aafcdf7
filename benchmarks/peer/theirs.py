"""LMCache's side of the race: its multi-process adapters as they are, driven as its connector drives them.

``python -m benchmarks.peer.theirs SETTINGS`` is the process, in the environment that ``scripts/setup-peer`` makes;
SETTINGS is JSON, ``kind`` says whether it is an engine or a client that pings. Nothing is tuned: settings that are not
named here are LMCache's defaults.
"""

import time
from collections.abc import Sequence
from typing import Any

import zmq
from lmcache.integration.vllm.vllm_multi_process_adapter import (
    LMCacheMPSchedulerAdapter,
    LMCacheMPWorkerAdapter,
    LoadStoreOp,
    ParallelStrategy,
)
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

from benchmarks.peer.racer import Client, Clients, Racer, Told
from tests.engine.lines import serve

#: Between two looks at a lookup's answer: looking all the time would keep its own thread from reading it.
LOOK_SECONDS = 0.0001
LOOKUP_SECONDS = 30.0


class Engine(Racer):
    """Settings beside a racer's: ``url``, ``transfer``, ``heartbeat_seconds``, ``timeout_seconds``."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        context = zmq.Context()
        strategy = ParallelStrategy(
            mla_only=False, vllm_world_size=1, vllm_worker_id=0, tp_size=1, pp_size=1, n_servers=1
        )
        extra = {
            "lmcache.mp.mp_transfer_mode": settings["transfer"],
            "lmcache.mp.heartbeat_interval": settings["heartbeat_seconds"],
            "lmcache.mp.mq_timeout": settings["timeout_seconds"],
        }
        url = settings["url"]
        self._worker = LMCacheMPWorkerAdapter(url, context, "race", self.block_tokens, strategy, extra_config=extra)
        self._scheduler = LMCacheMPSchedulerAdapter(
            [url], context, "race", self.block_tokens, strategy, extra_config=extra
        )
        assert self._worker.lmcache_tokens_per_chunk == self.chunk_tokens
        self._worker.register_kv_caches(self.caches, layout_hints={"kv_layout": "NHD"})

    def lookup(self, request: str, tokens: list[int]) -> int:
        """Looks for the answer until it is there."""
        self._scheduler.maybe_submit_lookup_request(request, tokens)
        deadline = time.monotonic() + LOOKUP_SECONDS
        while (found := self._scheduler.check_lookup_result(request)) is None:
            assert time.monotonic() < deadline, "no answer to a lookup"
            time.sleep(LOOK_SECONDS)
        return int(found)

    def submit(self, request: str, tokens: list[int], start: int, blocks: Sequence[int], *, is_retrieve: bool) -> None:
        """With the event that its connector would record."""
        op = LoadStoreOp(token_ids=tokens, block_ids=[list(blocks)], start=start, end=len(tokens))
        event = self._worker.create_recorded_event()
        begin = self._worker.submit_retrieve_request if is_retrieve else self._worker.submit_store_request
        begin(request, op, event)

    def finished(self, request: str, *, is_retrieve: bool) -> bool:
        """As an engine asks each step."""
        sending, receiving = self._worker.get_finished(set() if is_retrieve else {request})
        return request in ((receiving if is_retrieve else sending) or ())

    def load_errors(self) -> set[int]:
        """Of the worker half."""
        return set(self._worker.get_block_ids_with_load_errors())

    def end(self, request: str, tokens: list[int], held: int) -> None:
        """Gives back what a lookup locked and nobody loaded, then ends the session."""
        if held:
            self._scheduler.free_lookup_locks(tokens, 0, held, request)
        self._scheduler.end_session(request)
        self._scheduler.cleanup_lookup_result(request)

    def is_healthy(self) -> bool:
        """Of the worker half."""
        return bool(self._worker.is_healthy)


class Pinger(Client):
    """Sends PING. Setting: ``url``."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._client = RequestClientFactory.create(settings["url"], context=zmq.Context())

    def ping(self) -> None:
        """To the server."""
        assert self._client.ping(None).result(timeout=30)


def make(settings: dict[str, Any]) -> Told:
    """What ``kind`` says: an engine, or ``num_clients`` clients."""
    if settings["kind"] == "engine":
        return Engine(settings)
    return Clients(settings["num_clients"], lambda: Pinger(settings))


if __name__ == "__main__":
    serve(make)
