"""Operators' switches, through a real daemon and real adapters: with it alive, dead and hung."""

import json
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from adapter import State
from gateway import switches
from gateway.client import GatewayRefused
from gateway.wire.codes import ErrorCode, Role, SwitchMode, SwitchScope
from gateway.wire.messages import Error, Switch, TransferInfo
from tests.support.daemon import COMMAND, REPOSITORY, Daemon
from tests.support.engine import HEARTBEAT_SECONDS, Engine, blocks, tokens
from tests.support.events import FakeEvent
from tests.support.party import RawParty
from tests.support.poll import until

PROMPT = tokens(2)
#: A command that finds nobody gives up so soon.
SOON = ("--timeout", "0.5")


@pytest.fixture
def engine(daemon: Daemon) -> Iterator[Engine]:
    """An engine whose prompt is in the cache."""
    with Engine(daemon.run_dir, drain_deadline_seconds=0.5) as made:
        made.wait_healthy().store_and_wait("stored", PROMPT, blocks(2), seed=1)
        yield made


def kvgate(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *words, "--run-dir", str(daemon.run_dir)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)


def is_now(engine: Engine, mode: SwitchMode) -> None:
    """Both halves obey it, soon."""
    halves = (engine.worker, engine.scheduler)
    until(lambda: all(half.snapshot().switch is mode for half in halves), 10, f"both halves are {mode}")


def is_refused(engine: Engine, what: str) -> bool:
    """Whether one more operation of this kind ends at once, refused by a switch."""
    before = engine.total("operations", kind=what, outcome="refused")
    submit = engine.store if what == "store" else engine.retrieve
    submit(f"one more {what}", PROMPT, blocks(2, first=8))
    assert engine.worker.wait_settled(15)
    return engine.total("operations", kind=what, outcome="refused") == before + 1


def latest(daemon: Daemon, number: int) -> tuple[TransferInfo, ...]:
    """The operations that settled last, as the gateway tells them."""
    return daemon.snapshot(transfers=True).transfers[:number]


def test_off_is_obeyed_told_and_outlasts_drain_resume_and_restart(daemon: Daemon, engine: Engine) -> None:
    done = kvgate(daemon, "off", "--model", "tiny", "--reason", "wrong answers")
    assert (done.returncode, "model  tiny  off" in done.stdout) == (0, True), done.stderr
    is_now(engine, SwitchMode.OFF)
    assert engine.hit("r1", PROMPT) == 0
    assert is_refused(engine, "store")
    assert is_refused(engine, "retrieve")
    assert engine.worker.get_block_ids_with_load_errors() == set(blocks(2, first=8)), "the engine computes them"
    assert engine.worker.state is State.HEALTHY
    assert engine.total("drains", trigger="switch") == 1
    until(lambda: [one.operation.reason for one in latest(daemon, 2)] == ["off", "off"], 10, "the reason is told")

    assert "model tiny off" in kvgate(daemon, "status").stdout
    shown = httpx.get(f"{daemon.admin_url}/metrics").text
    (sample,) = [line for line in shown.splitlines() if line.startswith("kvgate_switch_mode{")]
    assert sample.endswith(" 1.0")
    assert all(label in sample for label in ('scope="model"', 'name="tiny"', 'mode="off"')), sample
    (line,) = [line for line in daemon.log_lines("audit") if line["action"] == "switch"]
    assert (line["before"], line["after"], line["reason"]) == ("on", "off", "wrong answers")

    assert kvgate(daemon, "drain").returncode == 0
    assert kvgate(daemon, "resume").returncode == 0
    until(engine.is_healthy, 15, "back from the drain")
    assert (engine.hit("r2", PROMPT), engine.worker.snapshot().switch) == (0, "off")
    daemon.stop()
    daemon.start()
    until(engine.is_healthy, 15, "back from the restart")
    assert (engine.hit("r3", PROMPT), is_refused(engine, "store")) == (0, True)

    assert kvgate(daemon, "on", "--model", "tiny").stdout == "all is on\n"
    is_now(engine, SwitchMode.ON)
    until(lambda: engine.hit("r4", PROMPT) == len(PROMPT), 10, "hits are back")
    assert not is_refused(engine, "store")


def test_a_name_that_no_engine_has_is_said_to_be_so(daemon: Daemon, engine: Engine) -> None:
    misspelt = kvgate(daemon, "off", "--model", "tyni")
    told = "kvgate: no engine has the model 'tyni' now; known are: tiny\n"
    assert (misspelt.returncode, misspelt.stderr) == (0, told)
    assert kvgate(daemon, "off", "--model", "tiny").stderr == ""
    assert kvgate(daemon, "off", "--all").stderr == ""
    assert kvgate(daemon, "on", "--model", "tyni").stderr == ""
    again = kvgate(daemon, "on", "--model", "tyni")
    assert (again.returncode, again.stderr) == (0, "kvgate: nothing was switched off for the model 'tyni'\n")
    assert "model  tiny  off" in again.stdout


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_it_works_with_the_daemon_dead_or_hung(daemon: Daemon, engine: Engine, way: str) -> None:
    if way == "killed":
        daemon.kill()
    else:
        daemon.pause()
    try:
        done = kvgate(daemon, "off", "--engine", "engine", *SOON)
        began = time.monotonic()
        assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
        assert f"the name 'engine': its switch is set in {daemon.run_dir}" in done.stderr
        assert "doctor" not in done.stderr, "that would not tell whether it worked"
        is_now(engine, SwitchMode.OFF)
        assert time.monotonic() - began < HEARTBEAT_SECONDS + 1.0, "a heartbeat, and a busy machine"
        assert is_refused(engine, "store")
        assert engine.hit("r1", PROMPT) == 0
    finally:
        if way == "killed":
            daemon.start()
        else:
            daemon.go_on()
    until(engine.is_healthy, 15, "the gateway is back")
    assert engine.hit("r2", PROMPT) == 0
    until(lambda: daemon.snapshot().switches, 10, "the gateway knows it too")
    assert kvgate(daemon, "on", "--engine", "engine").returncode == 0
    is_now(engine, SwitchMode.ON)
    until(lambda: engine.hit("r3", PROMPT) == len(PROMPT), 10, "hits are back")


def test_a_change_that_is_read_too_late_is_not_made(daemon: Daemon) -> None:
    """A daemon that was hung must not undo what was done meanwhile without it."""
    late = Switch(number=0, requested_by="t", scope="node", name="all", mode="off", deadline=time.monotonic() - 1)
    with daemon.admin_client() as client, pytest.raises(GatewayRefused) as refused:
        client.request(late)
    assert refused.value.code is ErrorCode.EXPIRED
    assert daemon.snapshot().switches == ()


@pytest.mark.parametrize("mode", [SwitchMode.NO_STORE, SwitchMode.NO_LOAD])
def test_half_a_switch_leaves_the_other_half(daemon: Daemon, engine: Engine, mode: SwitchMode) -> None:
    assert kvgate(daemon, "off", "--all", "--mode", mode).returncode == 0
    is_now(engine, mode)
    assert engine.hit("r1", PROMPT) == (len(PROMPT) if mode.loads else 0)
    assert is_refused(engine, "store") is not mode.stores
    assert is_refused(engine, "retrieve") is not mode.loads


def test_work_under_way_settles_as_in_a_drain(daemon: Daemon, engine: Engine) -> None:
    event = FakeEvent()  # never fires
    engine.store("waiting", tokens(1, seed=7), blocks(1, first=20), event)
    until(lambda: daemon.snapshot().slots.writing, 10, "it is granted")
    switches.put(daemon.run_dir, SwitchScope.MODEL, "tiny", SwitchMode.OFF)
    assert engine.worker.wait_settled(10)
    assert engine.total("operations", kind="store", outcome="drained") == 1
    snapshot = engine.worker.snapshot()
    assert (snapshot.switch, snapshot.retained_events) == ("off", 0)


def test_an_adapter_that_knows_no_switches_is_refused_too(daemon: Daemon) -> None:
    switches.put(daemon.run_dir, SwitchScope.ENGINE, "engine-a", SwitchMode.OFF)
    with (
        RawParty(daemon.run_dir).register() as worker,
        RawParty(daemon.run_dir, Role.SCHEDULER).register() as scheduler,
        RawParty(daemon.run_dir, engine="engine-b").register() as other,
    ):
        until(lambda: worker.ping().switch is SwitchMode.OFF, 10, "it is told")
        other.store((1,))
        assert scheduler.lookup((1,), 1) == 0
        for reply in (worker.try_reserve((2,), 1), worker.try_read((1,), 2)):
            assert isinstance(reply, Error)
            assert reply.code is ErrorCode.OFF


def test_what_is_no_marker_is_one_warning_that_names_it(daemon: Daemon) -> None:
    bad = daemon.run_dir / "switch.node.perhaps.all"
    bad.touch()
    (line,) = until(lambda: daemon.log_lines("switch_ignored"), 10, "a warning")
    assert str(bad) in str(line["reason"])
    switches.put(daemon.run_dir, SwitchScope.NODE, "all", SwitchMode.OFF)
    until(lambda: daemon.snapshot().switches, 10, "it has looked again")
    assert len(daemon.log_lines("switch_ignored")) == 1
    (audited,) = daemon.log_lines("audit")
    assert (audited["action"], audited["who"], audited["after"]) == ("switch", "a marker", "off")


def test_a_setting_says_what_holds_until_somebody_sets_a_switch() -> None:
    with Daemon({"KVGATE_SWITCH": "no_store"}) as daemon:
        url = f"{daemon.start().admin_url}/v1/switches"
        assert httpx.get(url).json() == {
            "switches": [{"scope": "node", "name": "all", "mode": "no_store", "since_at": None}]
        }
        (one,) = httpx.put(f"{url}/node/all", json={"mode": "on", "reason": "try"}).json()["switches"]
        assert (one["mode"], one["since_at"] is None) == ("on", False)
        with RawParty(daemon.run_dir).register() as party:
            assert party.ping().switch is SwitchMode.ON
            (back,) = httpx.delete(f"{url}/node/all").json()["switches"]
            assert (back["mode"], party.ping().switch) == ("no_store", "no_store")
        slashed = httpx.put(f"{url}/model/org%2Fm", json={"mode": "off"}).json()["switches"]
        assert {one["name"]: one["mode"] for one in slashed if one["scope"] == "model"} == {"org/m": "off"}
        assert httpx.put(f"{url}/rack/1", json={"mode": "off"}).status_code == 422
        assert httpx.put(f"{url}/engine/a%20b", json={"mode": "off"}).status_code == 422
        assert httpx.put(f"{url}/engine/a", json={"mode": "maybe"}).status_code == 422


def test_a_switch_may_be_set_before_the_first_start_and_is_purged_with_the_rest() -> None:
    with Daemon() as daemon:
        daemon.run_dir.mkdir(mode=0o700)
        assert kvgate(daemon, "off", "--all", *SOON).returncode == 0
        assert [one.mode for one in daemon.start().snapshot().switches] == ["off"]
        assert daemon.stop() == 0
        assert kvgate(daemon, "purge", "--yes").returncode == 0
        assert not daemon.run_dir.exists()


@pytest.mark.parametrize("words", [("off",), ("off", "--all", "--model", "m"), ("on", "--engine", "a b")])
def test_a_command_names_one_thing(daemon: Daemon, words: tuple[str, ...]) -> None:
    assert kvgate(daemon, *words).returncode == 2


def test_the_document_is_the_api_s(daemon: Daemon) -> None:
    told = json.loads(kvgate(daemon, "off", "--engine", "e", "--json").stdout)
    assert told == httpx.get(f"{daemon.admin_url}/v1/switches").json()
