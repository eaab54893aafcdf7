"""Where fuzzing begins: the samples of the wire protocol, a conversation, and a pool with one of everything in it.

After a change of the protocol or of the pool's format run this file as a program: it writes the seeds that are missing.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gateway.pool.format import (
    HeaderPage,
    Layout,
    NamespaceEntry,
    SlotState,
    encode_namespace,
    encode_page,
    encode_slot,
)
from gateway.wire import codec, messages
from tests.fuzz.targets import record
from tests.pool.records import header
from tests.wire.samples import BOOT, KEYS, PARTY, REPLIES, REQUESTS

CORPUS = Path(__file__).parent / "corpus"
SLOT_BYTES = 4096
LAYOUT = Layout(4, 256 << 10, SLOT_BYTES)  #: of the pool that ``Served`` opens
OURS, MENDED = 2, 128


def write_seeds(name: str) -> None:
    """Write the seeds of a target that its corpus lacks."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for seed in _SEEDS[name]():
        path = folder / hashlib.sha256(seed).hexdigest()[:16]
        if not path.exists():
            path.write_bytes(seed)


def _wire_requests() -> Iterable[bytes]:
    return [codec.encode(message) for message in REQUESTS]


def _wire_replies() -> Iterable[bytes]:
    return [codec.encode(message) for message in REPLIES]


def _conversations() -> Iterable[bytes]:
    namespace = b"n" * 16
    of_party = {"number": 1, "boot": BOOT, "party": PARTY}
    register = messages.Register(
        **of_party,
        role="worker",
        group="g",
        engine="e",
        model="m",
        namespace=namespace,
        chunk_bytes=SLOT_BYTES,
        shard_count=1,
        chunk_tokens=256,
    )
    look = msgspec.structs.replace(register, role="scheduler")
    reserve = messages.Reserve(**of_party, operation=1, keys=KEYS)
    read = messages.Read(**of_party, operation=2, keys=KEYS)
    lookup = messages.Lookup(**of_party, session=1, namespace=namespace, keys=KEYS)
    ping = messages.Ping(**of_party, next_operation=3, operations=(1, 2))
    drain = messages.Drain(number=1, boot=BOOT, requested_by="t", deadline_seconds=1.0)
    resume = messages.Resume(number=1, boot=BOOT, requested_by="t")
    clear = messages.Clear(number=1, boot=BOOT, requested_by="t", all=True)
    fence = messages.Fence(number=1, boot=BOOT, requested_by="t", engine="e")
    abort = messages.Abort(**of_party, operation=1)
    rows = (
        (register, reserve, ping, abort, read),
        (register, reserve, drain, ping, resume, reserve, clear, fence),
        (look, lookup, ping, drain, lookup, messages.EndSession(**of_party, session=1)),
    )
    told = [b"".join(record(OURS | 1, 1, codec.encode(message)) for message in row) for row in rows]
    return [*told, *(record(OURS | 1, 0, codec.encode(message)) for message in REQUESTS)]


def _pools() -> Iterable[bytes]:
    layout = LAYOUT
    page = encode_page(HeaderPage(b"i" * 16, layout, 3, 1, 9))
    name = encode_namespace(NamespaceEntry(b"n" * 16, "model", 1, 256, 1), 5)

    def slot(index: int, **changes: object) -> bytes:
        return record(2 | MENDED, index, encode_slot(header(index, layout=layout, **changes))[:120])

    ready, writing = slot(0), slot(1, state=SlotState.WRITING)
    coarse = slot(64, extent=4 * SLOT_BYTES)
    misplaced = slot(4, offset=7 * SLOT_BYTES) + slot(5, payload_bytes=2 * SLOT_BYTES)
    repeated = slot(2, key=b"\1" * 32) + slot(3, key=b"\1" * 32)
    from_later, twice = slot(6, generation=1 << 63), slot(7, generation=5) + slot(8, generation=5)
    names, pages = record(1 | MENDED, 0, name[:504]), record(0 | MENDED, 1, page[:80])
    return [
        ready + writing,
        misplaced,
        from_later,
        twice,
        coarse + slot(65),
        repeated,
        names + ready,
        pages + ready,
        record(2, 0, b"\xff" * 128),
    ]


_SEEDS = {"wire_request": _wire_requests, "wire_reply": _wire_replies, "service": _conversations, "pool": _pools}


if __name__ == "__main__":
    for each in _SEEDS:
        write_seeds(each)
