import json
import os
import signal
import socket
import stat
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gateway.wire.codes import Health, Lifecycle
from tests.support.daemon import Daemon
from tests.support.party import RawParty
from tests.support.poll import until

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where pools lie


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def sentence(daemon: Daemon, event: str) -> str:
    """What the daemon says about one event of its log, as text."""
    return "\n".join(json.dumps(line) for line in daemon.log_lines(event))


def test_the_ready_line_is_all_of_stdout_and_is_true(daemon: Daemon) -> None:
    line = daemon.ready_line

    assert daemon.stdout.count("\n") == 1
    assert set(line) == {"event", "admin_url", "socket", "pool", "run_dir", "boot_id", "pid"}
    assert (line["event"], line["pid"]) == ("ready", daemon.pid)
    assert (line["socket"], line["pool"]) == (str(daemon.socket), str(daemon.pool))
    with daemon.client() as client:
        assert client.hello().boot.hex() == line["boot_id"]
    snapshot = daemon.snapshot()
    assert (snapshot.state, snapshot.health, snapshot.ready) == (Lifecycle.READY, Health.HEALTHY, True)
    assert snapshot.progress == 1.0
    assert snapshot.slots.pool_bytes == snapshot.slots.free_bytes == 8 << 20
    assert snapshot.slots.allocated_bytes >= snapshot.slots.pool_bytes


def test_the_log_says_ready_when_the_admin_api_listens_too(daemon: Daemon) -> None:
    events = [line["event"] for line in daemon.log_lines() if line["event"] in ("ready", "admin_listening")]

    assert events == ["admin_listening", "ready"]
    (line,) = daemon.log_lines("ready")
    assert (line["admin_url"], line["boot_id"]) == (daemon.admin_url, daemon.ready_line["boot_id"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(daemon: Daemon, number: signal.Signals) -> None:
    assert daemon.stop(number) == 0

    assert daemon.processes() == []
    assert sorted(path.name for path in daemon.run_dir.iterdir()) == ["gateway.pid", "pool"]
    assert list(daemon.admin_dir.iterdir()) == []
    assert len(daemon.log_lines("stopped")) == 1


def test_the_pool_is_removed_on_a_clean_stop_if_so_wanted() -> None:
    with Daemon({"KVGATE_POOL_ON_STOP": "remove"}) as daemon:
        daemon.start()

        assert daemon.stop() == 0
        assert not daemon.pool.exists()


def test_a_temporary_run_dir_is_made_private_and_goes_with_a_clean_stop() -> None:
    with Daemon(own_run_dir=False, umask=0) as daemon:
        daemon.start()
        assert daemon.run_dir.parent == SHARED_MEMORY
        assert mode(daemon.run_dir) == mode(daemon.admin_dir) == 0o700

        assert daemon.stop() == 0
        assert not daemon.run_dir.exists()
        assert not daemon.admin_dir.exists()


def test_only_the_user_can_reach_it_whatever_the_umask() -> None:
    with Daemon(umask=0) as daemon:
        daemon.start()

        assert mode(daemon.run_dir) == mode(daemon.admin_dir) == 0o700
        found = {path.name: mode(path) for place in (daemon.run_dir, daemon.admin_dir) for path in place.iterdir()}
        assert {"gateway.sock", "pool", "gateway.pid", "admin.sock", "admin.json", "settings.json"} <= found.keys()
        assert found.pop("events") == 0o700  # a directory
        assert set(found.values()) == {0o600}, found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to any group")
def test_a_group_can_reach_the_shared_directory_and_not_the_operators() -> None:
    with Daemon({"KVGATE_RUN_DIR_GROUP": "12345"}, umask=0o077) as daemon:
        daemon.start()

        assert (mode(daemon.run_dir), daemon.run_dir.stat().st_gid) == (0o2770, 12345)
        for path in (daemon.socket, daemon.pool, daemon.run_dir / "gateway.pid"):
            assert (mode(path), path.stat().st_gid) == (0o660, 12345), path
        assert (mode(daemon.admin_dir), mode(daemon.admin_socket)) == (0o700, 0o600)


def test_a_stop_waits_for_what_is_being_stored() -> None:
    with Daemon({"KVGATE_STOP_DEADLINE_SECONDS": "60", "KVGATE_RESERVATION_SECONDS": "60"}) as daemon:
        daemon.start()
        with RawParty(daemon.run_dir).register() as party:
            (grant,) = party.reserve((1,), 1)
            daemon.signal(signal.SIGTERM)
            until(lambda: party.ping(next_operation=2, operations=(1,)).state is Lifecycle.DRAINING)
            party.write(grant, 1)

            assert party.commit(1, grant.generation) == ("committed",)
            assert daemon.wait() == 0
        (line,) = daemon.log_lines("stopped")
        assert (line["outcome"], line["operations_cut"]) == ("completed", 0)


def test_a_second_signal_cuts_what_is_left_and_says_so() -> None:
    with Daemon({"KVGATE_STOP_DEADLINE_SECONDS": "60", "KVGATE_RESERVATION_SECONDS": "60"}) as daemon:
        daemon.start()
        with RawParty(daemon.run_dir).register() as party:
            party.reserve((1,), 1)
            daemon.signal(signal.SIGTERM)
            until(lambda: party.ping(next_operation=2, operations=(1,)).state is Lifecycle.DRAINING)

            assert daemon.stop() == 0
        (line,) = daemon.log_lines("stopped")
        assert (line["outcome"], line["operations_cut"]) == ("forced", 1)


def test_the_stop_deadline_cuts_what_is_left_and_says_so() -> None:
    with Daemon({"KVGATE_STOP_DEADLINE_SECONDS": "0.5", "KVGATE_RESERVATION_SECONDS": "60"}) as daemon:
        daemon.start()
        with RawParty(daemon.run_dir).register() as party:
            party.reserve((1,), 1)

            assert daemon.stop() == 0
        (line,) = daemon.log_lines("stopped")
        assert (line["outcome"], line["operations_cut"]) == ("deadline_exceeded", 1)


def test_it_can_be_stopped_while_it_reserves_memory() -> None:
    with Daemon({"KVGATE_POOL_SIZE": "2GiB", "KVGATE_SLAB_SIZE": "", "KVGATE_MIN_CHUNK_BYTES": ""}) as daemon:
        daemon.spawn()
        until(daemon.admin_socket.exists, 20)

        assert daemon.stop() == 0
        assert daemon.pool.exists()


def test_a_socket_path_that_is_too_long_is_named() -> None:
    with Daemon() as daemon:
        long = daemon.base / ("x" * 120)
        other = Daemon(arguments=("--run-dir", str(long)), own_run_dir=False, base=daemon.base)

        assert other.spawn().wait() == 1
        assert str(long / "gateway.sock") in sentence(other, "start_failed")
        assert not long.exists()


def test_a_directory_of_other_files_is_not_taken() -> None:
    with Daemon() as daemon:
        daemon.run_dir.mkdir(mode=0o755)
        (daemon.run_dir / "thesis.tex").write_text("mine")

        assert daemon.spawn().wait() == 1
        assert "thesis.tex" in sentence(daemon, "start_failed")
        assert mode(daemon.run_dir) == 0o755


def test_a_file_where_the_directory_should_be_is_named() -> None:
    with Daemon() as daemon:
        daemon.run_dir.write_text("")

        assert daemon.spawn().wait() == 1
        assert str(daemon.run_dir) in sentence(daemon, "start_failed")


@pytest.mark.parametrize(
    ("place", "is_dir", "found"),
    [
        ("run/gateway.sock", True, "a directory"),
        ("run/handles.sock", True, "a directory"),
        ("run/pool", True, "a directory"),
        ("run/pool.set-aside.1", True, "a directory"),
        ("run/events", False, "a plain file"),
        ("run.admin/admin.sock", True, "a directory"),
        ("run.admin/admin.json", True, "a directory"),
        ("run.admin/settings.json", True, "a directory"),
    ],
)
def test_what_is_of_another_kind_ends_the_start_in_one_sentence(place: str, is_dir: bool, found: str) -> None:
    with Daemon() as daemon:
        daemon.run_dir.mkdir()
        (daemon.run_dir / "gateway.pid").write_text("")
        path = daemon.base / place
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if is_dir else path.touch()

        assert daemon.spawn().wait() == 1
        (line,) = daemon.log_lines("start_failed")
        assert str(line["reason"]).startswith(f"{path} is {found}, expected ")
        assert "Traceback" not in daemon.stderr
        assert path.exists()


def test_a_pool_larger_than_the_memory_file_system_is_refused_with_the_sizes() -> None:
    size = os.statvfs(SHARED_MEMORY)
    too_large = str(size.f_frsize * size.f_blocks * 2)
    settings = {"KVGATE_POOL_SIZE": too_large, "KVGATE_SLAB_SIZE": "", "KVGATE_MIN_CHUNK_BYTES": ""}
    with Daemon(settings) as daemon:
        assert daemon.spawn().wait() == 1
        assert "memory" in sentence(daemon, "start_failed")
        assert not daemon.run_dir.exists()


def test_an_admin_port_that_is_taken_ends_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Daemon({"KVGATE_ADMIN": address}) as daemon:
            assert daemon.spawn().wait() == 1
            waits, failed = daemon.log_lines()
            assert (waits["event"], waits["setting"], waits["address"]) == ("waiting_for_address", "admin", address)
            assert waits["seconds_at_most"] == 4
            assert failed["event"] == "start_failed", "nothing was said to be ready"
            waited = datetime.fromisoformat(str(failed["time"])) - datetime.fromisoformat(str(waits["time"]))
            assert waited > timedelta(seconds=3), "it is said before the wait, not after it"
            for word in (address, "another process listens", "--admin", "KVGATE_ADMIN"):
                assert word in str(failed["reason"])
            assert daemon.stdout == ""
            assert not daemon.run_dir.exists(), "what this start made is gone again"
            assert not daemon.admin_dir.exists()


def test_one_address_for_two_is_refused_at_once() -> None:
    address = "127.0.0.1:19555"
    with Daemon({"KVGATE_ADMIN": address, "KVGATE_PROBE": address}) as daemon:
        assert daemon.spawn().wait() == 1
        assert f"admin and probe are both {address}" in sentence(daemon, "start_failed")
        assert not daemon.run_dir.exists()


def test_a_start_that_fails_leaves_what_was_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Daemon(arguments=("--admin", address)) as daemon:
            earlier = Daemon(base=daemon.base).start()
            with RawParty(daemon.run_dir).register() as party:
                party.store((1, 2))
            assert earlier.stop() == 0
            before = {path: path.stat().st_ino for path in (daemon.run_dir, daemon.pool, daemon.admin_dir)}

            assert daemon.spawn().wait() == 1
            assert {path: path.stat().st_ino for path in before} == before
            assert earlier.start().snapshot().slots.ready == 2
            assert earlier.stop() == 0


def test_the_admin_directory_is_a_flag_too() -> None:
    with Daemon() as daemon:
        admin_dir = daemon.base / "operators"
        other = Daemon(arguments=("--admin-dir", str(admin_dir)), base=daemon.base)
        other.start()
        assert (admin_dir / "admin.sock").exists()
        assert not daemon.admin_dir.exists()
        assert other.stop() == 0


def test_stacks_are_shown_on_request_and_it_goes_on(daemon: Daemon) -> None:
    daemon.signal(signal.SIGUSR2)

    until(lambda: "most recent call first" in daemon.stderr)
    assert daemon.snapshot().ready


def test_unknown_variables_are_told_once() -> None:
    with Daemon({"KVGATE_POOL_SIZ": "1GiB"}) as daemon:
        daemon.start()

        (line,) = [line for line in daemon.log_lines("unknown_variables") if line["logger"] == "kvgate.daemon"]
        assert line["names"] == ["KVGATE_POOL_SIZ"]


def test_the_core_stays_small(daemon: Daemon) -> None:
    status = (Path("/proc") / str(daemon.pid) / "status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    assert resident < 70 << 10  # KiB


def test_the_token_is_in_no_argument_list() -> None:
    with Daemon({"KVGATE_ADMIN_TOKEN": "not-to-be-seen"}) as daemon:
        daemon.start()

        lines = [(Path("/proc") / str(pid) / "cmdline").read_bytes() for pid in daemon.processes()]
        assert len(lines) == 2
        assert not any(b"not-to-be-seen" in line for line in lines)
