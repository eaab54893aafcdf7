"""The engine's view, over a real file that a real daemon's side writes."""

import os
import resource
import threading
from pathlib import Path

import pytest

from gateway.pool.file import PoolFile
from gateway.pool.format import SLOT_HEADER_BYTES, PoolFormatError, SlotState
from gateway.pool.mapping import PoolMapping, acquire_fence
from tests.pool.records import LAYOUT, SLAB_BYTES, header, open_pool


def test_an_engine_sees_headers_as_they_are_written(pool: PoolFile, path: Path) -> None:
    mapping = PoolMapping.open(path)
    assert (mapping.pool_id, mapping.pool_format, mapping.data_bytes) == (pool.pool_id, 1, pool.data_bytes)
    assert mapping.inode == pool.lock.inode
    assert mapping.read_header(3) is None
    for state in (SlotState.WRITING, SlotState.READY):
        pool.write_slot(header(3, state=state))
        acquire_fence()
        assert mapping.read_header(3) == header(3, state=state)
    pool.free_slot(3)
    assert mapping.read_header(3) is None
    for outside in (-1, LAYOUT.num_slots):
        with pytest.raises(IndexError):
            mapping.read_header(outside)
    mapping.close()


def test_two_engines_share_the_data(pool: PoolFile, path: Path) -> None:
    one, other = PoolMapping.open(path), PoolMapping.open(path)
    with one.data(4096, 5) as written, other.data(4096, 5) as read:
        written[:] = b"hello"
        assert bytes(read) == b"hello"
    with path.open("rb") as file:
        file.seek(LAYOUT.data_offset + 4096)
        assert file.read(5) == b"hello"
    one.close()
    other.close()


def test_the_address_is_that_of_the_data(pool: PoolFile, path: Path) -> None:
    import ctypes

    mapping = PoolMapping.open(path)
    with mapping.data(0, 8) as view:
        view[:] = b"at first"
    assert ctypes.string_at(mapping.data_address, 8) == b"at first"
    mapping.close()


def test_headers_cannot_be_written_through_the_mapping(pool: PoolFile, path: Path) -> None:
    mapping = PoolMapping.open(path)
    with pytest.raises(TypeError):
        mapping._headers[0:1] = b"x"
    mapping.close()


def test_bytes_outside_of_the_data_are_refused(pool: PoolFile, path: Path) -> None:
    mapping = PoolMapping.open(path)
    for offset, nbytes in ((-1, 2), (0, -1), (0, mapping.data_bytes + 1), (mapping.data_bytes, 1)):
        with pytest.raises(ValueError, match="of a pool of"):
            mapping.data(offset, nbytes)
    assert len(mapping.data(mapping.data_bytes, 0)) == 0
    mapping.close()


def test_a_view_keeps_it_open(pool: PoolFile, path: Path) -> None:
    mapping = PoolMapping.open(path)
    view = mapping.data(0, 16)
    with pytest.raises(BufferError):
        mapping.close()
    assert mapping.read_header(0) is None
    view.release()
    mapping.close()


def test_it_is_current_until_another_file_has_the_name(pool: PoolFile, path: Path) -> None:
    mapping = PoolMapping.open(path)
    assert mapping.is_current()
    path.rename(path.with_name("elsewhere"))
    assert not mapping.is_current()
    path.write_bytes(b"another")
    assert not mapping.is_current()
    path.with_name("elsewhere").replace(path)
    assert mapping.is_current()
    path.unlink()
    assert not mapping.is_current()
    mapping.close()


@pytest.mark.parametrize("content", [b"", b"garbage" * 5000])
def test_what_is_no_pool_is_refused_and_leaves_nothing_open(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(PoolFormatError, match="expected pool format 1"):
        PoolMapping.open(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_pool_that_was_cut_short_is_refused_before_it_is_touched(path: Path) -> None:
    pool = open_pool(path)
    pool.close()
    os.truncate(path, LAYOUT.data_offset)
    with pytest.raises(PoolFormatError, match=f"has {LAYOUT.data_offset} bytes"):
        PoolMapping.open(path)


def test_a_reader_never_sees_a_mixture(pool: PoolFile, path: Path) -> None:
    """A thread writes two headers in turn; each reading is one of them, or nothing."""
    mapping = PoolMapping.open(path)
    versions = [
        header(9, key=letter * 32, owner=letter * 16, generation=generation, payload_bytes=generation)
        for letter, generation in ((b"a", 1), (b"b", 2))
    ]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for version in versions:
                pool.write_slot(version)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {mapping.read_header(9) for _ in range(20_000)}
    finally:
        stop.set()
        writer.join()
    assert seen & set(versions)
    assert seen <= {None, *versions}
    mapping.close()


def test_a_header_torn_for_good_is_nothing(pool: PoolFile, path: Path) -> None:
    mapping = PoolMapping.open(path)
    pool.write_slot(header(9))
    with path.open("r+b") as file:
        file.seek(LAYOUT.header_offset(9) + SLOT_HEADER_BYTES // 2)
        file.write(b"\xee")
    assert mapping.read_header(9) is None
    mapping.close()


def test_pages_can_be_entered_before_they_are_used(pool: PoolFile, path: Path) -> None:
    pool.reserve_memory(lambda _: None, lambda: False)
    mapping = PoolMapping.open(path)
    with mapping.data(0, 4) as view:
        view[:] = b"kept"
    content = b"\xab" * mapping.data_bytes
    mapping.prefault(0, 2 * SLAB_BYTES)
    mapping.prefault(2 * SLAB_BYTES, 100 * SLAB_BYTES)
    mapping.prefault(mapping.data_bytes, 1)
    before = minor_faults()
    with mapping.data(0, mapping.data_bytes) as view:
        assert bytes(view[:4]) == b"kept"
        view[:] = content
    assert minor_faults() - before < 32, "a page each would be 64; what else this thread does may cost a few"
    with pytest.raises(OSError, match="cannot prefault"):
        mapping.prefault(1, 4096)
    mapping.close()
    with pytest.raises(ValueError, match="closed"):
        mapping.prefault(0, 4096)


def minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
