"""What both sides of the race are told to do, and how their times are taken: one engine, or one client that only pings.

Owns: commands, clocks, prompts, and the bytes that blocks are filled with. Must not know: whose engine it is. Runs in
two environments, of which one has no kvgate: beside the standard library it imports numpy and torch alone.

Every public method is a command of ``tests.engine.lines``; arguments and answers are JSON. Times are seconds.
"""

import multiprocessing
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

POLL_SECONDS = 0.0002
#: After what was asked for and is not timed, so that it is over when the next lap begins.
PAUSE_SECONDS = 0.005


@lru_cache(maxsize=4)
def prompt(num_tokens: int, seed: int) -> list[int]:
    """Token ids, not to be changed; other seeds share no prefix."""
    ids = random.Random(seed)
    return [ids.randrange(150_000) for _ in range(num_tokens)]


class Told:
    """Does what it is told, in a process of its own."""

    def close(self) -> None:
        """Nobody tells it anything any more: the process ends, whatever threads of either side still run."""
        os._exit(0)


class Client(ABC):
    """Asks for the smallest answer there is."""

    @abstractmethod
    def ping(self) -> None:
        """There and back."""


class Clients(Told):
    """So many clients, each in a process of its own that is forked from this one, so that importing is paid for once.

    Args:
        num_clients: how many.
        make: makes one, in its own process.
    """

    def __init__(self, num_clients: int, make: Callable[[], Client]) -> None:
        fork = multiprocessing.get_context("fork")
        self._ends = []
        for _ in range(num_clients):
            end, other = fork.Pipe()
            fork.Process(target=_ping_when_told, args=(make, other, os.getpid()), daemon=True).start()
            self._ends.append(end)
        for end in self._ends:
            end.recv()

    def pings(self, num_clients: int, rounds: int) -> list[float]:
        """The seconds of each round trip of the first so many clients, all at once."""
        for end in self._ends[:num_clients]:
            end.send(rounds)
        return [seconds for end in self._ends[:num_clients] for seconds in end.recv()]


class Racer(Told, ABC):
    """One engine: a scheduler half and a worker half over a KV cache of real tensors.

    Args:
        settings: ``layers``, ``num_blocks``, ``block_shape`` of the KV cache, ``chunk_tokens``, and a side's own.

    Block 0 is never used: one of the two sides takes it for a block that is not there.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.block_tokens: int = settings["block_shape"][0]
        self.chunk_tokens: int = settings["chunk_tokens"]
        shape = (2, settings["num_blocks"], *settings["block_shape"])
        self.caches = {
            f"layer.{i}": torch.full(shape, i + 0.5, dtype=torch.bfloat16) for i in range(settings["layers"])
        }
        self._pattern = np.random.default_rng(1).integers(-(1 << 15), 1 << 15, shape, np.int16)
        self._blocks = list(range(1, settings["num_blocks"]))
        random.Random(1).shuffle(self._blocks)  # as after hours of use
        self._number = 0
        #: The disturbed request, and what it is.
        self._open, self._is_retrieve = "", False
        #: Blocks that the last retrieve did not fill.
        self._failed: set[int] = set()

    # -- a side's own
    @abstractmethod
    def lookup(self, request: str, tokens: list[int]) -> int:
        """Leading tokens found, and held for the request."""

    @abstractmethod
    def submit(self, request: str, tokens: list[int], start: int, blocks: Sequence[int], *, is_retrieve: bool) -> None:
        """Begin to store or load tokens [start, len(tokens)), whose blocks these are."""

    @abstractmethod
    def finished(self, request: str, *, is_retrieve: bool) -> bool:
        """Whether the engine may use the blocks of this store or retrieve again."""

    @abstractmethod
    def load_errors(self) -> set[int]:
        """Blocks that retrieves since the last call did not fill."""

    @abstractmethod
    def end(self, request: str, tokens: list[int], held: int) -> None:
        """The request is over; so many tokens it was promised were not loaded."""

    @abstractmethod
    def is_healthy(self) -> bool:
        """Whether the worker half sends work to its daemon."""

    # -- commands: how long
    def lookups(self, num_tokens: int, seeds: list[int]) -> dict[str, Any]:
        """One request for each prompt, from the call to its answer."""
        seconds, found = [], []
        for seed in seeds:
            tokens, request = prompt(num_tokens, seed), self._next()
            began = time.perf_counter()
            found.append(self.lookup(request, tokens))
            seconds.append(time.perf_counter() - began)
            self.end(request, tokens, found[-1])
            time.sleep(PAUSE_SECONDS)
        return {"seconds": seconds, "found": found}

    def store(self, num_tokens: int, seed: int, start: int = 0) -> dict[str, float]:
        """From submit to its end, and for how much of it the engine's thread was kept."""
        tokens, request = prompt(num_tokens, seed), self._next()
        times = self._run(request, tokens, start, is_retrieve=False)
        self.end(request, tokens, 0)
        time.sleep(PAUSE_SECONDS)
        return times

    def retrieve(self, num_tokens: int, seed: int) -> dict[str, float]:
        """The same for what a lookup finds first; ``loaded`` are the tokens."""
        tokens, request = prompt(num_tokens, seed), self._next()
        found = self.lookup(request, tokens)
        if not found:
            self.end(request, tokens, 0)
            return {"blocked": 0.0, "seconds": 0.0, "loaded": 0}
        times = self._run(request, tokens[:found], 0, is_retrieve=True)
        self.end(request, tokens, 0)
        time.sleep(PAUSE_SECONDS)
        self._failed = self.load_errors()
        return {**times, "loaded": found - self.block_tokens * len(self._failed)}

    # -- commands: right or wrong
    def fill(self, number: int) -> None:
        """Write bytes into all blocks that depend on the number, the layer and the place."""
        self._failed = set()
        for i, cache in enumerate(self._bits):
            np.add(self._pattern, _constant(number, i), out=cache)

    def recompute(self, number: int) -> int:
        """What an engine does after a failed load: ``fill`` the blocks that it did not fill. How many they are."""
        self._failed = self.load_errors()
        self._write(number, sorted(self._failed))
        return len(self._failed)

    def wrong_bytes(self, number: int, num_tokens: int, recomputed: int | None = None) -> int:
        """Bytes in the blocks of so many tokens that are not those of ``fill`` with this number.

        Blocks that the last retrieve did not fill are compared with ``recomputed``; None: not at all.
        """
        blocks = self._blocks[: num_tokens // self.block_tokens]
        wrong = self._count_wrong(number, [block for block in blocks if block not in self._failed])
        if recomputed is not None:
            wrong += self._count_wrong(recomputed, [block for block in blocks if block in self._failed])
        return wrong

    def begin(self, num_tokens: int, seed: int, seconds: float, *, is_retrieve: bool) -> dict[str, Any]:
        """A store or retrieve that is disturbed from outside: waits so long at most for its end.

        Answers for how long the thread was kept, and after how long the engine may have its blocks back: None, not yet.
        """
        tokens, request = prompt(num_tokens, seed), self._next()
        held = self.lookup(request, tokens) if is_retrieve else num_tokens
        assert held == num_tokens, f"{held} of {num_tokens} tokens were there before the retrieve"
        self._open, self._is_retrieve = request, is_retrieve
        began = time.perf_counter()
        error = ""
        try:
            self.submit(request, tokens, 0, self._blocks[: num_tokens // self.block_tokens], is_retrieve=is_retrieve)
        except Exception as raised:  # noqa: BLE001 - whatever it is, the engine's thread meets it
            error = type(raised).__name__
        blocked = time.perf_counter() - began
        ended = bool(error) or self._ends(began + seconds)
        return {"blocked": blocked, "ended": time.perf_counter() - began if ended else None, "error": error}

    def settle(self, seconds: float) -> bool:
        """Wait so long for the end of what was begun; whether it came."""
        return self._ends(time.perf_counter() + seconds)

    def close_request(self, num_tokens: int, seed: int) -> None:
        """The disturbed request is over."""
        self.end(self._open, prompt(num_tokens, seed), 0)

    # -- commands: health
    def changes_health(self, seconds: float, *, to: bool) -> float | None:
        """Monotonic time at which the worker half is healthy, or not, seen within a millisecond; None: it did not."""
        deadline = time.monotonic() + seconds
        while self.is_healthy() is not to:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
        return time.monotonic()

    # -- inside
    @property
    def _bits(self) -> list[Any]:
        """The layers where they lie now: a side may have moved them to shared memory."""
        return [cache.view(torch.int16).numpy() for cache in self.caches.values()]

    def _run(self, request: str, tokens: list[int], start: int, *, is_retrieve: bool) -> dict[str, float]:
        blocks = self._blocks[: (len(tokens) - start) // self.block_tokens]
        began = time.perf_counter()
        self.submit(request, tokens, start, blocks, is_retrieve=is_retrieve)
        blocked = time.perf_counter() - began
        while not self.finished(request, is_retrieve=is_retrieve):
            time.sleep(POLL_SECONDS)
        return {"blocked": blocked, "seconds": time.perf_counter() - began}

    def _write(self, number: int, blocks: list[int]) -> None:
        index = np.array(blocks, dtype=np.int64)
        for i, cache in enumerate(self._bits):
            cache[:, index] = self._pattern[:, index] + _constant(number, i)

    def _count_wrong(self, number: int, blocks: list[int]) -> int:
        index = np.array(blocks, dtype=np.int64)
        wrong = 0
        for i, cache in enumerate(self._bits):
            there, wanted = cache[:, index], self._pattern[:, index] + _constant(number, i)
            if not np.array_equal(there, wanted):
                wrong += int((there.view(np.uint8) != wanted.view(np.uint8)).sum())
        return wrong

    def _ends(self, deadline: float) -> bool:
        while not self.finished(self._open, is_retrieve=self._is_retrieve):
            if time.perf_counter() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _next(self) -> str:
        """A request nobody has seen."""
        self._number += 1
        return f"request-{self._number}"


def _constant(number: int, layer: int) -> np.int16:
    return np.int16(97 * number + 3 * layer)


def _ping_when_told(make: Callable[[], Client], end: Connection, parent: int) -> None:
    """A client's process. It ends with its parent, however that ends."""
    client = make()
    client.ping()
    end.send([])
    while os.getppid() == parent:
        if end.poll(1):
            end.send([_timed(client.ping) for _ in range(end.recv())])


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
