"""``kvgate bundle`` beside a daemon that lives, is stopped, or was killed: what is in it, and what never is."""

import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import COMMAND, REPOSITORY, Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.events import FakeEvent
from tests.support.poll import until

TOKEN = "a-token-that-nobody-may-see"  # noqa: S105
BOUND_SECONDS = 10.0

OF_THE_CORE = {"state.json", "engines.json", "cache.json", "transfers.json"}
ALWAYS = {
    "manifest.json", "doctor.json", "versions.json", "settings.json", "settings-here.json", "locks.json",
    "allocation.json", "process.json",
}  # fmt: skip


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    token_file = tmp_path / "secret-place"
    token_file.write_text(TOKEN)
    with Daemon({"KVGATE_ADMIN_TOKEN_FILE": str(token_file)}) as running:
        yield running.start()


def bundle(daemon: Daemon, path: Path) -> tuple[dict[str, bytes], dict]:
    """Its files by name, and what the command said."""
    began = time.monotonic()
    done = subprocess.run(
        [*COMMAND, "bundle", "--json", "--out", str(path), "--run-dir", str(daemon.run_dir)],
        cwd=REPOSITORY, env={"PATH": "/usr/bin:/bin", "KVGATE_ADMIN_TOKEN": TOKEN},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert time.monotonic() - began < BOUND_SECONDS
    assert path.stat().st_mode & 0o077 == 0
    with tarfile.open(path) as archive:
        files = {entry.name.partition("/")[2]: archive.extractfile(entry).read() for entry in archive}
    said = json.loads(done.stdout)
    assert set(files) == {"manifest.json", *said["parts"]}
    assert not set(files) & set(said["missing"])
    assert not list(path.parent.glob("*.new"))
    return files, said


def test_it_has_everything_and_no_secret(daemon: Daemon, tmp_path: Path) -> None:
    prompt = tokens(2, seed=4)
    with Engine(daemon.run_dir, name="engine-7") as engine:
        engine.wait_healthy()
        engine.store_and_wait("request-1", prompt, blocks(2), seed=4)
        engine.store("request-2", tokens(1, seed=5), blocks(1, first=10), FakeEvent())
        until(lambda: len(daemon.snapshot(transfers=True).transfers) == 2, what="both operations told")
        files, said = bundle(daemon, tmp_path / "b.tar.gz")
        cached = engine.read(blocks(2))
    assert set(files) == ALWAYS | OF_THE_CORE | {"metrics.txt"}
    assert said["missing"] == {}
    transfers = {t["request_id"]: t["state"] for t in json.loads(files["transfers.json"])["transfers"]}
    assert transfers == {"request-1": "settled", "request-2": "pending"}
    assert json.loads(files["doctor.json"])["ok"] is True
    settings = json.loads(files["settings.json"])
    assert (settings["pool_size"], settings["admin_token_file"]) == (8 << 20, "(set)")
    locks = json.loads(files["locks.json"])
    assert (locks["daemon_held"], locks["any_party_held"]) == (True, True)
    assert json.loads(files["allocation.json"])["pool"]["layout"]["slab_bytes"] == 256 << 10
    assert json.loads(files["process.json"])["pid"] == daemon.pid
    assert b"kvgate_scrape_success 1.0" in files["metrics.txt"]
    everything = b"".join(files.values())
    assert TOKEN.encode() not in everything
    assert b"secret-place" not in everything
    assert str(prompt[5]).encode() + b", " + str(prompt[6]).encode() not in everything
    assert cached[:32] not in everything


def test_a_stopped_core(daemon: Daemon, tmp_path: Path) -> None:
    daemon.pause()
    try:
        files, said = bundle(daemon, tmp_path / "b.tar.gz")
    finally:
        daemon.go_on()
    assert set(files) == ALWAYS | {"metrics.txt"}, "the admin process answers"
    assert set(said["missing"]) == OF_THE_CORE
    assert b"kvgate_scrape_success 0.0" in files["metrics.txt"]
    assert json.loads(files["process.json"])["process"].startswith("T (stopped)")
    assert json.loads(files["doctor.json"])["ok"] is False


def test_a_killed_core(daemon: Daemon, tmp_path: Path) -> None:
    daemon.kill()
    until(lambda: not daemon.processes(), 10, "the admin process went too")
    files, said = bundle(daemon, tmp_path / "b.tar.gz")
    assert set(files) == ALWAYS
    assert set(said["missing"]) == OF_THE_CORE | {"metrics.txt"}
    assert "dead" in json.loads(files["process.json"])["process"]
    assert json.loads(files["settings.json"])["pool_size"] == 8 << 20
    assert json.loads(files["locks.json"])["daemon_held"] is False


def test_nothing_there_is_told_and_still_a_bundle(tmp_path: Path) -> None:
    with Daemon() as never_started:
        files, said = bundle(never_started, tmp_path / "b.tar.gz")
    assert {"manifest.json", "doctor.json", "versions.json", "settings-here.json"} <= set(files)
    assert "allocation.json" in said["missing"]


def test_where_it_cannot_be_written_it_fails(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "bundle", "--out", str(tmp_path / "none" / "b.tar.gz"), "--run-dir", str(tmp_path)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_without_a_name_it_gets_one(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "bundle", "--run-dir", str(tmp_path / "none")],
        cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    (made,) = tmp_path.glob("kvgate-bundle-*Z.tar.gz")
    assert done.stdout.startswith(str(made))
    assert "without state.json: " in done.stderr
    assert done.stderr.endswith("what is there was read from its files and from this machine\n")
