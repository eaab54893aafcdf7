"""What a warm start believes: a plain rereading of the rules, compared with the vectorized scan."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pool.format import SLOT_HEADER_BYTES, SlotHeader, SlotState, decode_slot, encode_slot
from gateway.pool.scan import Scan, scan_headers
from tests.pool.records import LAYOUT, NAMESPACE, SLOT_BYTES, header, key

WRITING, READY = SlotState.WRITING, SlotState.READY


def region(*records: SlotHeader | tuple[int, bytes]) -> bytes:
    """The header table with these headers, or raw bytes at a slot."""
    table = bytearray(LAYOUT.num_slots * SLOT_HEADER_BYTES)
    for record in records:
        slot, raw = (record.slot, encode_slot(record)) if isinstance(record, SlotHeader) else record
        table[slot * SLOT_HEADER_BYTES : slot * SLOT_HEADER_BYTES + len(raw)] = raw
    return bytes(table)


def scan(
    *records: SlotHeader | tuple[int, bytes], clear_epoch: int = 0, epochs: dict[bytes, int] | None = None
) -> Scan:
    return scan_headers(region(*records), LAYOUT, clear_epoch, epochs or {})


def parts(scan: Scan) -> tuple[list[SlotHeader], list[int], list[int], list[int], list[int]]:
    return scan.found.headers(), scan.torn, scan.stale, scan.conflicting, scan.repeated


def test_an_empty_pool_has_nothing() -> None:
    assert parts(scan()) == ([], [], [], [], [])


def test_ready_and_writing_come_back_in_slot_order_with_every_field() -> None:
    found = [header(40, shard=3, depth=9, clear_epoch=2), header(2, state=WRITING), header(63)]
    assert parts(scan(*found)) == (sorted(found, key=lambda h: h.slot), [], [], [], [])


def test_a_full_pool_comes_back() -> None:
    found = [header(slot) for slot in range(LAYOUT.num_slots)]
    assert scan(*found).found.headers() == found


@pytest.mark.parametrize("place", range(124))
def test_a_damaged_header_is_torn(place: int) -> None:
    damaged = bytearray(encode_slot(header(7)))
    damaged[place] ^= 0xFF
    assert parts(scan(header(6), (7, bytes(damaged)), header(8))) == ([header(6), header(8)], [7], [], [], [])


def test_a_good_header_in_a_wrong_place_is_torn() -> None:
    result = scan((3, encode_slot(header(4))), (20, b"\x01"), header(0))
    assert (result.found.headers(), result.torn) == ([header(0)], [3, 20])


@pytest.mark.parametrize(
    "changes",
    [
        {"extent": 0, "payload_bytes": 0, "offset": 65536},
        {"extent": 4097, "offset": 65536 + 4097},
        {"extent": 2**63, "offset": 65536 + 2**63, "payload_bytes": 1},
        {"extent": 2**64 - 4096, "offset": 65536 - 4096},
        {"extent": 65536, "offset": 131072},
        {"offset": 65536},
        {"payload_bytes": 4097},
    ],
)
def test_arithmetic_that_does_not_hold_is_torn(changes: dict[str, int]) -> None:
    assert scan(header(17, **changes)).torn == [17]


def test_cleared_chunks_do_not_come_back_but_reservations_do() -> None:
    old, new = header(1, clear_epoch=4), header(2, clear_epoch=5)
    writing = header(3, clear_epoch=4, state=WRITING)
    result = scan(old, new, writing, clear_epoch=5, epochs={NAMESPACE: 5})
    assert (result.found.headers(), result.stale) == ([new, writing], [1])


def test_a_clear_of_one_namespace_leaves_the_others() -> None:
    kept, cleared = header(1, namespace=b"k" * 16), header(2, namespace=b"c" * 16)
    forgotten = header(3, namespace=b"f" * 16)
    result = scan(kept, cleared, forgotten, clear_epoch=5, epochs={b"k" * 16: 0, b"c" * 16: 5})
    assert (result.found.headers(), result.stale) == ([kept], [2, 3])
    assert scan(kept, cleared, forgotten, clear_epoch=0).found.headers() == [kept, cleared, forgotten]


def test_members_of_an_overlap_are_all_dropped_and_other_slabs_stay() -> None:
    small, large = header(2), header(1, extent=2 * SLOT_BYTES)
    assert small.offset == large.offset
    result = scan(header(17), small, large, header(33, extent=4 * SLOT_BYTES))
    assert (result.found.headers(), result.conflicting) == ([header(17), header(33, extent=4 * SLOT_BYTES)], [1, 2])


def test_where_a_slab_disagrees_the_newest_writer_stays_quarantined() -> None:
    writing = header(2, state=WRITING, generation=90)
    same = header(5, state=WRITING, generation=80)
    other = header(0, extent=2 * SLOT_BYTES, state=WRITING, generation=70)
    ready = header(3, extent=2 * SLOT_BYTES, generation=99)
    result = scan(writing, same, other, ready)
    assert (result.found.headers(), result.conflicting) == ([writing, same], [0, 3])


def test_a_stale_header_is_no_reason_to_drop_its_slab() -> None:
    stale = header(2, extent=2 * SLOT_BYTES, clear_epoch=0)
    fresh = header(3, clear_epoch=1)
    result = scan(stale, fresh, clear_epoch=1, epochs={NAMESPACE: 1})
    assert (result.found.headers(), result.stale, result.conflicting) == ([fresh], [2], [])


def test_of_two_ready_slots_of_one_key_the_higher_generation_stays() -> None:
    same = [header(slot, key=key(1), generation=generation) for slot, generation in ((4, 7), (20, 9), (50, 8))]
    apart = [
        header(5, key=key(1), shard=1),
        header(6, key=key(1), namespace=b"m" * 16),
        header(7, key=key(1), state=WRITING, generation=99),
        header(8, key=key(1)[:-1] + b"\2"),
    ]
    result = scan(*same, *apart)
    assert (result.found.headers(), result.repeated) == (sorted([same[1], *apart], key=lambda h: h.slot), [4, 50])


def test_keys_that_share_words_are_told_apart() -> None:
    # Alike in the word that the scan compares first, unlike in another.
    one, other = b"\0" * 31 + b"\1", b"\0" * 31 + b"\2"
    assert scan(header(1, key=one), header(2, key=other)).repeated == []


records = st.dictionaries(
    st.integers(0, LAYOUT.num_slots - 1),
    st.tuples(
        st.sampled_from([WRITING, READY]),
        st.sampled_from([1, 1, 1, 2, 16]),  # extent in units
        st.integers(0, 3),  # key
        st.integers(0, 1),  # shard
        st.integers(0, 2),  # clear epoch
        st.integers(0, 50),  # generation
        st.sampled_from([-1, -1, -1, -1, 0, 30, 100]),  # damaged byte
    ),
    max_size=12,
)


@given(records, st.integers(0, 2), st.integers(0, 2))
def test_the_scan_follows_the_rules(chosen: dict[int, tuple], page_epoch: int, namespace_epoch: int) -> None:
    raw: list[tuple[int, bytes]] = []
    for slot, (state, units, number, shard, epoch, generation, damage) in chosen.items():
        record = bytearray(
            encode_slot(
                header(
                    slot,
                    extent=units * SLOT_BYTES,
                    state=state,
                    key=key(number),
                    shard=shard,
                    clear_epoch=epoch,
                    generation=generation * LAYOUT.num_slots + slot,
                )
            )
        )
        if damage >= 0:
            record[damage] ^= 0x40
        raw.append((slot, bytes(record)))
    epoch_of = {NAMESPACE: min(page_epoch, namespace_epoch)}
    result = scan(*raw, clear_epoch=page_epoch, epochs=epoch_of)

    standing, torn, stale = [], [], []
    for slot, record in sorted(raw):
        found = decode_slot(record, slot)
        if found is None or not LAYOUT.fits(found):
            torn.append(slot)
        elif found.is_ready and found.clear_epoch < epoch_of[NAMESPACE]:
            stale.append(slot)
        else:
            standing.append(found)
    slabs = defaultdict(list)
    for found in standing:
        slabs[found.slot // LAYOUT.slots_per_slab].append(found)
    conflicting = set()
    for members in slabs.values():
        if len({member.extent for member in members}) > 1:
            writers = [member for member in members if not member.is_ready]
            extent = max(writers, key=lambda w: w.generation).extent if writers else None
            conflicting |= {m.slot for m in members if m.is_ready or m.extent != extent}
    standing = [found for found in standing if found.slot not in conflicting]
    latest: dict[tuple, SlotHeader] = {}
    for found in standing:
        name = (found.namespace, found.shard, found.key)
        if found.is_ready and (name not in latest or latest[name].generation < found.generation):
            latest[name] = found
    kept = [f for f in standing if not f.is_ready or latest[f.namespace, f.shard, f.key] is f]
    repeated = [f.slot for f in standing if f not in kept]
    assert parts(result) == (kept, torn, stale, sorted(conflicting), repeated)
