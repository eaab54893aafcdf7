"""``vllm_first_token``, where vLLM's core and worker are in its caller's process and share its interpreter's lock."""

from benchmarks.result import Result
from benchmarks.row import Plan, main
from benchmarks.rows.vllm_first_token import measure


def run(plan: Plan) -> list[Result]:
    """The same prompts, the same bars."""
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return measure(plan, "one process", environment, distributed_executor_backend="uni")


if __name__ == "__main__":
    main(run)
