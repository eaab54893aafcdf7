"""One daemon a directory, whatever happens to the last one; two directories never meet."""

import json

from tests.support.daemon import Daemon
from tests.support.party import RawParty
from tests.support.poll import until


def reason(daemon: Daemon) -> str:
    return "\n".join(json.dumps(line) for line in daemon.log_lines("start_failed"))


def beside(daemon: Daemon, wait_seconds: str) -> Daemon:
    """A second daemon on the same directory, with logs of its own."""
    base = daemon.base / "second"
    base.mkdir()
    return Daemon(
        {"KVGATE_START_LOCK_WAIT_SECONDS": wait_seconds},
        ("--run-dir", str(daemon.run_dir)),
        own_run_dir=False,
        base=base,
    )


def test_a_second_daemon_is_refused_with_the_facts(daemon: Daemon) -> None:
    inode = daemon.pool.stat().st_ino
    with beside(daemon, "0.2") as second:
        assert second.spawn().wait() == 1

        for fact in (str(daemon.pool), f"inode {inode}", f"pid {daemon.pid}", str(daemon.ready_line["boot_id"])):
            assert fact in reason(second)
    assert {"admin.json", "settings.json"} <= {path.name for path in daemon.admin_dir.iterdir()}, "the first one's stay"
    assert daemon.snapshot().boot.hex() == daemon.ready_line["boot_id"]
    assert daemon.socket.exists()


def test_neither_the_facts_nor_the_socket_are_what_keeps_a_second_daemon_out(daemon: Daemon) -> None:
    (daemon.run_dir / "gateway.pid").unlink()
    daemon.socket.unlink()
    with beside(daemon, "0.2") as second:
        assert second.spawn().wait() == 1

        assert "unknown pid" in reason(second)


def test_a_second_daemon_waits_for_the_first_to_leave_and_takes_its_chunks_over(daemon: Daemon) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.store(range(3))
    with beside(daemon, "30") as second:
        second.spawn()
        until(lambda: second.log_lines("waiting_for_another_daemon"), what="the second waits")

        assert daemon.stop() == 0
        second.wait_ready()
        assert second.snapshot().slots.ready == 3


def test_a_daemon_that_waits_can_be_told_to_stop(daemon: Daemon) -> None:
    with beside(daemon, "30") as second:
        second.spawn()
        until(lambda: second.log_lines("waiting_for_another_daemon"), what="the second waits")

        assert second.stop() == 0
    assert daemon.snapshot().ready


def test_a_killed_daemon_is_in_nobodys_way(daemon: Daemon) -> None:
    daemon.kill()
    assert daemon.socket.exists()

    daemon.start()

    assert daemon.snapshot().ready
    assert not daemon.log_lines("waiting_for_another_daemon")


def test_daemons_of_two_directories_do_not_meet(daemon: Daemon) -> None:
    with Daemon() as other:
        other.start()
        with RawParty(daemon.run_dir).register() as party:
            party.store(range(2))

        assert daemon.snapshot().slots.ready == 2
        assert other.snapshot().slots.ready == 0
        assert other.snapshot().boot != daemon.snapshot().boot
