"""Hit rates of a trace of prompts: what each eviction policy makes of it, beside the best that could be made of it.

Owns: how a trace is read, how an engine's requests are played to a core, the optimum. Must not know: how the policies
work, who prints. Runs on the caller's thread; needs no daemon.

A request is what an engine does with it: LOOKUP, RESERVE and COMMIT of what was not found, in windows where the pool's
quota asks for it, and the end of the session. A hit is a chunk that the lookup finds, so every chunk before it was
there too.
"""

import hashlib
import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gateway.core.core import Core
from gateway.core.policy.choice import POLICIES
from gateway.core.types import FOUND_SLOT, CoreConfig, PartySpec, PoolFacts
from gateway.wire.codes import ReserveStatus, Role

_CHUNK_BYTES = 4096
_NAMESPACE = b"trace".ljust(16, b"\0")
_NEVER = 1 << 62


class TraceError(ValueError):
    """A trace cannot be read; the message names the line and what was expected."""


@dataclass(frozen=True)
class Request:
    """One prompt: when it came, in seconds, and its chunks' ids. Equal ids stand for equal prefixes."""

    at: float
    chunks: tuple[int | str, ...]


@dataclass(frozen=True)
class HitRates:
    """Of all chunks asked for, the share that was found with a pool of ``capacity`` chunks."""

    capacity: int
    by_policy: dict[str, float]
    optimum: float


def read_trace(path: Path) -> list[Request]:
    """The requests of a file of JSON lines with ``hash_ids`` and, if need be, ``timestamp`` in milliseconds.

    Raises:
        TraceError: the file cannot be read, or a line is not such a request.
    """
    requests: list[Request] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    requests.append(_read(line, number))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from None
    if not any(request.chunks for request in requests):
        raise TraceError(f"{path} has no chunks, expected JSON lines with hash_ids")
    return requests


def _read(line: str, number: int) -> Request:
    try:
        row = json.loads(line)
        chunks, at = row["hash_ids"], row.get("timestamp", number)
        is_good = all(type(one) in (int, str) for one in chunks) and len(set(chunks)) == len(chunks)
        is_good = is_good and isinstance(chunks, list) and type(at) in (int, float)
    except (ValueError, TypeError, KeyError, AttributeError):
        is_good = False
    if not is_good:
        raise TraceError(f"line {number} is {line.strip()[:60]!r}, expected an object with hash_ids, each id once")
    return Request(at / 1000, tuple(chunks))


def hit_rates(requests: Sequence[Request], capacity: int) -> HitRates:
    """What each policy, and the optimum, finds of these requests."""
    num_chunks = sum(len(request.chunks) for request in requests)
    by_policy = {policy: replay(requests, capacity, policy) / num_chunks for policy in POLICIES}
    return HitRates(capacity, by_policy, optimum(requests, capacity) / num_chunks)


# -- through the core


def replay(requests: Sequence[Request], capacity: int, policy: str) -> int:
    """Chunks found when a core with a pool of ``capacity`` chunks is asked for these requests one after the other."""
    engine = _Engine(capacity, policy)
    hits = 0
    now = 0.0
    for request in requests:
        now = max(now, request.at)  # rows out of order come when the one before has come
        hits += engine.serve([engine.key(chunk) for chunk in request.chunks], now)
    return hits


class _Engine:
    """One engine's two halves in front of a core of their own."""

    def __init__(self, capacity: int, policy: str) -> None:
        facts = PoolFacts(
            pool_id=b"",
            boot_epoch=1,
            clear_epoch=0,
            num_slabs=1,
            slab_bytes=capacity * _CHUNK_BYTES,
            slots_per_slab=capacity,
            min_slot_bytes=_CHUNK_BYTES,
        )
        self._core = Core(CoreConfig(eviction_policy=policy), boot=bytes(16), now=0.0, wall=0.0)
        self._core.open_pool(facts, np.zeros(0, FOUND_SLOT), [], 0.0)
        self._core.init_done(0.0)
        self._scheduler = self._register(Role.SCHEDULER)
        self._worker = self._register(Role.WORKER)
        self._session = 0
        self._operation = 0
        self._keys: dict[int | str, bytes] = {}

    def _register(self, role: Role) -> bytes:
        spec = PartySpec(
            party=role.encode().ljust(16, b"\0"),
            role=role,
            group="bench",
            engine="bench",
            model="bench",
            namespace=_NAMESPACE,
            shard=0,
            shard_count=1,
            replica=0,
            replicas=1,
            chunk_bytes=_CHUNK_BYTES if role is Role.WORKER else 0,
        )
        self._core.register(spec, lock_held=True, holds_nothing=True, now=0.0, wall=0.0)
        return spec.party

    def key(self, chunk: int | str) -> bytes:
        """A chunk's key."""
        key = self._keys.get(chunk)
        if key is None:
            key = self._keys[chunk] = hashlib.blake2b(repr(chunk).encode(), digest_size=32).digest()
        return key

    def serve(self, keys: Sequence[bytes], now: float) -> int:
        """One request, to its end; returns the chunks found."""
        self._session += 1
        found = self._core.lookup(self._scheduler, self._session, _NAMESPACE, keys, now, now).chunks
        self._store(keys, found, now)
        self._core.end_session(self._scheduler, self._session, now)
        self._core.take_effects()
        return found

    def _store(self, keys: Sequence[bytes], start: int, now: float) -> None:
        """Store the chunks from ``start`` on, as many at a time as are granted, until nothing more is."""
        while start < len(keys):
            self._operation += 1
            parent = keys[start - 1] if start else b""
            grants, _ = self._core.reserve(self._worker, self._operation, keys[start:], start, parent, now)
            granted = [grant.generation for grant in grants if grant.status is ReserveStatus.GRANTED]
            if not granted:
                return
            self._core.commit(self._worker, self._operation, granted, now)
            start += sum(grant.status in (ReserveStatus.GRANTED, ReserveStatus.EXISTS) for grant in grants)


# -- the optimum


def optimum(requests: Sequence[Request], capacity: int) -> int:
    """Chunks found by who knows the future: the chunk that is wanted last of all goes, or does not come at all.

    Belady, "A study of replacement algorithms for a virtual-storage computer", 1966.
    """
    wanted = [chunk for request in requests for chunk in request.chunks]
    next_use = [_NEVER] * len(wanted)
    later: dict[int | str, int] = {}
    for position in reversed(range(len(wanted))):
        next_use[position] = later.get(wanted[position], _NEVER)
        later[wanted[position]] = position
    hits = 0
    here: dict[int | str, int] = {}  # chunk -> its next use
    furthest: list[tuple[int, int]] = []  # (-next use, a position where the chunk stands); stale once it was used
    for position, chunk in enumerate(wanted):
        if here.pop(chunk, None) is not None:
            hits += 1
        elif len(here) == capacity:
            while here.get(wanted[furthest[0][1]]) != -furthest[0][0]:
                heapq.heappop(furthest)
            if -furthest[0][0] <= next_use[position]:
                continue
            del here[wanted[heapq.heappop(furthest)[1]]]
        here[chunk] = next_use[position]
        heapq.heappush(furthest, (-next_use[position], position))
    return hits
