"""What is fuzzed: every place where bytes of another process, or of a torn file, become values.

A target takes any bytes and returns. It raises only where the code under it breaks a promise: an exception that is
not the typed one, a value that does not survive its own encoding, a table that no longer adds up.
"""

import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from gateway.lock import DeathLock, party_offset
from gateway.pool.format import (
    NAMESPACE_ENTRIES,
    NAMESPACE_ENTRY_BYTES,
    NAMESPACE_OFFSET,
    PAGE_BYTES,
    SLOT_CHECKED_BYTES,
    SLOT_HEADER_BYTES,
    SLOT_HEADERS_OFFSET,
    SlotState,
)
from gateway.wire import codec, messages
from tests.support.served import BOOT, Served
from tests.wire import samples

Target = Callable[[bytes], None]

_PAGE_RECORD_BYTES = 80  # of a header page: what its checksum covers
_NAMESPACE_RECORD_BYTES = 504  # the same of a namespace's entry
_MAX_RECORDS = 64


def wire_request(data: bytes) -> None:
    """A frame as the daemon reads it: a typed error, or a request that encodes to what reads the same again."""
    try:
        request = codec.decode_request(data)
    except codec.WireError:
        return
    assert codec.decode_request(codec.encode(request)) == request


def wire_reply(data: bytes) -> None:
    """A frame as an adapter reads it."""
    try:
        reply = codec.decode_reply(data)
    except codec.WireError:
        return
    assert codec.decode_reply(codec.encode(reply)) == reply


def service(data: bytes) -> None:
    """A conversation: replies are readable and none says that we failed, and every table adds up at the end.

    The input is a row of records: how the frame comes in (1), how many seconds later (1), its length (2), the frame.
    """
    with tempfile.TemporaryDirectory(prefix="kvgate-fuzz-", dir="/dev/shm") as directory:
        served = Served(Path(directory))
        lock = DeathLock.take(served.pool.path, party_offset(samples.PARTY))
        try:
            served.core.init_done(served.now)
            for how, seconds, frame in _records(data):
                served.now += seconds / 16
                # Most frames are meant for this boot; the sample frames name another, which is refused early.
                meant = frame.replace(samples.BOOT, BOOT) if how & 2 else frame
                replies: list[bytes] = []
                replies.append(served.service.answer(meant, is_admin=bool(how & 1), later=replies.append))
                for answer in filter(None, replies):
                    reply = codec.decode_reply(answer)
                    assert getattr(reply, "code", "") != "internal", reply
            served.core.check()
        finally:
            lock.close()
            served.close()


def pool(data: bytes) -> None:
    """A start on a damaged file: what comes back are whole chunks at their places, and every table adds up.

    The input is a row of records: which region and whether its checksum is set right (1), which place (1), its length
    (2), and the bytes that lie there.
    """
    with tempfile.TemporaryDirectory(prefix="kvgate-fuzz-", dir="/dev/shm") as directory:
        Served(Path(directory)).close()
        damaged = os.open(Path(directory) / "pool", os.O_RDWR)
        for how, place, content in _records(data):
            _lay(damaged, how, place, content)
        os.close(damaged)
        served = Served(Path(directory))
        try:
            served.ask(messages.Ping(number=0))  # what the start has decided is written with the first reply
            served.core.check()
            found = served.pool.scan().headers()
            for header in found:
                assert served.pool.layout.fits(header), header
            ready = [(h.namespace, h.shard, h.key) for h in found if h.state is SlotState.READY]
            assert len(set(ready)) == len(ready)
            assert served.core.slot_counts()["ready"] == len(ready)
        finally:
            served.close()


TARGETS: dict[str, Target] = {each.__name__: each for each in (wire_request, wire_reply, service, pool)}


def record(how: int, place: int, content: bytes) -> bytes:
    """One record of an input of ``service`` or ``pool``."""
    return bytes((how, place)) + len(content).to_bytes(2, "little") + content


def _records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    view, at = memoryview(data), 0
    for _ in range(_MAX_RECORDS):
        if at + 4 > len(data):
            return
        length = int.from_bytes(view[at + 2 : at + 4], "little")
        yield view[at], view[at + 1], bytes(view[at + 4 : at + 4 + length])
        at += 4 + length


def _lay(fd: int, how: int, place: int, content: bytes) -> None:
    """Write a record's content where it belongs; without a right checksum nearly none would be looked at."""
    region, is_mended = how & 3, bool(how & 128)
    if region == 0:
        size, checked, start = PAGE_BYTES, _PAGE_RECORD_BYTES, place % 2 * PAGE_BYTES
    elif region == 1:
        size, checked = NAMESPACE_ENTRY_BYTES, _NAMESPACE_RECORD_BYTES
        start = NAMESPACE_OFFSET + place % NAMESPACE_ENTRIES * size
    else:
        size, checked, start = SLOT_HEADER_BYTES, SLOT_CHECKED_BYTES, SLOT_HEADERS_OFFSET + place * SLOT_HEADER_BYTES
    content = content[:size]
    if is_mended:
        content = content.ljust(checked, b"\0")[:checked]
        content += zlib.crc32(content).to_bytes(4, "little")
    os.pwrite(fd, content, start)
