"""The admin process as a process: where it listens, whom it lets in, when it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import httpx
import pytest

from gateway.wire.messages import Done, Resume, SnapshotRequest
from tests.support.admin_process import REPOSITORY, AdminProcess
from tests.support.core_double import CoreDouble, check, drain, snapshot
from tests.support.poll import until

TOKEN = {"KVGATE_ADMIN_TOKEN": "secret"}
BEARER = {"Authorization": "Bearer secret"}


@pytest.fixture
def core(tmp_path: Path) -> Iterator[CoreDouble]:
    with CoreDouble(tmp_path) as double:
        double.says(Resume, Done(number=0, boot=b""))
        yield double


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def has_ended(pid: int) -> bool:
    """Gone, or waiting for a parent that does not ask."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_it_tells_where_it_listens_and_takes_the_word_back(core: CoreDouble) -> None:
    with AdminProcess(core.run_dir) as process:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", process.url)
        with process.client() as client:
            assert client.get("/livez").status_code == 200
        assert process.stop() == 0
        assert not process.announces


def test_who_waits_for_a_drain_is_answered_when_it_stops(core: CoreDouble) -> None:
    core.says(SnapshotRequest, snapshot(drain=drain()))
    with AdminProcess(core.run_dir) as process, process.client() as client, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(client.get, "/v1/drain?wait_seconds=300")
        until(lambda: len(core.asked(SnapshotRequest)) > 1, what="the wait asks again")
        assert process.stop() == 0
        assert waiting.result(20).json()["code"] == "unreachable"
        assert "Traceback" not in process.stderr


def test_beyond_loopback_it_needs_a_token(core: CoreDouble) -> None:
    refused = AdminProcess(core.run_dir, settings={"KVGATE_ADMIN": "0.0.0.0:0"})
    assert refused.run() == 2
    assert "others can reach" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_without_a_run_dir_it_asks_which_gateway(tmp_path: Path) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "gateway.admin"],
        cwd=REPOSITORY,
        env={name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (refused.returncode, "which gateway?" in refused.stderr) == (2, True)


def test_with_a_token_changes_need_it_and_reads_do_not(core: CoreDouble) -> None:
    with AdminProcess(core.run_dir, settings=TOKEN) as process, process.client() as client:
        assert client.get("/v1/state").status_code == 200
        refused = client.post("/v1/resume")
        assert (refused.status_code, refused.json()["code"]) == (401, "token_missing")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        wrong = client.post("/v1/resume", headers={"Authorization": "Bearer wrong"})
        assert (wrong.status_code, wrong.json()["code"]) == (401, "token_wrong")
        assert core.asked(Resume) == []
        assert client.post("/v1/resume", headers=BEARER).status_code == 200
        assert len(core.asked(Resume)) == 1
        assert "secret" not in process.stderr


def test_beyond_loopback_reads_need_the_token_and_probes_do_not(core: CoreDouble) -> None:
    settings = {**TOKEN, "KVGATE_ADMIN": "0.0.0.0:0"}
    with AdminProcess(core.run_dir, settings=settings) as process, process.client() as client:
        assert client.get("/v1/state").status_code == 401
        assert client.get("/v1/state", headers=BEARER).status_code == 200
        for path in ("/livez", "/readyz", "/metrics"):
            assert client.get(path).status_code == 200, path


def test_the_probe_listener_has_three_routes_and_no_sentences(core: CoreDouble) -> None:
    port = free_port()
    with (
        AdminProcess(core.run_dir, "--probe", f"127.0.0.1:{port}", settings=TOKEN),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as probe,
    ):
        assert [probe.get(path).status_code for path in ("/livez", "/readyz", "/metrics")] == [200] * 3
        for path in ("/v1/state", "/v1/openapi.json", "/docs", "/"):
            assert probe.get(path).status_code == 404, path
        assert probe.post("/v1/resume", headers=BEARER).status_code == 404
        broken = check("pool", ok=False, reason="/run/somewhere is gone")
        core.says(type(core.received[0]), snapshot(ready=False, checks=(broken,)))
        for path in ("/readyz", "/readyz?verbose"):
            refused = probe.get(path)
            assert refused.json()["failing"] == [{"name": "pool", "reason": ""}]
            assert "somewhere" not in refused.text


def test_a_taken_address_is_one_sentence(core: CoreDouble) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = AdminProcess(core.run_dir, "--admin", address)
        assert refused.run() == 1
    assert f"cannot listen on the admin address {address}" in refused.stderr
    assert "Traceback" not in refused.stderr


#: A core that starts its admin process as the daemon does, then answers, and prints a line for each request.
CORE = """
import os, subprocess, sys
from pathlib import Path
from tests.support.core_double import CoreDouble
from tests.support.poll import until
core = CoreDouble(Path(sys.argv[1]))
child = subprocess.Popen(
    [sys.executable, "-m", "gateway.admin", "--run-dir", str(core.run_dir)],
    env={**os.environ, "KVGATE_CORE_PID": str(os.getpid())},
)
print(child.pid, flush=True)
seen = 0
while True:
    until(lambda: len(core.received) > seen, 3600)
    seen += 1
    print(type(core.received[seen - 1]).__name__, flush=True)
"""


class Core:
    """A process that is a core double with an admin process of its own."""

    def __init__(self, base: Path, watchdog_seconds: float) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}
        settings = {"KVGATE_ADMIN": "127.0.0.1:0", "KVGATE_WATCHDOG_SECONDS": str(watchdog_seconds)}
        self._file = base / "run.admin" / "admin.json"
        self._errors = base / "stderr"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", CORE, str(base)],
                cwd=REPOSITORY, env={**environ, **settings}, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self.admin_pid = int(self.process.stdout.readline())

    def wait_for_requests(self, number: int) -> None:
        for _ in range(number):
            assert self.process.stdout.readline()

    @property
    def stderr(self) -> str:
        return self._errors.read_text(errors="replace")

    def __enter__(self) -> Self:
        until(self._file.exists, 30, "the admin process listens")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(20)
        self.process.stdout.close()
        until(lambda: has_ended(self.admin_pid), 20, "the admin process ended")


def test_it_ends_when_its_core_dies(tmp_path: Path) -> None:
    with Core(tmp_path, watchdog_seconds=0) as core:
        core.process.kill()
        core.process.wait(20)
        until(lambda: has_ended(core.admin_pid), 20, "the admin process ended")


def test_a_hung_core_is_explained_and_killed(tmp_path: Path) -> None:
    with Core(tmp_path, watchdog_seconds=2) as core:
        core.wait_for_requests(2)
        core.process.send_signal(signal.SIGSTOP)
        assert core.process.wait(60) == -signal.SIGKILL
        until(lambda: has_ended(core.admin_pid), 20, "the admin process ended")
        assert '"event": "core_silent"' in core.stderr
        assert "stopped" in core.stderr, "the kernel's word for what the core does"
        assert "2 pending stores" in core.stderr, "what was last seen of it"
        assert '"event": "core_killed"' in core.stderr


def test_a_core_that_answers_is_left_alone(tmp_path: Path) -> None:
    with Core(tmp_path, watchdog_seconds=1) as core:
        core.wait_for_requests(4)
        assert core.process.poll() is None
        assert "core_silent" not in core.stderr
