"""Store and retrieve of an 8k-token prompt (1 GiB) in handle mode: the gateway copies, on one thread an engine.

A round is that of ``copies``, beside ``np.copyto`` of the same bytes with one thread.
"""

from functools import partial

from benchmarks.engine import Engine, kv_cache
from benchmarks.gateway import gateway
from benchmarks.result import Result
from benchmarks.row import Plan, main
from benchmarks.rows.copies import POOL, WARM_UP, Yardstick, measure


def run(plan: Plan) -> list[Result]:
    """The yardstick is made after the KV cache has moved to shared memory: it reads where the cache lies then."""
    rounds = plan.rounds(12, 3)
    caches = kv_cache()
    progress = partial(_tell, plan, WARM_UP + rounds)
    with (
        gateway(POOL).start() as daemon,
        Engine(daemon.run_dir, caches, transfer="handle") as engine,
        Yardstick(caches, 1) as bare,
    ):
        return measure(engine, bare, rounds, progress, name="handle mode", bar=0.7)


def _tell(plan: Plan, total: int, done: int) -> None:
    plan.progress(done, total)


if __name__ == "__main__":
    main(run)
