"""SIGKILL in the middle of writes: every header is the old one, the new one, or torn, and never a mixture."""

import os
import subprocess
import sys
from pathlib import Path

from gateway.lock import LockHeldError
from gateway.pool.file import PoolFile
from gateway.pool.format import SLOT_HEADER_BYTES, NamespaceEntry, SlotHeader, decode_slot
from tests.pool.records import LAYOUT, NAMESPACE, header, open_pool
from tests.support.poll import until

ROUNDS = 20
SLOTS = 8

# Rewrites the first slots, the header page and one namespace as fast as it can. Which version a record has can be
# told from every field of it. Says so on stdout once the first round is through.
WRITER = """
import sys
from tests.pool.test_pool_kill import entry, open_pool, version
pool = open_pool(sys.argv[1])
number = 0
while True:
    number += 1
    for slot in range(8):
        pool.write_slot(version(slot, number))
    pool.write_clear_epoch(number)
    pool.write_namespace(entry(number))
    if number == 1:
        print("begun", flush=True)
"""


def version(slot: int, number: int) -> SlotHeader:
    """Header ``number`` of a slot: all of it follows from the two numbers."""
    word = number.to_bytes(16, "little")
    return header(
        slot,
        owner=word,
        key=(number * SLOTS + slot).to_bytes(32, "little"),
        shard=number % 2**32,
        depth=number % 2**32,
        payload_bytes=number % 4096,
        generation=number,
        clear_epoch=2**60 + number,  # never older than the header page's
    )


def entry(number: int) -> NamespaceEntry:
    return NamespaceEntry(NAMESPACE, f"model {number}", number, number, 0)


def test_killed_writers_leave_no_mixture(path: Path) -> None:
    for round_number in range(1, ROUNDS + 1):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"begun\n"
            # Let it write a while: as long as it takes for its last slot to change a few times.
            seen: set[bytes] = set()
            until(lambda seen=seen: seen.add(raw_header(path, SLOTS - 1)) or len(seen) > 3)
        finally:
            process.kill()
            process.communicate()
        raw = [raw_header(path, slot) for slot in range(SLOTS)]
        numbers = []
        for slot, record in enumerate(raw):
            found = decode_slot(record, slot)
            if found is not None:
                assert found == version(slot, found.generation)
                numbers.append(found.generation)
        assert len(numbers) >= SLOTS - 1, "one write was cut, the others had ended"
        assert max(numbers) - min(numbers) <= 1

        pool = reopened(path)
        # Each round has two starts, the writer's and this one, and neither is lost.
        assert pool.boot_epoch == 2 * round_number
        assert max(numbers) - 1 <= pool.clear_epoch <= max(numbers)
        assert pool.namespaces() in ([], [entry(pool.clear_epoch)], [entry(pool.clear_epoch - 1)])
        whole = [slot for slot in range(SLOTS) if decode_slot(raw[slot], slot)]
        assert pool.scan().slots.tolist() == whole
        pool.close()


def raw_header(path: Path, slot: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, SLOT_HEADER_BYTES, LAYOUT.header_offset(slot))
    finally:
        os.close(fd)


def reopened(path: Path) -> PoolFile:
    """The pool after its daemon was killed: the kernel may need a moment before the lock is free."""

    def attempt() -> PoolFile | None:
        try:
            return open_pool(path)
        except LockHeldError:
            return None

    pool = until(attempt)
    assert pool is not None
    return pool
