"""The daemon's side over real files: cold and warm starts, what is set aside, who may own it."""

import mmap
import os
import stat
import threading
from pathlib import Path

import pytest

from gateway.lock import DeathLock, LockHeldError, LockObserver, daemon_offset, party_offset
from gateway.pool.file import PoolFile
from gateway.pool.format import (
    MAGIC,
    NAMESPACE_ENTRIES,
    NAMESPACE_ENTRY_BYTES,
    NAMESPACE_OFFSET,
    NamespaceEntry,
    SlotState,
)
from gateway.pool.mapping import PoolMapping
from tests.pool.records import LAYOUT, NAMESPACE, SLAB_BYTES, header, open_pool

PARTY = party_offset(b"p" * 16)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def test_a_new_pool_is_empty_locked_and_of_its_size(pool: PoolFile, path: Path) -> None:
    assert names(path) == ["pool"]
    assert path.stat().st_size == LAYOUT.file_bytes
    assert (pool.num_slabs, pool.slab_bytes, pool.slots_per_slab, pool.min_slot_bytes) == (4, 65536, 16, 4096)
    assert (pool.data_bytes, pool.boot_epoch, pool.clear_epoch, pool.notes) == (4 * SLAB_BYTES, 1, 0, [])
    assert len(pool.pool_id) == 16
    assert pool.scan().headers() == []
    assert pool.namespaces() == []
    observer = LockObserver.open(path)
    assert observer.is_held(daemon_offset())
    assert pool.lock.inode == observer.inode
    observer.close()


def test_bytes_beyond_the_last_slab_are_not_used(path: Path) -> None:
    pool = open_pool(path, data_bytes=3 * SLAB_BYTES + 5)
    assert pool.data_bytes == 3 * SLAB_BYTES
    pool.close()


@pytest.mark.parametrize(
    "sizes", [{"data_bytes": SLAB_BYTES - 1}, {"slab_bytes": 0}, {"slab_bytes": -1}, {"min_slot_bytes": 5000}]
)
def test_sizes_that_do_not_fit_make_no_file(path: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        open_pool(path, **sizes)
    assert names(path) == []


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_permissions_do_not_depend_on_the_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        pool = open_pool(path, file_mode=0o660, group=os.getgid())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    pool.close()
    open_pool(path, file_mode=0o600).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_warm_start_finds_what_was_written_under_a_new_boot_epoch(path: Path) -> None:
    pool = open_pool(path)
    pool_id = pool.pool_id
    written = [header(0), header(9, state=SlotState.WRITING), header(17, extent=8192, clear_epoch=1)]
    for slot in written:
        pool.write_slot(slot)
    pool.write_slot(header(20))
    pool.free_slot(20)
    entry = NamespaceEntry(NAMESPACE, "llama", 2, 256, 0)
    pool.write_namespace(entry)
    pool.write_clear_epoch(1)
    pool.close()
    for boot_epoch in (2, 3):
        pool = open_pool(path)
        assert (pool.pool_id, pool.boot_epoch, pool.clear_epoch) == (pool_id, boot_epoch, 1)
        assert pool.scan().headers() == written
        assert pool.namespaces() == [entry]
        assert pool.notes == []
        pool.close()


def test_the_scan_frees_what_it_drops_and_says_why(path: Path) -> None:
    pool = open_pool(path)
    pool.write_slot(header(0, clear_epoch=0))
    pool.write_slot(header(1, clear_epoch=1, key=b"k" * 32, generation=5))
    pool.write_slot(header(2, clear_epoch=1, key=b"k" * 32, generation=6))
    pool.write_slot(header(18))
    pool.write_slot(header(17, extent=8192))
    pool.write_slot(header(40))
    pool.write_namespace(NamespaceEntry(NAMESPACE, "llama", 1, 256, clear_epoch=1))
    pool.write_clear_epoch(1)
    pool.close()
    with path.open("r+b") as file:
        file.seek(LAYOUT.header_offset(40) + 30)
        file.write(b"\xff")
    pool = open_pool(path)
    assert [found.slot for found in pool.scan().headers()] == [2]
    assert [note.split(" slots are freed: ")[0] for note in pool.notes] == ["1", "3", "1"], pool.notes
    assert [found.slot for found in pool.scan().headers()] == [2]
    assert len(pool.notes) == 3, "a second look finds them free"
    pool.close()


def test_a_header_that_does_not_fit_is_never_written(pool: PoolFile) -> None:
    for wrong in (header(3, offset=0), header(3, payload_bytes=8192), header(3, key=b"short")):
        with pytest.raises(ValueError):
            pool.write_slot(wrong)
    for slot in (-1, LAYOUT.num_slots):
        with pytest.raises(IndexError):
            pool.free_slot(slot)
    assert pool.scan().headers() == []


def test_namespaces_are_updated_in_place_and_the_oldest_is_forgotten_when_full(path: Path) -> None:
    pool = open_pool(path)
    entries = [NamespaceEntry(i.to_bytes(16, "big"), f"model {i}", 1, 256) for i in range(NAMESPACE_ENTRIES)]
    for entry in entries:
        pool.write_namespace(entry)
    renewed = NamespaceEntry(entries[0].namespace, "renamed", 4, 512, 7)
    pool.write_namespace(renewed)
    pool.write_namespace(renewed)
    newest = NamespaceEntry(b"x" * 16, "newest", 1, 256)
    pool.write_namespace(newest)
    expected = [*entries[2:], renewed, newest]
    assert pool.namespaces() == expected
    pool.close()
    pool = open_pool(path)
    assert pool.namespaces() == expected
    pool.close()


def test_a_torn_namespace_is_forgotten_and_its_place_used_again(path: Path) -> None:
    pool = open_pool(path)
    entries = [NamespaceEntry(letter * 16, "m", 1, 256) for letter in (b"a", b"b", b"c")]
    for entry in entries:
        pool.write_namespace(entry)
    pool.close()
    with path.open("r+b") as file:
        file.seek(NAMESPACE_OFFSET + NAMESPACE_ENTRY_BYTES + 20)
        file.write(b"\xff\xff")
    pool = open_pool(path)
    assert pool.namespaces() == [entries[0], entries[2]]
    pool.write_namespace(entries[1])
    pool.close()
    pool = open_pool(path)
    assert pool.namespaces() == [entries[0], entries[2], entries[1]]
    pool.close()


def test_a_second_daemon_is_refused_and_changes_nothing(pool: PoolFile, path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(LockHeldError):
        open_pool(path)
    with pytest.raises(LockHeldError):
        open_pool(path, num_slabs=9)
    assert path.read_bytes() == before
    assert names(path) == ["pool"]


def test_of_many_that_start_at_once_one_gets_it(path: Path) -> None:
    results: list[PoolFile | Exception] = []
    barrier = threading.Barrier(8)

    def start(num_slabs: int) -> None:
        barrier.wait()
        try:
            results.append(open_pool(path, num_slabs=num_slabs))
        except LockHeldError as error:
            results.append(error)

    threads = [threading.Thread(target=start, args=(4 + i % 2,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [result for result in results if isinstance(result, PoolFile)]
    assert len(results) == 8
    assert len(winners) == 1
    assert (winners[0].lock.inode[1], names(path)) == (path.stat().st_ino, ["pool"])
    winners[0].close()


def unfit(kind: str, path: Path) -> None:
    """Put a file at ``path`` that cannot be used."""
    if kind == "garbage":
        path.write_bytes(b"\xc3garbage" * 20_000)
    elif kind == "empty":
        path.touch()
    elif kind == "format":
        path.write_bytes(MAGIC + (9).to_bytes(4, "little") + bytes(100_000))
    else:
        pool = open_pool(path, num_slabs=LAYOUT.num_slabs + (kind == "layout"))
        pool.write_slot(header(1))
        pool.close()
        if kind == "size":
            with path.open("ab") as file:
                file.write(b"more")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("garbage", "no pool of kvgate"),
        ("empty", "no pool of kvgate"),
        ("format", "pool format 9, expected pool format 1"),
        ("layout", "found 5 slabs of"),
        ("size", "bytes, expected"),
    ],
)
def test_an_unfit_file_is_set_aside_whole_and_removed_when_nobody_uses_it(path: Path, kind: str, why: str) -> None:
    unfit(kind, path)
    inode, content = path.stat().st_ino, path.read_bytes()
    pool = open_pool(path)
    aside = path.with_name("pool.set-aside.1")
    assert names(path) == ["pool", aside.name]
    assert (aside.stat().st_ino, aside.read_bytes()) == (inode, content), "it is not touched before it is discarded"
    assert len(pool.notes) == 1
    assert why in pool.notes[0]
    assert aside.name in pool.notes[0]
    assert pool.boot_epoch == 1
    assert pool.scan().headers() == []
    observer = LockObserver.open(path)
    assert observer.is_held(daemon_offset())
    observer.close()
    assert pool.discard_set_aside() == 0
    assert names(path) == ["pool"]
    pool.close()


def test_memory_of_a_file_set_aside_is_freed_only_when_no_party_holds_it_and_nobody_faults(path: Path) -> None:
    pool = open_pool(path)
    pool.write_slot(header(1))
    lock = DeathLock.take(path, PARTY)
    mapping = PoolMapping.open(path)
    with mapping.data(0, mapping.data_bytes) as data:
        data[:] = b"\xab" * len(data)
    pool.close()

    pool = open_pool(path, num_slabs=8)
    aside = path.with_name("pool.set-aside.1")
    assert not mapping.is_current()
    assert pool.discard_set_aside() == 1
    assert aside.exists()
    assert mapping.read_header(1) == header(1), "while its lock is held an engine finds what it had"
    with mapping.data(0, 4) as data:
        assert bytes(data) == b"\xab" * 4

    old = os.open(aside, os.O_RDONLY)
    lock.close()
    assert pool.discard_set_aside() == 0
    assert names(path) == ["pool"]
    assert os.fstat(old).st_blocks == 0, "its memory is free although it is still mapped"
    assert os.fstat(old).st_size == LAYOUT.file_bytes
    assert mapping.read_header(1) is None
    with mapping.data(0, mapping.data_bytes) as data:
        assert not any(data)
        data[:4] = b"late"  # no SIGBUS
    os.close(old)
    mapping.close()
    pool.close()


def test_large_files_set_aside_are_freed_over_several_calls(path: Path) -> None:
    pool = open_pool(path, num_slabs=64)
    pool.reserve_memory(lambda _: None, lambda: False)
    pool.close()
    size = path.stat().st_size
    pool = open_pool(path)
    aside = path.with_name("pool.set-aside.1")
    allocated = []
    for _ in range(20):
        if not aside.exists():
            break
        allocated.append(aside.stat().st_blocks * 512)
        pool._claim.discard_set_aside(1 << 20)
    assert allocated == [max(0, size - (i << 20)) for i in range(len(allocated))]
    assert len(allocated) == -(-size // (1 << 20))
    pool.close()


def test_memory_is_freed_before_it_is_reserved(path: Path) -> None:
    open_pool(path, num_slabs=5).close()
    lock = DeathLock.take(path, PARTY)
    open_pool(path, num_slabs=6).close()
    pool = open_pool(path)
    pool.reserve_memory(lambda _: None, lambda: False)
    assert names(path) == ["pool", "pool.set-aside.1"], "one is in use"
    lock.close()
    pool.reserve_memory(lambda _: None, lambda: False)
    assert names(path) == ["pool"]
    pool.close()


def test_files_set_aside_are_numbered_on(path: Path) -> None:
    locks = []
    for num_slabs in (4, 5, 6):
        open_pool(path, num_slabs=num_slabs).close()
        locks.append(DeathLock.take(path, PARTY))
    pool = open_pool(path, num_slabs=7)
    assert names(path) == ["pool", "pool.set-aside.1", "pool.set-aside.2", "pool.set-aside.3"]
    locks[1].close()
    assert pool.discard_set_aside() == 2
    assert names(path) == ["pool", "pool.set-aside.1", "pool.set-aside.3"]
    locks[0].close()
    locks[2].close()
    assert pool.discard_set_aside() == 0
    pool.close()


def test_a_daemon_killed_while_it_set_the_file_aside_leaves_it_in_use(path: Path) -> None:
    open_pool(path).close()
    path.with_name("pool.set-aside.1").hardlink_to(path)  # the step before the new file gets the name
    pool = open_pool(path)
    pool.write_slot(header(2))
    assert pool.discard_set_aside() == 0
    assert names(path) == ["pool"]
    assert pool.scan().headers() == [header(2)]
    pool.close()


def test_new_files_of_daemons_that_died_are_swept_and_those_of_living_ones_are_not(path: Path) -> None:
    dead, living = path.with_name("pool.new.dead"), path.with_name("pool.new.living")
    dead.touch()
    living.touch()
    lock = DeathLock.take(living, daemon_offset())
    pool = open_pool(path)
    assert names(path) == ["pool", "pool.new.living"]
    lock.close()
    pool.close()


def test_remove_takes_every_name_and_leaves_mapped_bytes_alone(path: Path) -> None:
    open_pool(path).close()
    lock = DeathLock.take(path, PARTY)
    mapping = PoolMapping.open(path)
    with mapping.data(0, 4) as data:
        data[:] = b"mine"
    pool = open_pool(path, num_slabs=6)
    pool.discard_set_aside()
    pool.remove()
    assert names(path) == []
    with mapping.data(0, 4) as data:
        assert bytes(data) == b"mine"
    mapping.close()
    lock.close()
    pool.close()


def test_remove_leaves_another_daemons_file(path: Path) -> None:
    pool = open_pool(path)
    path.unlink()
    other = open_pool(path)
    pool.remove()
    assert names(path) == ["pool"]
    pool.close()
    other.close()


def test_a_failed_open_leaves_no_lock_and_no_descriptor(path: Path) -> None:
    path.mkdir()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="pool"):
        open_pool(path)
    path.rmdir()
    with pytest.raises(FileNotFoundError):
        open_pool(path.parent / "nowhere" / "pool")
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    open_pool(path).close()


def test_memory_is_reserved_once(path: Path) -> None:
    pool = open_pool(path, num_slabs=64)
    assert pool.allocated_bytes() < pool.data_bytes
    told: list[float] = []
    pool.reserve_memory(told.append, lambda: False)
    assert pool.allocated_bytes() >= path.stat().st_size
    assert told[0] < 0.5
    assert told[-1] == 1.0
    told.clear()
    pool.reserve_memory(told.append, lambda: pytest.fail("nothing is left to be cancelled"))
    assert told == [1.0]
    pool.close()


def test_the_file_never_shrinks_under_a_mapping(path: Path) -> None:
    """A page that was there stays there through restarts of every kind: touching it never faults."""
    open_pool(path).close()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), LAYOUT.file_bytes) as mapping:
        for num_slabs in (4, 2, 9, 4):
            pool = open_pool(path, num_slabs=num_slabs)
            pool.discard_set_aside()
            assert mapping[LAYOUT.file_bytes - 1] == 0
            assert os.fstat(file.fileno()).st_size == LAYOUT.file_bytes
            pool.close()
