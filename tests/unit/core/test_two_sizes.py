"""Two models whose chunks differ in size by four share one pool: slabs, shares, and who starves."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.types import FreeHeader, SlotRecord, WriteHeader
from gateway.wire.codes import ReserveStatus
from tests.unit.core.tables import CHUNK_BYTES, HeaderFile, Tables, key, keys

SLAB_CHUNKS = 16  # of the narrow model
LARGE_SLAB_CHUNKS = 64
WIDTH = {"narrow": 1, "wide": 4}


def namespace(model: str) -> bytes:
    return model.encode().rjust(16, b"n")


class Shared(Tables):
    """A core with a worker and a scheduler of each model. ``checks_all``: after each step; else when told."""

    def __init__(self, num_slabs: int, slab_chunks: int = SLAB_CHUNKS, *, checks_all: bool = True) -> None:
        self._checks_all = checks_all
        super().__init__(num_slabs=num_slabs, slab_chunks=slab_chunks)
        self.workers = {
            model: self.worker(model, namespace=namespace(model), chunk_bytes=width * CHUNK_BYTES)
            for model, width in WIDTH.items()
        }
        self.schedulers = {model: self.scheduler(f"s-{model}", namespace=namespace(model)) for model in WIDTH}
        self.number = 0

    def settle(self):
        if self._checks_all:
            return super().settle()
        effects = self.core.take_effects()
        self.file.apply(effects)
        self.file.log.clear()
        return effects

    def next(self) -> int:
        self.number += 1
        return self.number

    def slabs(self, model: str) -> int:
        """Slabs in which the model has a chunk."""
        held = [one.slot for one in self.file.headers.values() if one.namespace == namespace(model)]
        return len({slot // self.slab_chunks for slot in held})


# -- a slab changes its size only when it is wholly free


class WatchedFile(HeaderFile):
    """Sees to it, at every header, that the slab has slots of one size and that no two overlap."""

    def apply(self, effects) -> None:
        for effect in effects:
            match effect:
                case WriteHeader(record):
                    self._fits(record)
                case FreeHeader(slot):
                    assert slot in self.headers, "a header is freed that was not written"
            super().apply([effect])

    def _fits(self, record: SlotRecord) -> None:
        slab, place = divmod(record.slot, SLAB_CHUNKS)
        neighbours = [one for one in self.headers.values() if one.slot // SLAB_CHUNKS == slab]
        assert {one.extent for one in neighbours} <= {record.extent}, "a slab has slots of two sizes"
        assert (place + 1) * record.extent <= SLAB_CHUNKS * CHUNK_BYTES, "a slot goes beyond its slab"


MODELS = st.sampled_from(sorted(WIDTH))
CHUNKS = st.integers(0, 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), MODELS, CHUNKS, st.integers(1, 6)),
        st.tuples(st.just("reserve"), MODELS, CHUNKS, st.integers(1, 6)),
        st.tuples(st.just("abort"), MODELS),
        st.tuples(st.just("hold"), MODELS, CHUNKS),
        st.tuples(st.just("release"), MODELS),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 40.0])),
        st.tuples(
            st.just("restart"),
        ),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_slab_has_slots_of_one_size_whatever_happens(steps) -> None:
    tables = Shared(num_slabs=3)
    tables.file = WatchedFile()
    open_operations: dict[str, list[int]] = {model: [] for model in WIDTH}
    sessions: dict[str, list[int]] = {model: [] for model in WIDTH}
    for step, *values in steps:
        match step:
            case "store":
                model, first, count = values
                tables.store(tables.workers[model], tables.next(), keys(*range(first, first + count)))
            case "reserve":
                model, first, count = values
                open_operations[model].append(tables.next())
                tables.reserve(tables.workers[model], tables.number, keys(*range(first, first + count)))
            case "abort":
                for operation in open_operations[values[0]]:
                    tables.abort(tables.workers[values[0]], operation)
            case "hold":
                model, number = values
                sessions[model].append(tables.next())
                tables.lookup(tables.schedulers[model], tables.number, keys(number), namespace(model))
            case "release":
                for session in sessions[values[0]]:
                    tables.core.end_session(tables.schedulers[values[0]], session, tables.now)
                    tables.settle()
            case "wait":
                tables.wait(values[0])
            case "restart":
                tables.restart()
                for model, width in WIDTH.items():
                    tables.worker(model, namespace=namespace(model), chunk_bytes=width * CHUNK_BYTES)
                    tables.scheduler(f"s-{model}", namespace=namespace(model))


def test_a_slab_goes_when_its_chunks_are_on_average_colder_though_one_is_hot() -> None:
    tables = Shared(num_slabs=2)
    narrow, wide = tables.workers["narrow"], tables.workers["wide"]
    tables.store(narrow, tables.next(), keys(*range(16)))
    tables.wait(10.0)
    tables.store(wide, tables.next(), keys(*range(100, 104)))
    tables.wait(1.0)
    session = tables.next()
    tables.lookup(tables.schedulers["narrow"], session, keys(7), namespace("narrow"))
    refused_while_leased = tables.reserve(wide, tables.next(), keys(110))
    assert [one.status for one in refused_while_leased] == [ReserveStatus.GRANTED], "of its own"
    assert tables.slabs("narrow") == 1
    tables.core.end_session(tables.schedulers["narrow"], session, tables.now)
    tables.settle()
    tables.store(wide, tables.next(), keys(111))
    assert tables.slabs("narrow") == 0


def test_slabs_change_hands_seldom_between_sizes_that_are_used_alike() -> None:
    tables = Shared(8, LARGE_SLAB_CHUNKS, checks_all=False)
    drive(tables, Traffic(bytes_share=0.5), steps=2000)
    evictions = tables.core.counts.evictions
    evictions.clear()

    drive(tables, Traffic(bytes_share=0.5), steps=3000, seed=2)

    assert evictions.get("slab", 0) < 0.15 * evictions["capacity"]


# -- nobody starves


@dataclass
class Traffic:
    """Requests of one chunk each, at random, for twice as many bytes of each model as the pool has.

    Attributes:
        bytes_share: of the wide model in what is asked for.
        scans: the narrow model asks for every chunk once only.
    """

    bytes_share: float
    scans: bool = False


def drive(tables: Shared, traffic: Traffic, steps: int, seed: int = 1) -> dict[str, float]:
    """Ask, and store what is not found, as an engine does; the hit rate of each model."""
    dice = random.Random(seed)
    hits, asked = dict.fromkeys(WIDTH, 0), dict.fromkeys(WIDTH, 0)
    weights = {
        model: share / WIDTH[model]
        for model, share in (("narrow", 1 - traffic.bytes_share), ("wide", traffic.bytes_share))
    }
    for _ in range(steps):
        (model,) = dice.choices(list(weights), weights.values())
        universe = 2 * tables.num_slabs * tables.slab_chunks // WIDTH[model]
        number = tables.number + 10**6 if traffic.scans and model == "narrow" else dice.randrange(universe)
        tables.now += 0.01
        session = tables.next()
        found = tables.lookup(tables.schedulers[model], session, (key(number),), namespace(model))
        tables.core.end_session(tables.schedulers[model], session, tables.now)
        tables.settle()
        if not found:
            tables.store(tables.workers[model], tables.next(), (key(number),))
        hits[model] += found
        asked[model] += 1
    tables.core.check()
    return {model: hits[model] / max(1, asked[model]) for model in WIDTH}


@pytest.mark.parametrize(
    "first", [0.0, 1.0, 0.5], ids=["narrow alone first", "wide alone first", "both from the start"]
)
def test_each_gets_its_share_whoever_was_there_first(first: float) -> None:
    """Half of the bytes asked for: at least a third of the slabs each, and the hit rate of a pool of that size."""
    tables = Shared(8, LARGE_SLAB_CHUNKS, checks_all=False)
    drive(tables, Traffic(bytes_share=first), steps=2000)
    drive(tables, Traffic(bytes_share=0.5), steps=2000)

    rates = drive(tables, Traffic(bytes_share=0.5), steps=2000, seed=2)

    assert {model: tables.slabs(model) for model in WIDTH if tables.slabs(model) < 3} == {}
    assert min(rates.values()) > 0.15  # a quarter is what half of the pool gives for twice its bytes
    assert max(rates.values()) < 2 * min(rates.values())


@pytest.mark.parametrize("bytes_share", [0.2, 0.8])
def test_a_share_follows_the_bytes_that_are_asked_for(bytes_share: float) -> None:
    """At least half of what the model's part of all bytes would give it."""
    tables = Shared(num_slabs=20, checks_all=False)
    drive(tables, Traffic(bytes_share), steps=6000)

    assert tables.slabs("wide") >= 20 * bytes_share / 2
    assert tables.slabs("narrow") >= 20 * (1 - bytes_share) / 2


def test_a_model_that_only_scans_does_not_flush_the_other() -> None:
    """Chunks that are never asked for again take no more than their part of the bytes, and hits go on."""
    tables = Shared(8, LARGE_SLAB_CHUNKS, checks_all=False)
    drive(tables, Traffic(0.5, scans=True), steps=3000)

    rates = drive(tables, Traffic(0.5, scans=True), steps=1500, seed=2)

    assert tables.slabs("wide") >= 3
    assert rates["wide"] > 0.15
