"""Room for the pool: control groups from fixture trees, allocation on a real file."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.pool.memory import MemoryRoom, PoolSpaceError, allocated_bytes, memory_rooms, reserve, reserve_start

MIB = 1 << 20


def write(root: Path, files: dict[str, object]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    return root


def rooms(root: Path) -> list[tuple[str, int, int]]:
    return [(str(Path(r.group).relative_to(root)), r.limit_bytes, r.used_bytes) for r in memory_rooms(root)]


def test_version_2_from_the_own_group_upwards(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kube/pod/container",
            "sys/fs/cgroup/kube/pod/container/memory.max": "max",
            "sys/fs/cgroup/kube/pod/container/memory.current": 5,
            "sys/fs/cgroup/kube/pod/memory.max": 1000,
            "sys/fs/cgroup/kube/pod/memory.current": 700,
            "sys/fs/cgroup/kube/pod/memory.stat": "anon 100\ninactive_file 200\nactive_file 3",
            "sys/fs/cgroup/kube/memory.max": 9000,
            "sys/fs/cgroup/kube/memory.current": 800,
        },
    )
    assert rooms(tmp_path) == [("sys/fs/cgroup/kube/pod", 1000, 500), ("sys/fs/cgroup/kube", 9000, 800)]


def test_version_1_beside_other_controllers(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/docker/abc\n1:name=systemd:/\n0::/",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": 1000,
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": 100,
            "sys/fs/cgroup/memory/docker/abc/memory.stat": "cache 9\ntotal_inactive_file 40",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 100,
        },
    )
    assert rooms(tmp_path) == [("sys/fs/cgroup/memory/docker/abc", 1000, 60)]


def test_a_container_that_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../kubepods/burstable/pod1",
            "sys/fs/cgroup/memory.max": 500,
            "sys/fs/cgroup/memory.current": 100,
        },
    )
    assert rooms(tmp_path) == [("sys/fs/cgroup", 500, 100)]


@pytest.mark.parametrize(
    "files", [{}, {"proc/self/cgroup": ""}, {"proc/self/cgroup": "0::/"}, {"proc/self/cgroup": "??"}]
)
def test_without_a_limit_there_is_none(tmp_path: Path, files: dict[str, object]) -> None:
    assert memory_rooms(write(tmp_path, files)) == []


def test_a_group_over_its_limit_has_nothing_left() -> None:
    assert MemoryRoom("g", 100, 130).free_bytes == 0


def test_this_machine_can_be_read() -> None:
    assert all(room.limit_bytes > 0 for room in memory_rooms())


@pytest.fixture
def fd(path: Path) -> Iterator[int]:
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    os.ftruncate(opened, 8 * MIB)
    yield opened
    os.close(opened)


def limited(root: Path, free: int) -> Path:
    return write(
        root / "tree",
        {
            "proc/self/cgroup": "0::/pod",
            "sys/fs/cgroup/pod/memory.max": free + 1000,
            "sys/fs/cgroup/pod/memory.current": 1000,
        },
    )


def test_a_limit_that_is_too_small_allocates_nothing_and_names_the_sizes(fd: int, tmp_path: Path) -> None:
    root = limited(tmp_path, 8 * MIB - 1)
    with pytest.raises(PoolSpaceError, match=rf"needs {8 * MIB} of {8 * MIB} bytes more.*pod.*leaves {8 * MIB - 1}"):
        reserve(fd, 8 * MIB, lambda _: None, lambda: False, root=root)
    assert allocated_bytes(fd) == 0


def test_only_what_is_missing_must_fit(fd: int, tmp_path: Path) -> None:
    os.posix_fallocate(fd, 0, 6 * MIB)
    reserve(fd, 8 * MIB, lambda _: None, lambda: False, root=limited(tmp_path, 2 * MIB), piece_bytes=MIB)
    assert allocated_bytes(fd) >= 8 * MIB


def test_a_file_system_that_is_too_small_allocates_nothing(fd: int, tmp_path: Path) -> None:
    with pytest.raises(PoolSpaceError, match="the file system has"):
        reserve(fd, 1 << 60, lambda _: None, lambda: False, root=tmp_path)
    assert allocated_bytes(fd) == 0


def test_it_goes_in_pieces_with_progress_and_can_be_cancelled_and_resumed(fd: int, tmp_path: Path) -> None:
    told: list[float] = []
    reserve(fd, 8 * MIB, told.append, lambda: len(told) > 3, root=tmp_path, piece_bytes=MIB)
    assert told == [0.0, 0.125, 0.25, 0.375]
    assert allocated_bytes(fd) == 3 * MIB
    reserve(fd, 8 * MIB, told.append, lambda: False, root=tmp_path, piece_bytes=MIB)
    assert told[4:] == [0.375, 0.5, 0.625, 0.75, 0.875, 1.0]
    assert allocated_bytes(fd) == 8 * MIB


def test_holes_before_what_is_there_are_filled_too(fd: int, tmp_path: Path) -> None:
    os.pwrite(fd, b"x" * (3 * MIB), 5 * MIB)
    reserve(fd, 8 * MIB, lambda _: None, lambda: False, root=tmp_path, piece_bytes=MIB)
    assert allocated_bytes(fd) >= 8 * MIB
    assert os.pread(fd, 3 * MIB, 5 * MIB) == b"x" * (3 * MIB)


def test_the_start_of_a_file_gets_its_memory_alone(fd: int) -> None:
    reserve_start(fd, MIB)

    assert MIB <= allocated_bytes(fd) < 2 * MIB
    assert os.fstat(fd).st_size == 8 * MIB
