"""The main job of kvgate, on real requests: ``python -m examples.demo``, or ``make demo``.

Two engines replay chats through one gateway. On the way the gateway is drained and resumed under load, and killed with
SIGKILL and started again; every byte the engines retrieve is compared. Exits with 0 only if all of it held.

``KVGATE_TRACE`` names a trace file to replay instead of the chats made here; ``--requests`` says how many.

Owns: the order of events, and what must hold. Runs on the main thread.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx

from examples.demo.conversations import trace
from examples.demo.fleet import EngineFailedError, Fleet
from examples.demo.gateway import Gateway, GatewayFailedError, Scrape
from examples.demo.lines import Figures
from examples.demo.report import Screen
from examples.demo.sizes import CHUNK_TOKENS, NUM_ENGINES, Sizes, TooSmallError, fit, measure

_REQUESTS = 400
_REPLAY_SECONDS = 80.0  # a slow machine serves fewer requests, not longer
_START_SECONDS = 180.0  # engines import PyTorch first: long from a cold disk, or on busy cores
_STEP_SECONDS = 30.0  # what any one step after that may take
_DRAINED_SECONDS = 1.0  # the engines run on without a gateway for so long
_POOL_FOLDER = Path("/dev/shm")  # noqa: S108 - memory is where a pool belongs; the folder made in it is private

_ENDING = (signal.SIGINT, signal.SIGTERM)
_GAUGES = ("pending_stores", "pending_retrieves", "retained_events")


class DemoFailedError(Exception):
    """Something that must hold did not."""


@dataclass
class Times:
    """What was measured on the way."""

    drain_seconds: float = 0.0
    restart_seconds: float = 0.0
    recovered_chunks: int = 0
    hits_before_restart: int = 0


class Demo:
    """One run: the gateway, its engines, and what is done to them."""

    def __init__(self, gateway: Gateway, fleet: Fleet, screen: Screen, requests: int) -> None:
        self._gateway = gateway
        self._fleet = fleet
        self._screen = screen
        self._requests = requests
        self._began = time.monotonic()
        self.times = Times()

    def run(self) -> None:
        """Replay; drain a third of the way, kill at two thirds; come to rest.

        Raises:
            DemoFailedError: something that must hold did not.
        """
        self._until("the engines to start", lambda: self._are_engines("healthy"), _START_SECONDS)
        self._began = time.monotonic()
        self._replay_to(0.33)
        self._drain_and_resume()
        self._replay_to(0.66)
        self._kill_and_restart()
        self._replay_to(1.0)
        self._fleet.stop()
        self._until("the engines to settle", lambda: self._fleet.is_idle)

    def rest(self) -> Scrape:
        """The scrape at rest: every engine's three gauges are 0 on a heartbeat newer than its last operation.

        Raises:
            DemoFailedError: they do not come to 0.
        """
        idle_at = time.time()
        scrape = self._gateway.scrape()

        def is_at_rest() -> bool:
            nonlocal scrape
            scrape = self._gateway.scrape()
            return all(
                scrape.value("kvgate_engine_last_heartbeat_timestamp_seconds", engine=name, model="demo") > idle_at
                for name in self._fleet.figures
            ) and not any(scrape.total(f"kvgate_engine_{gauge}") for gauge in _GAUGES)

        self._until("the gauges on /metrics to be 0", is_at_rest)
        return scrape

    def _drain_and_resume(self) -> None:
        began = time.monotonic()
        self._gateway.post("/v1/drain", {"deadline_seconds": 10, "reason": "demo"})
        while (drain := self._gateway.get("/v1/drain?wait_seconds=5"))["state"] != "drained":
            self._check(time.monotonic() - began < _STEP_SECONDS, f"the drain does not end: {drain}")
        self.times.drain_seconds = time.monotonic() - began
        self._check(drain["outcome"] == "completed", f"the drain ended {drain['outcome']}")
        self._until("the drained engines' gauges to be 0", self._are_gauges_zero)
        served = self._fleet.requests
        self._follow(_DRAINED_SECONDS)
        self._gateway.post("/v1/resume")
        self._screen.say(
            f"drained in {self.times.drain_seconds:.2f} s ({drain['outcome']}); "
            f"the engines served {self._fleet.requests - served} requests meanwhile; resumed"
        )
        self._until("the engines to be healthy again", lambda: self._are_engines("healthy"))

    def _kill_and_restart(self) -> None:
        ready = self._gateway.scrape().value("kvgate_chunks", state="ready")
        self._gateway.kill()
        self._until("the engines to see that it is dead", lambda: not self._are_engines("healthy"))
        self.times.hits_before_restart = self._hit_tokens()
        self.times.restart_seconds = self._gateway.start()
        began = time.monotonic()
        self.times.recovered_chunks = int(self._gateway.scrape().value("kvgate_recovered_chunks"))
        self._screen.say(
            f"killed with {ready:.0f} chunks; ready again in {self.times.restart_seconds:.2f} s with "
            f"{self.times.recovered_chunks} of them"
        )
        self._until("the engines to come back", lambda: self._are_engines("healthy"))
        self._screen.say(f"the engines are back after {time.monotonic() - began:.2f} s more")

    def _replay_to(self, share: float) -> None:
        self._until(f"{share:.0%} of the requests", lambda: self._share() >= share, _REPLAY_SECONDS + _STEP_SECONDS)

    def _share(self) -> float:
        """How far the replay is: in requests or in time, whichever is more."""
        elapsed = time.monotonic() - self._began
        return max(self._fleet.requests / self._requests, elapsed / _REPLAY_SECONDS)

    def _are_engines(self, state: str) -> bool:
        return all(figures.state == state for figures in self._fleet.figures.values())

    def _are_gauges_zero(self) -> bool:
        scrape = self._gateway.scrape()
        return not any(scrape.total(f"kvgate_engine_{gauge}") for gauge in _GAUGES)

    def _hit_tokens(self) -> int:
        return sum(figures.hit_tokens for figures in self._fleet.figures.values())

    def _follow(self, seconds: float) -> None:
        """Show what happens, for so long."""
        deadline = time.monotonic() + seconds
        self._until("time to pass", lambda: time.monotonic() >= deadline)

    def _until(self, what: str, is_so: Callable[[], bool], seconds: float = _STEP_SECONDS) -> None:
        """Follow the engines until it is so."""
        deadline = time.monotonic() + seconds
        while not is_so():
            self._check(time.monotonic() < deadline, f"waited {seconds:g} s for {what}")
            self._gateway.check_alive()
            self._fleet.listen(0.1)
            pending = sum(f.pending_stores + f.pending_retrieves for f in self._fleet.figures.values())
            seen = {f"gateway {f.state}" if f.state else "engines starting" for f in self._fleet.figures.values()}
            states = ", ".join(sorted(seen))
            text = f"{self._hit_tokens():,} tokens hit, {pending} pending, {states}"
            self._screen.advance(self._fleet.requests, text)

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise DemoFailedError(otherwise)


def main() -> int:
    """Run the demo; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=_REQUESTS, help=f"how many to replay ({_REQUESTS})")
    requests = parser.parse_args().requests
    for number in _ENDING:
        signal.signal(number, _interrupt)
    trace_path = os.environ.get("KVGATE_TRACE", "")
    try:
        if trace_path:
            next(trace(Path(trace_path), max_tokens=CHUNK_TOKENS))  # a bad file is told before anything starts
        sizes = fit(measure(_POOL_FOLDER))
        with tempfile.TemporaryDirectory(prefix="kvgate-demo-", dir=_POOL_FOLDER) as home:
            problems = _play(Path(home), sizes, requests, trace_path)
    except KeyboardInterrupt:
        print("interrupted; nothing is left behind", file=sys.stderr)
        return 130
    except (
        DemoFailedError,
        EngineFailedError,
        GatewayFailedError,
        TooSmallError,
        httpx.HTTPError,
        OSError,
        ValueError,
    ) as error:
        problems = [f"{error}"]
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _play(home: Path, sizes: Sizes, requests: int, trace_path: str) -> list[str]:
    """One whole run; returns what did not hold."""
    gateway = Gateway(home, sizes.pool_bytes)
    with contextlib.ExitStack() as stack:
        stack.callback(gateway.stop)
        screen = stack.enter_context(Screen(requests))
        screen.say(
            f"{sizes.layers} layers, {sizes.chunk_bytes / 2**20:g} MiB a chunk, a pool of {sizes.pool_chunks} chunks, "
            f"{NUM_ENGINES} engines, {trace_path or 'chats made here'}"
        )
        screen.say(f"gateway ready in {gateway.start():.2f} s")
        fleet = Fleet(home, gateway.run_dir, sizes, trace_path)
        stack.callback(fleet.close)
        demo = Demo(gateway, fleet, screen, requests)
        demo.run()
        scrape = demo.rest()
        statuses = [*fleet.close(), gateway.stop()]
    figures = list(fleet.figures.values())
    # Both roads show the same gauges; the table has the larger, the check below wants both at 0.
    at_rest = {
        gauge: int(max(scrape.total(f"kvgate_engine_{gauge}"), sum(getattr(f, gauge) for f in figures)))
        for gauge in _GAUGES
    }
    screen.table(_rows(figures, demo.times, at_rest))
    hits = sum(f.hit_tokens for f in figures)
    must_hold = {
        "no request was served": any(f.requests for f in figures),
        "nothing was hit before the restart": demo.times.hits_before_restart > 0,
        "nothing was hit after the restart": hits > demo.times.hits_before_restart,
        "no chunk was recovered": demo.times.recovered_chunks > 0,
        "bytes were wrong": not any(f.wrong_bytes for f in figures),
        "something is pending or retained at rest": not any(at_rest.values()),
        f"a process ended with an error: {statuses}": not any(statuses),
        "a process is left": not gateway.survivors(),
    }
    return [problem for problem, holds in must_hold.items() if not holds]


def _rows(figures: list[Figures], times: Times, at_rest: dict[str, int]) -> list[tuple[str, str]]:
    prompt_tokens = sum(f.prompt_tokens for f in figures)
    hit_tokens = sum(f.hit_tokens for f in figures)
    return [
        ("requests", f"{sum(f.requests for f in figures):,}"),
        ("prompt tokens", f"{prompt_tokens:,}"),
        ("hit tokens", f"{hit_tokens:,} ({hit_tokens / max(1, prompt_tokens):.0%})"),
        ("store GB/s, an operation under load", _rate(figures, "stored_bytes", "store_seconds")),
        ("retrieve GB/s, an operation under load", _rate(figures, "retrieved_bytes", "retrieve_seconds")),
        ("drain seconds", f"{times.drain_seconds:.2f}"),
        ("restart seconds", f"{times.restart_seconds:.2f}"),
        ("chunks recovered", f"{times.recovered_chunks:,}"),
        ("wrong bytes", f"{sum(f.wrong_bytes for f in figures):,}"),
        *((gauge.replace("_", " "), f"{value}") for gauge, value in at_rest.items()),
    ]


def _rate(figures: list[Figures], amount: str, seconds: str) -> str:
    """Bytes over the time operations took, from their event (store) or their submit (retrieve) to settled."""
    total = sum(getattr(f, amount) for f in figures)
    return f"{total / max(1e-9, sum(getattr(f, seconds) for f in figures)) / 1e9:.1f}"


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Clean up once, undisturbed: a second Ctrl-C does not leave half of it behind."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
