"""vLLM's KV cache outlives vLLM: ``python -m examples.vllm``, or ``make demo-vllm``.

One gateway, and vLLM's OpenAI server twice in turn. The first process computes a long prompt; the second, started when
the first is gone, has it from the gateway. Exits with 0 only if it did, word for word.

Owns: the order of events, and what must hold. Runs on the main thread.
"""

import contextlib
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from examples.demo.gateway import Gateway, GatewayFailedError, Scrape
from examples.vllm import tiny_model
from examples.vllm.server import Answer, Server, ServerFailedError, connector

CHUNK_TOKENS = 256
PROMPT_TOKENS = 4000
WARM_UP_TOKENS = 1000
MAX_TOKENS = 16
POOL_BYTES = 1 << 30
POOL_FOLDER = Path("/dev/shm")  # noqa: S108 - memory is where a pool belongs; the folder made in it is private


@dataclass(frozen=True)
class Turn:
    """What one vLLM process did: its answer to the long prompt, and its counters."""

    answer: Answer
    external_hits: float
    loaded_tokens: float
    stored_bytes: float
    pending: float


def prompt(tokens: int, seed: int) -> list[int]:
    """A prompt of token ids; other seeds share no prefix."""
    ids = random.Random(seed)
    return [ids.randrange(2, tiny_model.VOCABULARY - 12) for _ in range(tokens)]


def turn(model: Path, gateway: Gateway, home: Path, number: int) -> Turn:
    """Start a vLLM, let it answer, and stop it."""
    with Server(model, gateway.run_dir, home / f"vllm-{number}.log", f"vllm-{number}") as server:
        for i in range(2):  # the first requests of a process pay for what is compiled then
            server.complete(prompt(WARM_UP_TOKENS, seed=100 * number + i), MAX_TOKENS)
        answer = server.complete(prompt(PROMPT_TOKENS, seed=1), MAX_TOKENS)
        server.wait_settled()
        pending = ("pending_stores", "pending_retrieves", "retained_events")
        return Turn(
            answer,
            external_hits=server.metric("vllm:external_prefix_cache_hits_total"),
            loaded_tokens=server.metric("vllm:kvgate_adapter_loaded_tokens_total"),
            stored_bytes=server.metric("vllm:kvgate_adapter_bytes_total", kind="store"),
            pending=sum(server.metric(f"vllm:kvgate_adapter_{name}") for name in pending),
        )


def play(home: Path, console: Console) -> list[str]:
    """One whole run; returns what did not hold."""
    model = tiny_model.make(home / "tiny")
    gateway = Gateway(home, POOL_BYTES)
    with contextlib.ExitStack() as stack:
        stack.callback(gateway.stop)
        console.print(f"gateway ready in {gateway.start():.2f} s", highlight=False)
        console.print(f"vLLM gets --kv-transfer-config '{connector(gateway.run_dir)}'", highlight=False, soft_wrap=True)
        turns = []
        for number in (1, 2):
            turns.append(turn(model, gateway, home, number))
            console.print(f"vLLM process {number} has answered and is gone", highlight=False)
        scrape = gateway.scrape()
        status = gateway.stop()
    console.print(table(turns, scrape))
    first, second = turns
    whole = PROMPT_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS
    must_hold = {
        f"the first process found {first.answer.cached_tokens} tokens": first.answer.cached_tokens == 0,
        f"the second process found {second.answer.cached_tokens} tokens": second.answer.cached_tokens == whole,
        f"the second process loaded {second.loaded_tokens:g} tokens": second.loaded_tokens == whole,
        "the answers differ": first.answer.text == second.answer.text,
        "the first token came no sooner": second.answer.first_token_seconds < first.answer.first_token_seconds,
        "something is pending at rest": not any(t.pending for t in turns),
        f"the gateway ended with {status}": status == 0,
        "a process is left": not gateway.survivors(),
    }
    return [problem for problem, holds in must_hold.items() if not holds]


def table(turns: list[Turn], scrape: Scrape) -> Table:
    """The figures of both processes."""
    first, second = turns
    shown = Table("", "first process", "second process")
    for column in shown.columns[1:]:
        column.justify = "right"
    rows = [
        ("prompt tokens", *(f"{t.answer.prompt_tokens:,}" for t in turns)),
        ("of these from the gateway", *(f"{t.answer.cached_tokens:,}" for t in turns)),
        ("time to first token, s", *(f"{t.answer.first_token_seconds:.2f}" for t in turns)),
        ("vllm:external_prefix_cache_hits_total", *(f"{t.external_hits:,.0f}" for t in turns)),
        ("vllm:kvgate_adapter_loaded_tokens_total", *(f"{t.loaded_tokens:,.0f}" for t in turns)),
        ("vllm:kvgate_adapter_bytes_total, store", *(f"{t.stored_bytes:,.0f}" for t in turns)),
        ("vllm:kvgate_adapter_pending_… and retained", *(f"{t.pending:g}" for t in turns)),
    ]
    for row in rows:
        shown.add_row(*row)
    shown.add_row("kvgate_hit_tokens_total, the gateway", "", f"{scrape.total('kvgate_hit_tokens_total'):,.0f}")
    sooner = first.answer.first_token_seconds / max(1e-9, second.answer.first_token_seconds)
    shown.caption = f"the first token comes {sooner:.0f} times sooner"
    return shown


def main() -> int:
    """Run the demo; 0 only if all of it held."""
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="kvgate-demo-", dir=POOL_FOLDER) as home:
            problems = play(Path(home), console)
    except KeyboardInterrupt:
        return 130
    except (ServerFailedError, GatewayFailedError, httpx.HTTPError, OSError) as error:
        problems = [f"{error}"]
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
