"""What pending operations cost vLLM's steps: a request is decoded, with and without 100 stores that cannot begin.

The stores are submitted all at once, before the first step of a lap. In that one and the next they ask for their slots,
which is work of its own and told apart: from then on they are pending and nothing else.
"""

import tempfile
from pathlib import Path

from benchmarks.gateway import gateway
from benchmarks.result import Result, median, micro, percentile
from benchmarks.row import Plan, main
from examples.vllm import tiny_model
from tests.engine.engine import Vllm, connector, prompt

PENDING = 100
STEPS = 50
#: Of those, the first, in which what was submitted is on its way.
BEGINNING = 2
#: No operation may end of its age, however slow the machine.
LASTING = {"kvgate.operation_deadline_seconds": 300.0}
PROMPT_TOKENS = 1024


def run(plan: Plan) -> list[Result]:
    """Laps with and without, in turn."""
    laps = plan.rounds(20, 4)
    began: dict[int, list[float]] = {0: [], PENDING: []}
    took: dict[int, list[float]] = {0: [], PENDING: []}
    with tempfile.TemporaryDirectory(prefix="kvgate-bench-") as home, gateway("2GiB").start() as daemon:
        engine = Vllm(
            tiny_model.make(Path(home) / "tiny"),
            connector(daemon.run_dir, LASTING),
            module="benchmarks.vllm_host",
            environment={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            distributed_executor_backend="uni",
        )
        with engine:
            assert engine.ask("wait_healthy")
            for lap in range(1 + laps):
                for pending in sorted(took, reverse=bool(lap % 2)):
                    seconds = engine.ask("step_seconds", prompt=prompt(PROMPT_TOKENS, 1), steps=STEPS, pending=pending)
                    if lap > 0:  # the first lap warms up
                        began[pending].append(seconds[0])
                        took[pending] += seconds[BEGINNING:]
                plan.progress(lap, laps)
    without, with_pending = took[0], took[PENDING]
    return [
        Result(
            what=f"A step of vLLM with {PENDING} pending operations / without, p99",
            measured=percentile(with_pending, 0.99) / percentile(without, 0.99),
            unit="x",
            bar=1.1,
            beside=f"{micro(percentile(with_pending, 0.99))}; without {micro(percentile(without, 0.99))}",
        ),
        Result(
            what="The same, p50",
            measured=median(with_pending) / median(without),
            unit="x",
            beside=f"{micro(median(with_pending))}; without {micro(median(without))}",
        ),
        Result(
            what=f"The step in which {PENDING} are submitted / without, p50",
            measured=median(began[PENDING]) / median(began[0]),
            unit="x",
            beside=f"{micro(median(began[PENDING]))}; without {micro(median(began[0]))}",
        ),
    ]


if __name__ == "__main__":
    main(run)
