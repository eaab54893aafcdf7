"""How soon a death is known: a killed gateway by an adapter, a killed engine by the gateway, its slots free again.

The kernel takes a killed process's memory down before its lock is free: 0.1 s a GiB of it are allowed on top.
"""

import time
from collections.abc import Callable
from functools import partial

from adapter import State
from benchmarks.busy_engine import BusyEngine
from benchmarks.engine import BLOCKS_PER_CHUNK, Engine, small_kv_cache
from benchmarks.gateway import gateway
from benchmarks.result import Result, median
from benchmarks.row import Plan, main
from gateway.wire.messages import SnapshotReply, SnapshotRequest
from tests.support.daemon import Daemon

GIVE_UP_SECONDS = 30.0
#: What the engine maps: the pool, and its KV blocks. The gateway maps a few MiB.
POOL, ENGINE_GIBIBYTES = "2GiB", 2.25


def run(plan: Plan) -> list[Result]:
    """Kill each so often, and look every millisecond."""
    rounds = plan.rounds(7, 2)
    seen, freed = [], []
    with gateway(POOL).start() as daemon:
        with Engine(daemon.run_dir, small_kv_cache(BLOCKS_PER_CHUNK)) as engine:
            for i in range(rounds):
                began = time.monotonic()
                daemon.kill()
                _wait(partial(_is_dead, engine))
                seen.append(time.monotonic() - began)
                daemon.start()
                engine.wait_healthy()
                plan.progress(i + 1, 2 * rounds)
        for i in range(rounds):
            freed.append(_kill_engine(daemon))
            plan.progress(rounds + i + 1, 2 * rounds)
    return [
        Result(
            what="A killed gateway is seen by an adapter",
            measured=median(seen),
            unit="s",
            bar=0.2,
            beside=f"slowest {max(seen):.2f} s",
        ),
        Result(
            what="A killed engine's slots are free",
            measured=median(freed),
            unit="s",
            bar=1.5 + 0.1 * ENGINE_GIBIBYTES,
            beside=f"slowest {max(freed):.2f} s; it had {ENGINE_GIBIBYTES} GiB mapped",
        ),
    ]


def _is_dead(engine: Engine) -> bool:
    return engine.worker.state is State.DEAD


def _kill_engine(daemon: Daemon) -> float:
    """Seconds from the kill until none of its slots is reserved or quarantined."""
    with daemon.admin_client() as client, BusyEngine(daemon.run_dir) as engine:

        def held_slots() -> int:
            reply = client.request(SnapshotRequest(number=0))
            assert isinstance(reply, SnapshotReply)
            return reply.slots.writing + reply.slots.quarantined

        engine.hold()
        _wait(lambda: held_slots() > 0)
        began = time.monotonic()
        engine.kill()
        _wait(lambda: held_slots() == 0)
        return time.monotonic() - began


def _wait(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.001)


if __name__ == "__main__":
    main(run)
