"""The admin server inside an engine: it answers and drains whatever became of the daemon."""

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from adapter import AdapterConfig, CacheIdentity, State, WorkerAdapter
from adapter.actions import Unit
from adapter.transfer.chunks import copy_unit
from gateway import switches
from gateway.device.copy import ChunkCopier
from gateway.log import AUDIT
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import Reason, SwitchMode, SwitchScope
from tests.support import scrape
from tests.support.daemon import COMMAND, REPOSITORY, Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.events import FakeEvent
from tests.support.poll import until

TOKEN = "a-token-of-this-test"  # noqa: S105
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # tmp_path: pytest makes its own first
    """Where Unix sockets go: below a directory of the test's own, whose path is short enough for one."""
    monkeypatch.delenv("KVGATE_ADMIN_TOKEN", raising=False)
    with tempfile.TemporaryDirectory(prefix="kvgate-test-") as directory:
        monkeypatch.setattr("tempfile.tempdir", directory)
        yield Path(directory) / f"kvgate-adapters-{os.geteuid()}"


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[Engine]:
    with Engine(daemon.run_dir, admin="unix", heartbeat_seconds=30) as made:
        yield made.wait_healthy()


@pytest.fixture
def api(engine: Engine) -> Iterator[httpx.Client]:
    with client(engine.worker) as made:
        yield made


def client(worker: WorkerAdapter) -> httpx.Client:
    url = worker.admin_url
    assert url is not None
    if url.startswith("unix:"):
        transport = httpx.HTTPTransport(uds=url.removeprefix("unix:"))
        return httpx.Client(transport=transport, base_url="http://localhost", timeout=20)
    return httpx.Client(base_url=url, timeout=20, trust_env=False)


def alone(run_dir: Path, **settings: object) -> WorkerAdapter:
    """A worker half without a gateway."""
    config = AdapterConfig(engine_name="e", **settings)
    return WorkerAdapter(run_dir, CacheIdentity(model="m"), "g", config=config)


def work(engine: Engine) -> list[FakeEvent]:
    """Two stores and a retrieve that nothing but a drain will end."""
    events = [FakeEvent() for _ in range(3)]
    engine.store("a", tokens(2, seed=1), blocks(2), events[0])
    engine.store("b", tokens(2, seed=2), blocks(2, first=10), events[1])
    engine.retrieve("c", tokens(2, seed=3), blocks(2, first=20), events[2])
    return events


def three(api: httpx.Client) -> tuple[int, int, int]:
    return scrape.three(scrape.parse(api.get("/metrics").text))


def operator_drains(api: httpx.Client) -> float:
    return scrape.value(scrape.parse(api.get("/metrics").text), "kvgate_adapter_drains_total", trigger="operator")


def test_state_tells_of_the_engine_and_its_gateway(engine: Engine, api: httpx.Client) -> None:
    assert api.get("/livez").json() == {"alive": True}
    state = api.get("/v1/state").json()
    assert (state["state"], state["health"], state["ready"], state["drain"]) == ("ready", "healthy", True, None)
    (mine,) = state["engines"]
    assert (mine["name"], mine["model"], mine["parties"]) == ("engine", "tiny", 1)
    assert state["boot_id"] == engine.worker.snapshot().boot_id
    assert api.get("/v1/drain").json() is None


@pytest.mark.parametrize("fate", ["lives", "stopped", "killed"])
def test_its_drain_settles_everything_whatever_the_daemon_does(
    daemon: Daemon, engine: Engine, api: httpx.Client, fate: str
) -> None:
    """The heartbeat is long: nothing but the operator's drain, or the daemon's proven death, can have settled it."""
    known = tokens(2, seed=3)
    engine.store_and_wait("known", known, blocks(2, first=20), seed=3)
    events = work(engine)
    until(lambda: daemon.snapshot().slots.writing == 4, what="granted")
    assert three(api) == (2, 1, 3)
    if fate == "stopped":
        daemon.pause()
    elif fate == "killed":
        daemon.kill()
    reply = api.post("/v1/drain", json={"deadline_seconds": 0, "reason": "new kernel"})
    assert reply.status_code == 202
    ended = api.get("/v1/drain?wait_seconds=10").json()
    assert (ended["state"], ended["reason"], ended["requested_by"]) == ("drained", "new kernel", "api")
    assert three(api) == (0, 0, 0)
    assert operator_drains(api) == 1
    assert engine.worker.state is State.DRAINING
    assert engine.worker.get_block_ids_with_load_errors() == set(blocks(2, first=20))
    if fate != "killed":  # death may have been quicker
        assert (ended["outcome"], ended["aborted"], ended["done"]) == ("forced", 3, 0)
        outcomes = [(t["request_id"], t["outcome"]) for t in api.get("/v1/transfers").json()["transfers"][:3]]
        assert sorted(outcomes) == [("a", "drained"), ("b", "drained"), ("c", "drained")]
    assert api.post("/v1/drain").status_code == 200, "drained already"
    assert operator_drains(api) == 1
    assert api.get("/livez").status_code == 200
    if fate == "stopped":
        daemon.go_on()
    elif fate == "killed":
        state = api.get("/v1/state").json()
        assert state["health"] == "degraded"
        assert any("dead" in check["reason"] for check in state["checks"])
        daemon.start()
    assert api.post("/v1/resume").status_code == 200
    engine.wait_healthy()
    assert api.get("/v1/state").json()["state"] == "ready"
    engine.store_and_wait("after", tokens(2, seed=9), blocks(2, first=40), seed=9)
    del events


def test_a_drain_lets_granted_work_finish(daemon: Daemon, engine: Engine, api: httpx.Client) -> None:
    event = FakeEvent()
    engine.store("granted", tokens(2), blocks(2), event)
    until(lambda: daemon.snapshot().slots.writing == 2, what="granted")
    assert api.post("/v1/drain", json={"deadline_seconds": 60}).json()["remaining"]["operations"] == 1
    assert api.get("/v1/state").json()["state"] == "draining"
    assert [t["request_id"] for t in api.get("/v1/transfers?state=pending").json()["transfers"]] == ["granted"]
    event.fire()
    ended = api.get("/v1/drain?wait_seconds=20").json()
    assert (ended["outcome"], ended["done"], ended["aborted"]) == ("completed", 1, 0)
    assert api.get("/v1/transfers").json()["transfers"][0]["outcome"] == "stored"


def test_resume_cancels_a_drain_under_way(engine: Engine, api: httpx.Client) -> None:
    event = FakeEvent()
    engine.store("held", tokens(1), blocks(1), event)
    until(lambda: "copying" in api.get("/v1/transfers").text or "waiting" in api.get("/v1/transfers").text)
    api.post("/v1/drain", json={"deadline_seconds": 60})
    resumed = api.post("/v1/resume").json()
    assert resumed["state"] == "ready"
    event.fire()
    assert engine.worker.wait_settled(15)
    engine.store_and_wait("again", tokens(1, seed=5), blocks(1, first=8), seed=5)


def test_the_engine_s_own_drain_is_the_same_drain(engine: Engine, api: httpx.Client) -> None:
    engine.worker.drain("shutting down", 0)
    told = api.get("/v1/drain").json()
    assert (told["state"], told["reason"], told["requested_by"]) == ("drained", "shutting down", "the engine")
    engine.worker.resume()
    assert api.get("/v1/state").json()["state"] == "ready"


def test_each_change_is_an_audit_line_of_facts(api: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger=AUDIT)
    api.post("/v1/drain", json={"deadline_seconds": 0, "reason": "an upgrade"}, headers={"X-Requested-By": "ann"})
    api.post("/v1/drain", json={"exit": True})
    api.post("/v1/resume")

    records = [record for record in caplog.records if record.name == AUDIT]
    keys = ("engine", "action", "before", "after", "result", "reason", "code")
    assert [tuple(record.facts.get(key) for key in keys) for record in records] == [
        ("engine", "drain", "ready", "drained", "ok", "an upgrade", None),
        ("engine", "drain", "drained", "drained", "refused", None, "invalid"),
        ("engine", "resume", "drained", "ready", "ok", None, None),
    ]
    assert records[0].getMessage() == (
        'audit engine=engine who=ann peer="unix socket" action=drain before=ready after=drained result=ok'
        ' reason="an upgrade"'
    )


def test_switches_are_told_with_whose_they_are(daemon: Daemon, engine: Engine, api: httpx.Client) -> None:
    switches.put(daemon.run_dir, SwitchScope.MODEL, "tiny", SwitchMode.NO_STORE)
    switches.put(daemon.run_dir, SwitchScope.MODEL, "another", SwitchMode.OFF)
    with (
        Engine(daemon.run_dir, name="beside", admin="unix", heartbeat_seconds=0.2) as beside,
        client(beside.worker) as its,
    ):
        until(lambda: its.get("/v1/state").json()["switches"], what="seen")
        (told,) = its.get("/v1/state").json()["switches"]
        assert (told["scope"], told["name"], told["mode"]) == ("model", "tiny", "no_store")
        assert told["since_at"] > 0
        assert "kvgate on --model tiny" in its.get("/v1/overview").text


@pytest.mark.parametrize(
    ("body", "field"),
    [({"deadline_seconds": -1}, "deadline_seconds"), ({"deadline_second": 1}, "deadline_second"), ({"exit": True}, "")],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(api: httpx.Client, body: dict, field: str) -> None:
    refused = api.post("/v1/drain", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert field in refused.text
    assert api.get("/v1/drain").json() is None
    assert api.post("/v1/drain", content=b"deadline=1").status_code == 415


def test_routes_that_are_the_gateway_s_do_not_exist(api: httpx.Client) -> None:
    described = set(api.get("/v1/openapi.json").json()["paths"])
    assert described == {"/livez", "/metrics", "/v1/state", "/v1/overview", "/v1/drain", "/v1/resume", "/v1/transfers"}
    for path in ("/v1/engines", "/v1/cache", "/readyz", "/docs", "/"):
        assert api.get(path).status_code == 404, path


def test_the_command_line_works_on_it(engine: Engine) -> None:
    def kvgate(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, *words, "--admin", str(engine.worker.admin_url)]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)

    engine.store("held", tokens(1), blocks(1), FakeEvent())
    assert "held" in kvgate("transfers", "--state", "pending").stdout
    forced = kvgate("drain", "--force", "--json")
    assert (forced.returncode, json.loads(forced.stdout)["aborted"]) == (3, 1)
    assert kvgate("status").returncode == 5
    assert kvgate("resume").stdout == "the gateway is ready\n"


def test_a_unix_socket_is_private_and_goes_with_its_adapter(run_dir: Path, sockets: Path) -> None:
    worker = alone(run_dir, admin="unix")
    path = Path(str(worker.admin_url).removeprefix("unix:"))
    try:
        assert path.parent == sockets
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with client(worker) as api:
            assert api.get("/v1/state").json()["ready"] is False, "there is no gateway"
    finally:
        worker.close()
    assert not path.exists()


def test_sockets_of_killed_engines_are_swept(run_dir: Path, sockets: Path) -> None:
    sockets.mkdir(mode=0o700)
    stale, live = sockets / "stale.sock", sockets / "live.sock"
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as listening:
        dead.bind(str(stale))
        listening.bind(str(live))
        listening.listen()
        dead.close()
        alone(run_dir, admin="unix").close()
        assert (stale.exists(), live.exists()) == (False, True)


def test_a_directory_that_others_may_enter_is_refused_and_nothing_is_left(run_dir: Path, sockets: Path) -> None:
    sockets.mkdir()
    sockets.chmod(0o755)
    with pytest.raises(OSError, match="mode 755"):
        alone(run_dir, admin="unix")


def test_a_tcp_listener_takes_a_free_port_and_a_taken_one_is_told(run_dir: Path) -> None:
    worker = alone(run_dir, admin="127.0.0.1:0")
    try:
        with client(worker) as api:
            assert api.get("/livez").status_code == 200
            assert api.post("/v1/resume", headers={"Origin": "http://elsewhere.example"}).status_code == 403
            assert api.get("/v1/state", headers={"Host": "elsewhere.example"}).status_code == 403
        with pytest.raises(OSError, match="ports of their own"):
            alone(run_dir, admin=str(worker.admin_url).removeprefix("http://"))
    finally:
        worker.close()


def test_beyond_loopback_it_needs_a_token(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="others can reach"):
        alone(run_dir, admin="0.0.0.0:0")
    with pytest.raises(ValueError, match="cannot be read"):
        alone(run_dir, admin="0.0.0.0:0", admin_token_file=str(tmp_path / "nowhere"))
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\n")
    worker = alone(run_dir, admin="0.0.0.0:0", admin_token_file=str(token_file))
    try:
        with client(worker) as api:
            assert api.get("/v1/state").status_code == 401
            assert api.get("/v1/state", headers=BEARER).status_code == 200
            assert api.get("/metrics").status_code == 200
    finally:
        worker.close()


@pytest.mark.parametrize("admin", ["", "9480", "127.0.0.1", "unix:/tmp/x", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused_when_the_settings_are_made(admin: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        AdapterConfig(admin=admin)


def test_who_waits_is_answered_when_it_closes(daemon: Daemon) -> None:
    """A copy still runs when the adapter closes, so that the drain that is waited for is not over."""
    runs, may_end = threading.Event(), threading.Event()

    def slow_copy(unit: Unit, mapping: PoolMapping, copier: ChunkCopier) -> Reason:
        runs.set()
        may_end.wait(60)
        return copy_unit(unit, mapping, copier)

    answers: list[httpx.Response] = []
    with Engine(daemon.run_dir, admin="unix", copy=slow_copy) as engine, client(engine.wait_healthy().worker) as api:
        engine.store("held", tokens(1), blocks(1))
        assert runs.wait(15)
        api.post("/v1/drain", json={"deadline_seconds": 600})
        waiting = threading.Thread(target=lambda: answers.append(api.get("/v1/drain?wait_seconds=300")))
        waiting.start()
        try:
            engine.worker.close()
            waiting.join(20)
        finally:
            may_end.set()
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(503, "unreachable")]


def test_without_the_web_framework_it_says_what_to_install(run_dir: Path) -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from adapter import *\n"
        "try:\n"
        "    WorkerAdapter(sys.argv[1], CacheIdentity(model='m'), 'g', config=AdapterConfig(admin='unix'))\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "WorkerAdapter(sys.argv[1], CacheIdentity(model='m'), 'g').close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(run_dir)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "kvgate[admin]" in done.stdout
