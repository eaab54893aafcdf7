"""``kvgate doctor`` and ``python -m adapter.doctor`` beside a real daemon that lives, is stopped, or is dead."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.doctor import answers
from gateway.doctor.finding import Verdict
from tests.support.daemon import COMMAND, REPOSITORY, Daemon

Checks = dict[str, dict[str, str]]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon() as running:
        yield running.start()


def _checks(command: list[str], **environ: str) -> tuple[int, Checks]:
    done = subprocess.run(
        [*command, "--json"], cwd=REPOSITORY, env={"PATH": "/usr/bin:/bin", **environ},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["ok"] is (done.returncode == 0)
    for check in document["checks"]:
        assert bool(check["next_step"]) is (check["verdict"] in ("failed", "warning")), check
    return done.returncode, {check["name"]: check for check in document["checks"]}


def doctor(run_dir: Path, *words: str, **environ: str) -> tuple[int, Checks]:
    return _checks([*COMMAND, "doctor", "--run-dir", str(run_dir), *words], **environ)


def engine_s(run_dir: Path) -> tuple[int, Checks]:
    return _checks([sys.executable, "-m", "adapter.doctor", "--run-dir", str(run_dir)])


def of(checks: Checks, verdict: str) -> set[str]:
    return {name for name, check in checks.items() if check["verdict"] == verdict}


def test_all_is_well(daemon: Daemon) -> None:
    code, checks = doctor(daemon.run_dir)
    assert (code, of(checks, "failed") | of(checks, "skipped")) == (0, set())
    assert f"pid {daemon.pid}" in checks["locks"]["detail"]
    assert daemon.admin_url in checks["admin_api"]["detail"]
    code, checks = engine_s(daemon.run_dir)
    assert (code, of(checks, "failed") | of(checks, "skipped")) == (0, set())
    assert {"mapping", "own_lock", "locks", "versions", "same_pool", "clock", "copies"} <= set(checks)


def test_a_stopped_daemon_is_told_from_a_dead_one(daemon: Daemon) -> None:
    daemon.pause()
    try:
        code, checks = doctor(daemon.run_dir)
        assert code == 1
        assert of(checks, "failed") == {"socket", "admin_socket", "admin_api"}
        assert checks["locks"]["verdict"] == "ok"
        code, checks = engine_s(daemon.run_dir)
        assert (code, of(checks, "failed")) == (1, {"socket"})
    finally:
        daemon.go_on()
    daemon.kill()
    code, checks = doctor(daemon.run_dir, KVGATE_ADMIN="127.0.0.1:0")
    assert (code, of(checks, "failed")) == (1, {"locks"})
    assert "kvgate serve" in checks["locks"]["next_step"]
    assert {"socket", "versions", "same_pool", "clock", "admin_socket"} <= of(checks, "skipped")
    code, checks = engine_s(daemon.run_dir)
    assert (code, of(checks, "failed")) == (1, {"locks"})
    assert checks["mapping"]["verdict"] == "ok"


def test_nothing_is_there(tmp_path: Path) -> None:
    for code, checks in (doctor(tmp_path / "none", KVGATE_ADMIN="127.0.0.1:0"), engine_s(tmp_path / "none")):
        assert (code, of(checks, "failed")) == (1, {"run_dir"})


def test_settings_that_a_start_would_refuse_are_a_finding(daemon: Daemon) -> None:
    code, checks = doctor(daemon.run_dir, KVGATE_POOL_SIZE="much")
    assert (code, of(checks, "failed")) == (1, {"settings"})
    assert "much" in checks["settings"]["detail"]
    code, checks = doctor(daemon.run_dir, KVGATE_POLL_SIZE="4GiB")
    assert (code, checks["settings"]["verdict"]) == (0, "warning")


def test_another_gateway_s_pool_is_noticed(daemon: Daemon) -> None:
    found = answers.check_engine_socket(daemon.socket, is_daemon_there=True, pool_id=b"another pool id.")
    assert [check.verdict for check in found if check.name == "same_pool"] == [Verdict.FAILED]


def test_people_get_lines(daemon: Daemon) -> None:
    for command in ([*COMMAND, "doctor"], [sys.executable, "-m", "adapter.doctor"]):
        done = subprocess.run(
            [*command, "--run-dir", str(daemon.run_dir)],
            cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert "ok       locks" in done.stdout


def test_it_asks_which_gateway() -> None:
    for command in ([*COMMAND, "doctor"], [sys.executable, "-m", "adapter.doctor"]):
        done = subprocess.run(
            command, cwd=REPOSITORY, env={"PATH": "/usr/bin"}, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, "which gateway?" in done.stderr) == (2, True)
