"""A small fleet under load for dashboards to look at: whatever a panel can show happens here, again and again.

Node a serves two engines: *busy* stores, finds, loads, misses and finds evicted what it stored; *held* has one store
whose event never fires, so that its others are refused. A third has died. Node b is drained and
switched off, node c is down.
"""

import socket
import threading
from contextlib import ExitStack, closing
from typing import Self

import httpx

from gateway.wire.codes import Lifecycle, Role
from gateway.wire.messages import SnapshotRequest
from tests.support.daemon import Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.events import FakeEvent
from tests.support.party import RawParty
from tests.support.poll import until

#: Checking every table after every step would leave no room for load.
SETTINGS = {"KVGATE_VERIFY": ""}
PROMPT_CHUNKS = 4


class Fleet:
    """Starts on the way in; ``targets`` is what a Prometheus scrapes, by address."""

    def __init__(self) -> None:
        self.targets: dict[str, dict[str, str]] = {}
        self._stack = ExitStack()
        self._is_over = threading.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        with self._stack:
            serving = self._stack.enter_context(Daemon(SETTINGS)).start()
            drained = self._stack.enter_context(Daemon(SETTINGS)).start()
            httpx.post(f"{drained.admin_url}/v1/drain", timeout=10).raise_for_status()
            until(lambda: drained.snapshot().state == Lifecycle.DRAINED, 20, "node b drained")
            (drained.run_dir / "switch.node.off.all").touch()
            self._be_busy(serving)
            with RawParty(serving.run_dir, Role.WORKER, engine="dead").register() as party:
                party.reserve(range(4), party.next_operation())
                party.die()
            with socket.create_server(("127.0.0.1", 0)) as free:
                nobody = f"127.0.0.1:{free.getsockname()[1]}"
            addresses = (*(one.admin_url.removeprefix("http://") for one in (serving, drained)), nobody)
            self.targets = {at: {"cluster": "c", "node": node} for at, node in zip(addresses, "abc", strict=True)}
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        if self._failure is not None:
            raise AssertionError("the load ended") from self._failure

    def _be_busy(self, daemon: Daemon) -> None:
        # A chunk is 64 KiB, the pool has 8 MiB: what is stored is soon evicted.
        self._busy = self._stack.enter_context(Engine(daemon.run_dir, name="busy", num_kv_heads=32))
        self._held = self._stack.enter_context(
            Engine(daemon.run_dir, name="held", num_kv_heads=32, max_pending_ops=1, operation_deadline_seconds=600)
        )
        self._dealer = self._stack.enter_context(closing(daemon.dealer()))
        self._dealer.hello()
        for engine in (self._busy, self._held):
            engine.wait_healthy()
        event = FakeEvent()
        self._held.store("held", tokens(1, seed=1), blocks(1), event)
        self._stack.callback(event.fire)
        load = threading.Thread(target=self._run)
        load.start()
        self._stack.callback(load.join)
        self._stack.callback(self._is_over.set)

    def _run(self) -> None:
        try:
            number = 100
            while not self._is_over.wait(0.02):
                self._step(number)
                number += 1
        except BaseException as failure:
            self._failure = failure

    def _step(self, number: int) -> None:
        prompt, place = tokens(PROMPT_CHUNKS, seed=number), blocks(PROMPT_CHUNKS)
        busy, held = self._busy, self._held
        busy.hit(f"new-{number}", prompt)  # a miss
        busy.store(f"store-{number}", prompt, place)
        assert busy.worker.wait_settled(15)
        busy.load(f"load-{number}", prompt, place)
        busy.hit(f"old-{number}", tokens(PROMPT_CHUNKS, seed=number - 50))  # evicted, once the pool is full
        held.store(f"refused-{number}", prompt, blocks(PROMPT_CHUNKS, first=8))
        for engine in (busy, held):
            engine.worker.get_finished()
        self._dealer.ask(SnapshotRequest(number=0))  # forbidden on this socket
