"""Checks one by one: what is well, what is not, and that what is not has one next step."""

import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.doctor import answers, places
from gateway.doctor import pool as pool_checks
from gateway.doctor.finding import Finding, Verdict, as_document, as_text, failed, has_failed, ok, skipped, warning
from gateway.lock import DeathLock, daemon_offset, party_offset
from gateway.pool.file import PoolFile

MIB = 1 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def pool(directory: Path) -> Iterator[Path]:
    file = PoolFile.open(directory / "pool", data_bytes=MIB, slab_bytes=MIB // 4, min_slot_bytes=4096)
    yield file.path
    file.close()


def is_bad(finding: Finding, *words: str) -> bool:
    """Failed, with a next step, and these words in what it says."""
    assert finding.verdict is Verdict.FAILED, finding
    assert finding.next_step, finding
    assert all(word in finding.detail + finding.next_step for word in words), finding
    return True


# -- findings ----------------------------------------------------------------------------------------------------------


def test_findings_are_told_in_two_forms() -> None:
    found = [ok("one", "well"), warning("two", "so so", "do this"), skipped("three", "because of one")]
    assert not has_failed(found)
    found.append(failed("four", "broken", "mend it"))
    document = as_document(found)
    assert document["ok"] is False
    assert [check["verdict"] for check in document["checks"]] == ["ok", "warning", "skipped", "failed"]
    lines = as_text(found).splitlines()
    assert lines[1:3] == ["warning  two    so so", "                next: do this"]
    assert lines[-1].endswith("next: mend it")


# -- places ------------------------------------------------------------------------------------------------------------


def test_a_run_dir(directory: Path) -> None:
    assert places.check_run_dir(directory, "").verdict is Verdict.OK
    assert is_bad(places.check_run_dir(directory / "nowhere", "make it"), "does not exist", "make it")
    file = directory / "file"
    file.touch(mode=0o700)
    assert is_bad(places.check_run_dir(file, ""), "no directory")
    assert is_bad(places.check_run_dir(file / "below", "make it"), "does not exist")
    directory.chmod(0o755)
    assert places.check_run_dir(directory, "").verdict is Verdict.WARNING


def test_an_admin_dir_is_the_operators_alone(directory: Path) -> None:
    assert places.check_admin_dir(directory).verdict is Verdict.OK
    directory.chmod(0o750)
    assert is_bad(places.check_admin_dir(directory), "others", f"chmod 700 {directory}")
    assert is_bad(places.check_admin_dir(directory / "nowhere"), "--admin-dir")


def test_the_longest_socket_path_decides() -> None:
    short, long = Path("/run/x.sock"), Path("/run") / ("x" * 110)
    assert places.check_socket_paths(short, short).verdict is Verdict.OK
    assert is_bad(places.check_socket_paths(short, long), "115 bytes", "shorter")


@pytest.mark.parametrize(("kind", "verdict"), [("tmpfs", Verdict.OK), ("ext4", Verdict.WARNING)])
def test_the_file_system_s_type(tmp_path: Path, kind: str, verdict: Verdict) -> None:
    device = tmp_path.stat().st_dev
    info = tmp_path / "proc" / "self" / "mountinfo"
    info.parent.mkdir(parents=True)
    info.write_text(
        "21 1 0:1 / /other rw - ext3 /dev/x rw\n"
        f"22 1 {os.major(device)}:{os.minor(device)} / / rw,nosuid shared:1 - {kind} none rw\n"
    )
    found = places.check_file_system(tmp_path, root=tmp_path)
    assert found.verdict is verdict
    assert f"on {kind}" in found.detail
    assert places.check_file_system(tmp_path, root=tmp_path / "nowhere").verdict is Verdict.WARNING


def test_space_is_what_the_pool_lacks_yet(directory: Path, pool: Path) -> None:
    assert places.check_space(directory, directory / "none", MIB).verdict is Verdict.OK
    assert is_bad(places.check_space(directory, directory / "none", 1 << 60), "pool_size")
    assert places.check_space(directory, pool, 1 << 60).verdict is Verdict.OK, "the file that is there decides"
    assert places.missing_bytes(pool, 0) > MIB // 2


CGROUP = {
    2: ("0::/pod/box\n", "sys/fs/cgroup/pod/box", "memory.max", "memory.current"),
    1: ("9:memory:/pod\n", "sys/fs/cgroup/memory/pod", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


@pytest.mark.parametrize("version", [1, 2])
def test_memory_limits_of_control_groups(tmp_path: Path, version: int) -> None:
    line, folder, limit, usage = CGROUP[version]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line)
    group = tmp_path / folder
    group.mkdir(parents=True)
    (group / limit).write_text(f"{100 * MIB}\n")
    (group / usage).write_text(f"{60 * MIB}\n")
    pool = tmp_path / "pool"
    assert places.check_memory_limits(pool, 40 * MIB, root=tmp_path).verdict is Verdict.OK
    assert is_bad(places.check_memory_limits(pool, 41 * MIB, root=tmp_path), "40.0 MiB of 100.0 MiB", str(group))


def test_without_a_memory_limit_there_is_none(tmp_path: Path) -> None:
    assert places.check_memory_limits(tmp_path / "pool", 1 << 60, root=tmp_path).verdict is Verdict.OK


# -- the pool ----------------------------------------------------------------------------------------------------------


def test_a_pool_and_what_is_none(directory: Path, pool: Path) -> None:
    assert pool_checks.check_pool(pool).verdict is Verdict.OK
    assert is_bad(pool_checks.check_pool(directory / "none"), "does not exist")
    other = directory / "other"
    other.write_bytes(b"kvgpool\0" + (9).to_bytes(4, "little") + bytes(9000))
    found = pool_checks.check_pool(other)
    assert found.verdict is Verdict.WARNING
    assert "pool format 9" in found.detail
    cut = directory / "cut"
    cut.write_bytes(pool.read_bytes()[:-1])
    assert "its header says" in pool_checks.check_pool(cut).detail
    (directory / "pool.set-aside.1").touch()
    assert pool_checks.check_pool(pool).verdict is Verdict.WARNING


def test_locks_tell_who_lives(directory: Path, pool: Path) -> None:
    (directory / "gateway.pid").write_text('{"pid": 77}')
    found = pool_checks.check_locks(pool, "start it")
    assert found.verdict is Verdict.OK
    assert "pid 77" in found.detail
    assert "no engine" in found.detail
    assert pool_checks.held_offsets(pool) in ([daemon_offset()], []), "where the kernel shows them"
    party = DeathLock.take(pool, party_offset(b"p" * 16))
    try:
        assert "engines hold" in pool_checks.check_locks(pool, "start it").detail
    finally:
        party.close()


def test_a_free_lock_says_that_nobody_lives(directory: Path) -> None:
    pool = directory / "pool"
    assert pool_checks.check_locks(pool, "start it").verdict is Verdict.SKIPPED
    assert pool_checks.is_daemon_there(pool) is None
    pool.touch()
    assert is_bad(pool_checks.check_locks(pool, "start it"), "no daemon", "start it")
    assert pool_checks.is_daemon_there(pool) is False


# -- answers -----------------------------------------------------------------------------------------------------------


def test_who_is_not_there_is_not_asked(directory: Path) -> None:
    found = answers.check_engine_socket(directory / "none.sock", is_daemon_there=False, pool_id=None)
    assert [check.name for check in found] == ["socket", "versions", "same_pool", "clock"]
    assert {check.verdict for check in found} == {Verdict.SKIPPED}


def test_who_is_there_and_silent_is_hung(tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        found = answers.check_engine_socket(path, is_daemon_there=True, pool_id=None)
        assert is_bad(found[0], "lock", "kvgate bundle")
        assert [check.name for check in found] == ["socket", "versions", "same_pool", "clock"]
        assert is_bad(answers.check_operator_socket(path, is_daemon_there=True), "lock")


def test_a_port_is_free_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert is_bad(answers.check_port_is_free("admin_api", "admin", address), address, "set admin to another port")
        assert answers.check_probe(address, is_daemon_there=True).verdict is Verdict.OK
    assert answers.check_port_is_free("admin_api", "admin", address).verdict is Verdict.OK
    assert is_bad(answers.check_probe(address, is_daemon_there=True), address)


class Unwell(http.server.BaseHTTPRequestHandler):
    """Answers everything with 503."""

    def do_GET(self) -> None:
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_the_admin_api(tmp_path: Path) -> None:
    file = tmp_path / "admin.json"
    assert is_bad(answers.check_admin_api(file, "127.0.0.1:1", is_daemon_there=True), "does not say")
    file.write_text('{"url": "file:///etc/passwd"}')
    assert answers.admin_url(file) is None, "only HTTP is asked"
    with http.server.HTTPServer(("127.0.0.1", 0), Unwell) as server:
        file.write_text(f'{{"url": "http://127.0.0.1:{server.server_port}"}}')
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        try:
            assert is_bad(answers.check_admin_api(file, "127.0.0.1:1", is_daemon_there=True), "503")
        finally:
            thread.join()
    assert is_bad(answers.check_admin_api(file, "127.0.0.1:1", is_daemon_there=True), "does not answer")
