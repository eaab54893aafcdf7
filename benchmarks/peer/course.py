"""The race itself: its parts in order, each with both sides in turn.

Owns: what is asked of whom, how often, and which figures come of it. Must not know: how either side does it.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from benchmarks.echo import Echo
from benchmarks.engine import CHUNK_TOKENS
from benchmarks.peer import memory
from benchmarks.peer.figures import PEER, Figure, of_times
from benchmarks.peer.sides import HEARTBEAT_SECONDS, PROMPT_TOKENS, READY_SECONDS, Engines, Side, Sides, echo_clients
from benchmarks.peer.told import Told
from benchmarks.result import median

CLIENTS = 8
LONG_TOKENS = 4 * PROMPT_TOKENS
#: On each side. LMCache evicts at four fifths: those hold the long prompt, and what is free always holds the short one.
POOL_GIB = 5.5
#: With which all of a pool has been touched.
FILLING_LAPS = 5
#: What an engine waits for the end of a transfer while its daemon is stopped: longer than any of its timeouts.
STOPPED_SECONDS = 8.0
#: To stop a transfer before it is over, each time after half as long.
MAX_ATTEMPTS = 4
#: Numbers of patterns: what is computed first, what another request writes into the blocks, what is computed again.
FIRST, OTHER, AGAIN = 1, 2, 3

Times = dict[bool, list[float]]


@dataclass
class Course:
    """What one run is told, and what it has found."""

    is_quick: bool
    say: Callable[[str], None]
    figures: list[Figure] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    seeds: Iterator[int] = field(default_factory=lambda: count(1))

    def rounds(self, full: int, quick: int) -> int:
        """How often."""
        return quick if self.is_quick else full

    def run(self) -> None:
        """All parts."""
        started: Times = defaultdict(list)
        with Sides(POOL_GIB) as sides:
            self._start(sides, started)
            self._control(sides)
            with Engines(sides, ours="pool", peer="engine_driven") as engines:
                usual = self._copies(
                    sides, engines, self.rounds(10, 2), "the engine copies", has_bars=True, is_long=True
                )
                self._memory(sides)
                self._stops(sides, engines, usual, "the engine copies")
                self._deaths(sides, engines)
                self._leftovers(sides, engines, "the engine copies")
        with Sides(POOL_GIB) as sides:
            self._start(sides, started)
            with Engines(sides, ours="handle", peer="lmcache_driven") as engines:
                usual = self._copies(sides, engines, self.rounds(6, 2), "the daemon copies")
                self._stops(sides, engines, usual, "the daemon copies")
                self._leftovers(sides, engines, "the daemon copies")
        note = f"{POOL_GIB} GiB of pool, which kvgate reserves by then and {PEER} does not"
        self.figures.append(of_times("Start until it takes connections", "s", started[True], started[False], note=note))

    # -- parts
    def _start(self, sides: Sides, started: Times) -> None:
        self.say("start")
        for side in sides.in_turn(0):
            began = time.monotonic()
            side.daemon.start()
            started[side.is_ours].append(time.monotonic() - began)

    def _control(self, sides: Sides) -> None:
        """Round trips of the smallest request: one client, then all at once."""
        self.say(f"control round trips, {CLIENTS} clients a side")
        laps, rounds = self.rounds(10, 2), self.rounds(200, 50)
        with ExitStack() as stack, Echo(sides.base / "echo") as echo:
            groups = {
                "bare": echo_clients(CLIENTS, echo.path),
                "ours": sides.ours.clients(CLIENTS),
                "peer": sides.peer.clients(CLIENTS),
            }
            for clients in groups.values():
                stack.enter_context(clients)
            for clients in groups.values():
                clients.hear(READY_SECONDS)
            for num_clients, bar in ((1, 2.0), (CLIENTS, None)):
                seconds: dict[str, list[float]] = defaultdict(list)
                for lap in range(laps + 1):
                    for name, clients in groups.items():
                        answer = clients.ask("pings", num_clients=num_clients, rounds=rounds)
                        seconds[name] += answer if lap else []
                what = f"Control round trip, {num_clients} client{'s' * (num_clients > 1)}"
                times = (seconds["ours"], seconds["peer"], seconds["bare"])
                self.figures.append(of_times(what, "µs", *times, bar=bar, has_p99=True))

    def _copies(
        self, sides: Sides, engines: Engines, rounds: int, who: str, *, has_bars: bool = False, is_long: bool = False
    ) -> dict[tuple[bool, bool], float]:
        """Stores and retrieves; the medians for a prompt by (is ours, is retrieve)."""
        self.say(f"{who}: filling the pools")
        self._check(sides, engines, who)
        if is_long:
            self._lookups(sides, engines)
        for lap in range(FILLING_LAPS):
            self._lap(sides, engines, lap, PROMPT_TOKENS)
        self.say(f"{who}: one chunk")
        self._pair(sides, engines, 3 * rounds, CHUNK_TOKENS, f"of one chunk, {who}")
        self.say(f"{who}: prompts of {PROMPT_TOKENS:,} tokens")
        bars = (4.0, 1.5) if has_bars else (None, None)
        return self._pair(sides, engines, rounds, PROMPT_TOKENS, f"of an 8k prompt, {who}", bars)

    def _check(self, sides: Sides, engines: Engines, who: str) -> None:
        """Nothing is measured of a side that does not give back what it was given."""
        for side in sides.in_turn(0):
            engine, seed = engines[side], next(self.seeds)
            engine.ask("fill", number=FIRST)
            engine.ask("store", num_tokens=PROMPT_TOKENS, seed=seed)
            engine.ask("fill", number=OTHER)
            loaded = engine.ask("retrieve", num_tokens=PROMPT_TOKENS, seed=seed)["loaded"]
            wrong = engine.ask("wrong_bytes", number=FIRST, num_tokens=loaded)
            assert loaded == PROMPT_TOKENS, f"{_name(side)}, {who}: {loaded} tokens came back"
            assert wrong == 0, f"{_name(side)}, {who}: {wrong} wrong bytes without any fault"

    def _lookups(self, sides: Sides, engines: Engines) -> None:
        """Of a stored prompt of 32k tokens, of its first 8k, and of prompts that are nowhere."""
        self.say("lookups")
        stored = next(self.seeds)
        for side in sides.in_turn(0):
            for start in range(0, LONG_TOKENS, PROMPT_TOKENS):
                engines[side].ask("store", num_tokens=start + PROMPT_TOKENS, seed=stored, start=start)
        laps, rounds = self.rounds(6, 2), self.rounds(8, 4)
        for name, num_tokens, bar in (("32k", LONG_TOKENS, 8.0), ("8k", PROMPT_TOKENS, None)):
            for is_hit in (True, False):
                seconds: Times = defaultdict(list)
                for lap in range(laps + 1):
                    seeds = [stored if is_hit else next(self.seeds) for _ in range(rounds)]
                    for side in sides.in_turn(lap):
                        # A prefix of a prompt is the same prompt: seeds give one token after the other.
                        answer = engines[side].ask("lookups", num_tokens=num_tokens, seeds=seeds)
                        wanted = num_tokens if is_hit else 0
                        assert answer["found"] == [wanted] * rounds, f"{_name(side)} found {answer['found']}"
                        seconds[side.is_ours] += answer["seconds"] if lap else []
                what = f"Lookup of {name} tokens, {'found' if is_hit else 'not found'}"
                limit = bar if is_hit else None
                self.figures.append(of_times(what, "ms", seconds[True], seconds[False], bar=limit, has_p99=True))

    def _pair(  # noqa: PLR0917 - what is copied and what is said of it
        self,
        sides: Sides,
        engines: Engines,
        rounds: int,
        num_tokens: int,
        what: str,
        bars: tuple[float | None, float | None] = (None, None),
    ) -> dict[tuple[bool, bool], float]:
        laps = [self._lap(sides, engines, lap, num_tokens) for lap in range(rounds)]
        is_prompt = num_tokens == PROMPT_TOKENS
        bare = [engines[sides.ours].ask("bare_copy") for _ in range(len(laps) + 1)][1:] if is_prompt else []
        medians = {}
        for is_retrieve, kind, bar in ((False, "Store", bars[0]), (True, "Retrieve", bars[1])):
            ours, peer = (
                [lap[is_ours, is_retrieve] for lap in laps if (is_ours, is_retrieve) in lap]
                for is_ours in (True, False)
            )
            seconds = [[times["seconds"] for times in side] for side in (ours, peer)]
            kept = [[times["blocked"] for times in side] for side in (ours, peer)]
            self.figures.append(of_times(f"{kind} {what}", "ms", seconds[0], seconds[1], bare, bar))
            self.figures.append(of_times("  its engine's thread kept", "ms", kept[0], kept[1]))
            medians[True, is_retrieve], medians[False, is_retrieve] = map(median, seconds)
        return medians

    def _lap(
        self, sides: Sides, engines: Engines, lap: int, num_tokens: int
    ) -> dict[tuple[bool, bool], dict[str, float]]:
        """A store and a retrieve of it on each side. What a side did not keep whole has no time, and is told."""
        seed = next(self.seeds)
        times = {}
        for side in sides.in_turn(lap):
            stored = engines[side].ask("store", num_tokens=num_tokens, seed=seed)
            retrieved = engines[side].ask("retrieve", num_tokens=num_tokens, seed=seed)
            if retrieved["loaded"] == num_tokens:
                times[side.is_ours, False], times[side.is_ours, True] = stored, retrieved
            else:
                self.remarks.append(f"{_name(side)}: {retrieved['loaded']} of {num_tokens} tokens stored came back")
        return times

    def _memory(self, sides: Sides) -> None:
        self.say("memory")
        ours, peer = (memory.of_daemon(side.daemon.pid, side.pool()) for side in (sides.ours, sides.peer))
        for what, name in (
            ("Daemon's memory beside the pool (PSS)", "beside_pool"),
            ("Daemon's memory, all (PSS)", "proportional"),
            ("Daemon's memory, all (RSS)", "resident"),
        ):
            amounts = [getattr(of_side, name) / 1e6 for of_side in (ours, peer)]
            self.figures.append(Figure(what=what, unit="MB", ours=amounts[0], peer=amounts[1]))

    def _stops(self, sides: Sides, engines: Engines, usual: dict[tuple[bool, bool], float], who: str) -> None:
        """The daemon is stopped in the middle, the engine goes on when it may, then the daemon does."""
        for is_retrieve, kind in ((False, "store"), (True, "retrieve")):
            wrong: dict[bool, int] = {True: 0, False: 0}
            told: dict[bool, list[dict[str, Any]]] = defaultdict(list)
            trials = self.rounds(2, 1)
            for trial in range(trials):
                for side in sides.in_turn(trial):
                    self.say(f"{who}: {_name(side)} stopped in a {kind}, {trial + 1} of {trials}")
                    delay = usual[side.is_ours, is_retrieve] * (0.25 + 0.5 * (trial + 0.5) / trials)
                    for attempt in range(MAX_ATTEMPTS):  # a transfer that was over before the stop shows nothing
                        answer = _stopped(
                            side, engines[side], next(self.seeds), delay / 2**attempt, is_retrieve=is_retrieve
                        )
                        wrong[side.is_ours] += answer["wrong"]
                        if answer["is_caught"]:
                            break
                    told[side.is_ours].append(answer)
            self.figures.append(
                Figure(
                    what=f"Wrong bytes after SIGSTOP in a {kind}, {who}",
                    unit="bytes",
                    ours=wrong[True],
                    peer=wrong[False],
                    bar=0,
                    is_count=True,
                    note=f"{_story(told[True])}; {PEER} {_story(told[False])}",
                )
            )

    def _deaths(self, sides: Sides, engines: Engines) -> None:
        """How long the worker half takes a daemon for healthy that was killed, or stopped, at some time."""
        noticed: dict[str, Times] = {"killed": defaultdict(list), "stopped": defaultdict(list)}
        chance = random.Random(1)
        rounds = self.rounds(4, 1)
        for lap in range(rounds):
            for side in sides.in_turn(lap):
                self.say(f"{_name(side)} killed and stopped, {lap + 1} of {rounds}")
                engine = engines[side]
                for kind in noticed:
                    engine.tell("changes_health", seconds=30, to=False)
                    time.sleep(HEARTBEAT_SECONDS * (1 + chance.random()))
                    began = time.monotonic()
                    (side.daemon.kill if kind == "killed" else side.daemon.pause)()
                    seen = engine.hear()
                    assert seen is not None, f"{_name(side)} did not notice"
                    noticed[kind][side.is_ours].append(seen - began)
                    (side.daemon.start if kind == "killed" else side.daemon.go_on)()
                    assert engine.ask("changes_health", seconds=60, to=True) is not None, f"{_name(side)} stays away"
        note = f"heartbeats of {HEARTBEAT_SECONDS:.0f} s on both sides"
        for kind, bar in (("killed", 2.0), ("stopped", None)):
            times = noticed[kind]
            self.figures.append(
                of_times(f"A {kind} daemon is noticed", "s", times[True], times[False], (), bar, note=note)
            )

    def _leftovers(self, sides: Sides, engines: Engines, who: str) -> None:
        """What a killed daemon and engine leave in shared memory, and what the next daemon makes of it."""
        self.say(f"{who}: leftovers")
        seed = next(self.seeds)
        found: dict[bool, int] = {}
        for side in sides.in_turn(0):
            engine = engines[side]
            engine.ask("store", num_tokens=PROMPT_TOKENS, seed=seed)
            side.daemon.kill()
            engine.ask("changes_health", seconds=60, to=False)
            side.daemon.start()
            assert engine.ask("changes_health", seconds=60, to=True) is not None
            time.sleep(2 * HEARTBEAT_SECONDS)  # its scheduler half comes back too
            found[side.is_ours] = engine.ask("lookups", num_tokens=PROMPT_TOKENS, seeds=[seed])["found"][0]
            side.daemon.kill()
            engine.kill()
        ours = [path for path in sides.base.rglob("*") if path.is_file() and not path.name.startswith("std")]
        sizes = [sum(path.stat().st_blocks * 512 for path in files) / 1e6 for files in (ours, sides.peer_files())]
        note = f"of an 8k prompt, the next daemon finds {found[True]:,} tokens; {PEER}'s {found[False]:,}"
        self.figures.append(
            Figure(
                what=f"Left in /dev/shm by SIGKILL, {who}",
                unit="MB",
                ours=sizes[0],
                peer=sizes[1],
                is_count=True,
                note=note,
            )
        )


def _stopped(side: Side, engine: Told, seed: int, delay: float, *, is_retrieve: bool) -> dict[str, Any]:
    """Stop the daemon so long after a transfer began; what the engine saw, and how many bytes are wrong in the end."""
    asked: dict[str, Any] = {"num_tokens": PROMPT_TOKENS, "seed": seed}
    engine.ask("fill", number=FIRST)
    if is_retrieve:
        engine.ask("store", **asked)
        engine.ask("fill", number=OTHER)
    engine.tell("begin", **asked, seconds=STOPPED_SECONDS, is_retrieve=is_retrieve)
    time.sleep(delay)
    side.daemon.pause()
    told: dict[str, Any] = engine.hear()
    may_go_on = told["ended"] is not None
    if may_go_on:  # its blocks are the engine's again: it computes what is missing, or gives them to another request
        engine.ask("recompute" if is_retrieve else "fill", number=AGAIN)
    side.daemon.go_on()
    if not may_go_on:
        assert engine.ask("settle", seconds=60), "a transfer never ended"
        engine.ask("recompute" if is_retrieve else "fill", number=AGAIN)
    assert engine.ask("changes_health", seconds=60, to=True) is not None
    time.sleep(2.0)  # for whatever the daemon still has to do
    engine.ask("close_request", **asked)
    if is_retrieve:
        wrong = engine.ask("wrong_bytes", number=FIRST, num_tokens=PROMPT_TOKENS, recomputed=AGAIN)
    else:
        loaded = engine.ask("retrieve", **asked)["loaded"]
        wrong = engine.ask("wrong_bytes", number=FIRST, num_tokens=loaded)
    return {**told, "wrong": wrong, "is_caught": not may_go_on or told["ended"] > delay}


def _story(told: list[dict[str, Any]]) -> str:
    """What a side's engine saw while its daemon was stopped."""
    ended = [one["ended"] for one in told if one["ended"] is not None]
    errors = sorted({one["error"] for one in told} - {""})
    blocks = f"blocks back after {median(ended):.1f} s" if ended else "blocks held until the daemon went on"
    caught = sum(one["is_caught"] for one in told)
    return (
        f"{caught} of {len(told)} stopped in the middle, thread kept {max(one['blocked'] for one in told):.2f} s, "
        f"{blocks}{''.join(f', {name}' for name in errors)}"
    )


def _name(side: Side) -> str:
    return "kvgate" if side.is_ours else PEER
