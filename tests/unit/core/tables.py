"""A core with a clock one can move, short ways to make parties, and a pool file that remembers headers only."""

from collections.abc import Iterable

import numpy as np

from gateway.core.core import Core
from gateway.core.types import (
    FOUND_SLOT,
    CoreConfig,
    Effect,
    FoundSlots,
    FreeHeader,
    NamespaceRecord,
    PartySpec,
    PoolFacts,
    SlotRecord,
    WriteClearEpoch,
    WriteHeader,
    WriteNamespace,
)
from gateway.wire.codes import CommitStatus, Lifecycle, ReserveStatus, Role

NAMESPACE = b"n" * 16
CHUNK_BYTES = 4096
POOL_ID = b"p" * 16


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def keys(*numbers: int) -> tuple[bytes, ...]:
    return tuple(key(number) for number in numbers)


def party_id(name: str) -> bytes:
    return name.encode().rjust(16, b"\0")


def found(records: Iterable[SlotRecord]) -> FoundSlots:
    return np.array(list(records), FOUND_SLOT)


class HeaderFile:
    """What a pool file would hold after every effect so far."""

    def __init__(self) -> None:
        self.headers: dict[int, SlotRecord] = {}
        self.namespaces: dict[bytes, NamespaceRecord] = {}
        self.clear_epoch = 0
        self.log: list[Effect] = []

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            self.log.append(effect)
            match effect:
                case WriteHeader(record):
                    self.headers[record.slot] = record
                case FreeHeader(slot):
                    self.headers.pop(slot, None)
                case WriteClearEpoch(epoch):
                    self.clear_epoch = epoch
                case WriteNamespace(record):
                    self.namespaces[record.namespace] = record


class Tables:
    """A core under test. Every step moves through ``do``, so that effects reach the file and invariants are checked."""

    def __init__(
        self, num_slabs: int = 1, slab_chunks: int = 8, *, state: Lifecycle = Lifecycle.READY, **config
    ) -> None:
        config.setdefault("max_reserved_fraction", 1.0)
        self.config = CoreConfig(**config)
        self.num_slabs = num_slabs
        self.slab_chunks = slab_chunks
        self.file = HeaderFile()
        self.boot_epoch = 0
        self.now = 100.0
        self.start()
        if state is Lifecycle.READY:
            self.core.init_done(self.now)

    @property
    def wall(self) -> float:
        return self.now + 1_000_000.0

    def start(self) -> int:
        self.boot_epoch += 1
        self.core = Core(self.config, boot=self.boot_epoch.to_bytes(16, "big"), now=self.now, wall=self.wall)
        facts = PoolFacts(
            pool_id=POOL_ID,
            boot_epoch=self.boot_epoch,
            clear_epoch=self.file.clear_epoch,
            num_slabs=self.num_slabs,
            slab_bytes=self.slab_chunks * CHUNK_BYTES,
            slots_per_slab=self.slab_chunks,
            min_slot_bytes=CHUNK_BYTES,
        )
        records = found(self.file.headers[slot] for slot in sorted(self.file.headers))
        recovered = self.core.open_pool(facts, records, list(self.file.namespaces.values()), self.now)
        self.settle()
        return recovered

    def restart(self) -> int:
        recovered = self.start()
        self.core.init_done(self.now)
        return recovered

    def settle(self) -> list[Effect]:
        effects = self.core.take_effects()
        self.file.apply(effects)
        self.core.check()
        return effects

    # -- parties

    def spec(self, name: str, **facts) -> PartySpec:
        values = {
            "party": party_id(name),
            "role": Role.WORKER,
            "group": "g",
            "engine": "e",
            "model": "m",
            "namespace": NAMESPACE,
            "shard": 0,
            "shard_count": 1,
            "replica": 0,
            "replicas": 1,
            "chunk_bytes": CHUNK_BYTES,
        }
        if facts.get("role") is Role.SCHEDULER:
            values["chunk_bytes"] = 0
        return PartySpec(**{**values, **facts})

    def register(self, spec: PartySpec, *, lock_held: bool = True, holds_nothing: bool = True) -> bytes:
        self.core.register(spec, lock_held=lock_held, holds_nothing=holds_nothing, now=self.now, wall=self.wall)
        self.settle()
        return spec.party

    def worker(self, name: str = "w", **facts) -> bytes:
        return self.register(self.spec(name, **facts))

    def scheduler(self, name: str = "s", **facts) -> bytes:
        return self.register(self.spec(name, role=Role.SCHEDULER, **facts))

    # -- steps

    def reserve(self, party: bytes, operation: int, wanted, *, depth: int = 0, parent: bytes = b""):
        grants, _ = self.core.reserve(party, operation, tuple(wanted), depth, parent, self.now)
        self.settle()
        return grants

    def commit(self, party: bytes, operation: int, *generations: int) -> tuple[CommitStatus, ...]:
        result = self.core.commit(party, operation, generations, self.now)
        self.settle()
        return result.statuses

    def abort(self, party: bytes, operation: int, *generations: int) -> None:
        self.core.abort(party, operation, generations, self.now)
        self.settle()

    def store(self, party: bytes, operation: int, wanted, **place) -> list[int]:
        """Reserve and commit; the slots that were written."""
        granted = [
            one for one in self.reserve(party, operation, wanted, **place) if one.status is ReserveStatus.GRANTED
        ]
        statuses = self.commit(party, operation, *(one.generation for one in granted))
        assert set(statuses) <= {CommitStatus.COMMITTED}
        return [one.slot for one in granted]

    def lookup(self, party: bytes, session: int, wanted, namespace: bytes = NAMESPACE) -> int:
        found = self.core.lookup(party, session, namespace, tuple(wanted), self.now, self.wall)
        self.settle()
        return found.chunks

    def read(self, party: bytes, operation: int, wanted):
        grants, _ = self.core.read(party, operation, tuple(wanted), self.now, self.wall)
        self.settle()
        return grants

    def end_read(self, party: bytes, operation: int) -> None:
        self.core.end_read(party, operation, self.now)
        self.settle()

    def heartbeat(self, party: bytes, *, next_operation=0, operations=(), next_session=0, sessions=()):
        view = self.core.heartbeat(
            party,
            next_operation=next_operation,
            operations=operations,
            next_session=next_session,
            sessions=sessions,
            now=self.now,
            wall=self.wall,
        )
        self.settle()
        return view

    def die(self, party: bytes) -> None:
        self.core.party_died(party, self.now)
        self.settle()

    def drain(self, deadline_seconds: float | None = None, *, exits: bool = False, flush: bool = False) -> bool:
        already = self.core.drain(
            deadline_seconds=deadline_seconds,
            reason="test",
            requested_by="tests",
            flush=flush,
            exit=exits,
            now=self.now,
            wall=self.wall,
        )
        self.settle()
        return already

    def resume(self) -> None:
        self.core.resume(self.now, self.wall)
        self.settle()

    def clear(self, *, model: str = "", namespace: bytes = b"", everything: bool = False, dry_run: bool = False):
        result = self.core.clear(model=model, namespace=namespace, all=everything, dry_run=dry_run, now=self.now)
        self.settle()
        return result

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.core.tick(self.now, self.wall)
        self.settle()

    # -- readings

    def counts(self) -> tuple[int, int, int]:
        """READY, WRITING and quarantined slots."""
        counts = self.core.slot_counts()
        return counts["ready"], counts["writing"], counts["quarantined"]

    def stored(self) -> set[int]:
        """Numbers of the keys whose header in the file is READY. Asking touches nothing."""
        return {int.from_bytes(one.key, "big") for one in self.file.headers.values() if one.is_ready}
