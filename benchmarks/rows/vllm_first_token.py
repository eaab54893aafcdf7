"""What a request to vLLM waits for its first token: found in kvgate, found by vLLM's own example, computed, stored.

Three engines, asked in turn so that all meet the same machine: one with kvgate, one without a connector, and one with
vLLM's ExampleConnector, which reads a prompt's KV from files before the step goes on. ``vllm_one_process`` measures the
same where vLLM's core and worker are in its caller's process.
"""

import contextlib
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gateway import gateway
from benchmarks.result import Result
from benchmarks.row import Plan, main
from examples.vllm import tiny_model
from gateway.wire.messages import PartyInfo
from tests.engine.engine import CHUNK_TOKENS, Vllm, connector, prompt
from tests.support.daemon import Daemon
from tests.support.poll import until

PROMPT_TOKENS = (2048, 4096)
#: Prefill of a long prompt in several steps, as in service: what one has computed is stored while the next computes.
STEP_TOKENS = 1024
#: A busy machine is no reason to find nothing; no figure is better for it.
PATIENT = {"kvgate.lookup_timeout_seconds": 5.0}


class Engines:
    """The three, and what their first tokens took, by prompt length and what was done."""

    def __init__(self, kvgate: Vllm, plain: Vllm, example: Vllm, daemon: Daemon) -> None:
        self._kvgate, self._plain, self._example, self._daemon = kvgate, plain, example, daemon
        self._seed = 0
        self._in_files: dict[int, list[int]] = {}  # by length, a prompt that the example has stored
        self.took: dict[tuple[int, str], list[float]] = defaultdict(list)

    def round(self, tokens: int) -> None:
        """One new prompt, computed by two of them in an order that changes from round to round, then found."""
        self._seed += 1
        asked = prompt(tokens, self._seed)
        computing = [("computed", self._plain), ("stored", self._kvgate)]
        for what, engine in computing if self._seed % 2 else reversed(computing):
            self._ask(engine, asked, what, found=0)
        self._wait_stored()
        if tokens not in self._in_files:
            self._in_files[tokens] = asked
            self._example.ask("first_token", prompt=asked)
        self._ask(self._kvgate, asked, "found", found=tokens - CHUNK_TOKENS)
        self._ask(self._example, self._in_files[tokens], "found by the example", found=tokens - CHUNK_TOKENS)

    def forget(self) -> None:
        """What was measured until now was to warm up."""
        self.took.clear()

    def median(self, tokens: int, what: str) -> float:
        """Seconds."""
        return statistics.median(self.took[tokens, what])

    def ratio(self, tokens: int, what: str, yardstick: str) -> float:
        """The median over rounds of what was measured one after the other."""
        pairs = zip(self.took[tokens, what], self.took[tokens, yardstick], strict=True)
        return statistics.median(one / other for one, other in pairs)

    def _ask(self, engine: Vllm, asked: list[int], what: str, found: int) -> None:
        answer = engine.ask("first_token", prompt=asked)
        as_planned = answer["found"] >= found if found else answer["found"] == 0
        assert as_planned, f"{what}: {answer['found']:g} tokens of {len(asked)}"
        self.took[len(asked), what].append(answer["seconds"])

    def _wait_stored(self) -> None:
        until(lambda: not any(p.reserved_bytes or p.sessions for p in parties(self._daemon)), 20, "all to be stored")


def parties(daemon: Daemon) -> list[PartyInfo]:
    """Of all engines."""
    return [party for engine in daemon.snapshot().engines for party in engine.parties]


def run(plan: Plan) -> list[Result]:
    """As vLLM runs by default: its core and its worker are processes of their own."""
    return measure(plan, "default processes", {})


def measure(plan: Plan, mode: str, environment: Mapping[str, str], **settings: Any) -> list[Result]:
    """Round after round of prompts through three engines that run in this mode."""
    rounds = plan.rounds(8, 1)
    with tempfile.TemporaryDirectory(prefix="kvgate-bench-") as home, contextlib.ExitStack() as stack:
        engines = _start(stack, Path(home), environment, settings)
        for tokens in PROMPT_TOKENS:
            engines.round(tokens)
        engines.forget()
        for i in range(rounds):
            for tokens in PROMPT_TOKENS:
                engines.round(tokens)
            plan.progress(i + 1, rounds)
    return [result for tokens in PROMPT_TOKENS for result in _results(engines, tokens, f"{tokens} tokens, {mode}")]


def _start(
    stack: contextlib.ExitStack, home: Path, environment: Mapping[str, str], settings: Mapping[str, Any]
) -> Engines:
    """A gateway and the three engines, which are ended with the stack."""
    daemon = stack.enter_context(gateway("2GiB").start())
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(home / "files")},
    }
    model = tiny_model.make(home / "tiny")
    told = (
        (connector(daemon.run_dir, PATIENT), STEP_TOKENS),
        (None, STEP_TOKENS),
        (example, max(PROMPT_TOKENS)),  # it stores what is computed in one step
    )
    started = []
    for transfer, step_tokens in told:
        engine = Vllm(
            model,
            transfer,
            module="benchmarks.vllm_host",
            environment=environment,
            max_num_batched_tokens=step_tokens,
            **settings,
        )
        stack.callback(engine.close)
        started.append(engine)
    kvgate, plain, its_example = (engine.wait_started() for engine in started)
    engines = Engines(kvgate, plain, its_example, daemon)
    until(lambda: len(parties(daemon)) == 2, 40, "both halves to be there")
    return engines


def _results(engines: Engines, tokens: int, where: str) -> list[Result]:
    found, example, computed, stored = (
        f"{1e3 * engines.median(tokens, what):,.0f} ms"
        for what in ("found", "found by the example", "computed", "stored")
    )
    return [
        Result(
            what=f"First token, a hit / ExampleConnector's hit: {where}",
            measured=engines.ratio(tokens, "found", "found by the example"),
            unit="x",
            bar=1.5,
            beside=f"{found}; ExampleConnector {example}",
        ),
        Result(
            what=f"First token, a hit / computed: {where}",
            measured=engines.ratio(tokens, "found", "computed"),
            unit="x",
            bar=0.15,
            beside=f"{found}; computed {computed}",
        ),
        Result(
            what=f"First token, computed and stored / computed: {where}",
            measured=engines.ratio(tokens, "stored", "computed"),
            unit="x",
            bar=1.05 if tokens == PROMPT_TOKENS[0] else None,
            beside=f"{stored}; computed {computed}",
        ),
    ]


if __name__ == "__main__":
    main(run)
