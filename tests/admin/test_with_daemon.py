"""The admin API of a real daemon: what it shows is what engines did, and one change reaches them all."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.wire.codes import Lifecycle, OperationKind, OutcomeKind, Phase, State
from gateway.wire.messages import AdapterStats, OperationInfo, Sample
from tests.support.admin_process import AdminProcess
from tests.support.daemon import Daemon
from tests.support.party import NAMESPACE, RawParty
from tests.support.poll import until

#: Answers come within two seconds whatever the core does; the rest is for a busy machine.
BOUND_SECONDS = 5.0


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with Daemon() as running:
        yield running.start()


@pytest.fixture
def api(daemon: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=daemon.admin_url, timeout=20, trust_env=False) as client:
        yield client


def scrape(api: httpx.Client) -> dict[tuple[str, frozenset], float]:
    text = api.get("/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def series(name: str, **labels: str) -> tuple[str, frozenset]:
    return name, frozenset(labels.items())


def stats(pending: tuple[OperationInfo, ...] = ()) -> AdapterStats:
    return AdapterStats(
        state=State.HEALTHY,
        gauges=(
            Sample("pending_stores", (), float(len(pending))),
            Sample("pending_retrieves", (), 1.0),
            Sample("retained_events", (), 2.0),
        ),
        counters=(Sample("operations", ("store", "stored"), 7.0),),
        pending=pending,
    )


def operation(number: int, request_id: str) -> OperationInfo:
    return OperationInfo(
        number=number, request_id=request_id, kind=OperationKind.STORE, phase=Phase.COPYING, age_seconds=0.5, chunks=2
    )


def test_engine_document_and_scrape_say_what_the_heartbeat_carried(daemon: Daemon, api: httpx.Client) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.store(range(3))
        party.ping(stats=stats((operation(5, "r5"), operation(6, "r6"))))
        engine = api.get("/v1/engines/engine-a").json()
        counts = [engine[name] for name in ("pending_stores", "pending_retrieves", "retained_events")]
        assert counts == [2, 1, 2]
        assert [p["pid"] for p in engine["parties"]] == [os.getpid()]
        scraped = scrape(api)
        labels = {"engine": "engine-a", "model": "model-a"}
        for name, count in zip(("pending_stores", "pending_retrieves", "retained_events"), counts, strict=True):
            assert scraped[series(f"kvgate_engine_{name}", **labels)] == count
        assert scraped[series("kvgate_engine_operations_total", **labels, kind="store", outcome="stored")] == 7
        assert scraped[series("kvgate_chunks", state="ready")] == 3
        assert scraped[series("kvgate_commits_total")] == 3
        assert scraped[series("kvgate_parties", role="worker")] == 1
        assert scraped[series("kvgate_process_threads", process="core")] >= 1
        assert scraped[series("kvgate_process_threads", process="admin")] >= 1
        found = api.get("/v1/transfers?request=r5").json()["transfers"]
        assert [(t["engine"], t["number"], t["state"]) for t in found] == [("engine-a", 5, "pending")]


def test_promtool_has_nothing_to_say_of_a_real_scrape(daemon: Daemon, api: httpx.Client) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    with RawParty(daemon.run_dir).register() as party:
        party.store(range(2))
        party.ping(stats=stats())
        text = api.get("/metrics").content
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_a_drain_is_unready_in_the_same_step_and_completes_when_the_last_store_ends(
    daemon: Daemon, api: httpx.Client
) -> None:
    with RawParty(daemon.run_dir).register() as party:
        number = party.next_operation()
        (grant,) = party.reserve((1,), number)
        begun = api.post("/v1/drain", json={"deadline_seconds": 60, "reason": "kernel update"})
        assert (begun.status_code, begun.json()["state"]) == (202, "draining")
        refused = api.get("/readyz")
        assert refused.status_code == 503
        assert [failing["name"] for failing in refused.json()["failing"]] == ["state"]
        assert api.get("/livez").status_code == 200
        assert party.ping(next_operation=number + 1, operations=(number,)).state is Lifecycle.DRAINING
        again = api.post("/v1/drain", json={"deadline_seconds": 50})
        assert (again.status_code, again.json()["id"]) == (202, begun.json()["id"])
        assert again.json()["deadline_at"] < begun.json()["deadline_at"]
        party.write(grant, 1)
        assert party.commit(number, grant.generation) == ("committed",)
        ended = api.get("/v1/drain?wait_seconds=20").json()
        assert (ended["state"], ended["outcome"], ended["aborted"]) == ("drained", "completed", 0)
        assert api.post("/v1/drain").status_code == 200
        assert scrape(api)[series("kvgate_drains_total", outcome="completed")] == 1
        assert api.post("/v1/resume").json()["ready"] is True
        assert api.get("/readyz").status_code == 200
    audit = [(line["action"], line["result"]) for line in daemon.log_lines("audit")]
    assert audit == [("drain", "ok")] * 3 + [("resume", "ok")]


def test_a_drain_past_its_deadline_cuts_and_counts(daemon: Daemon, api: httpx.Client) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.reserve((1, 2), party.next_operation())
        api.post("/v1/drain", json={"deadline_seconds": 0.2})
        ended = api.get("/v1/drain?wait_seconds=20").json()
        assert ended["outcome"] == "deadline_exceeded"
        assert ended["aborted"] == 1
        assert api.get("/v1/cache").json()["pool"]["quarantined"] == 2


def test_one_engine_is_drained_and_removed_alone(daemon: Daemon, api: httpx.Client) -> None:
    with (
        RawParty(daemon.run_dir).register() as party,
        RawParty(daemon.run_dir, engine="engine-b", group="group-2").register() as other,
    ):
        assert api.post("/v1/engines/engine-b/drain", json={"deadline_seconds": 30}).status_code in (200, 202)
        until(lambda: api.get("/v1/engines/engine-b").json()["state"] == "drained", 20, "engine-b is drained")
        assert other.ping().state is Lifecycle.DRAINED
        assert party.ping().state is Lifecycle.READY
        assert api.get("/readyz").status_code == 200
        assert api.post("/v1/engines/engine-b/resume").json()["state"] == "ready"
        assert other.ping().state is Lifecycle.READY
        assert api.delete("/v1/engines/engine-b").status_code == 204
        assert other.ping().known is False
        party.store((1,))
        assert api.post("/v1/engines/nobody/drain").status_code == 404


def test_a_clear_forgets_what_was_named(daemon: Daemon, api: httpx.Client) -> None:
    with RawParty(daemon.run_dir).register() as party:
        party.store(range(4))
        tried = api.post("/v1/cache/clear", json={"namespace": NAMESPACE.hex(), "dry_run": True}).json()
        assert (tried["chunks"], tried["dry_run"]) == (4, True)
        assert api.get("/v1/cache").json()["models"][0]["chunks"] == 4
        assert api.post("/v1/cache/clear", json={"model": "another"}).status_code == 404
        assert api.post("/v1/cache/clear", json={"model": "model-a", "reason": "new weights"}).json()["chunks"] == 4
        assert party.load(range(4)) == [None] * 4
    assert sum(n["chunks"] for n in api.get("/v1/cache").json()["namespaces"]) == 0


def test_a_stopped_core_leaves_probes_and_scrapes_answering(daemon: Daemon, api: httpx.Client) -> None:
    assert scrape(api)[series("kvgate_scrape_success")] == 1
    daemon.pause()
    try:
        for path, status in (("/livez", 503), ("/readyz", 503), ("/metrics", 200), ("/v1/state", 503)):
            began = time.monotonic()
            answer = api.get(path)
            assert time.monotonic() - began < BOUND_SECONDS, path
            assert answer.status_code == status, path
        scraped = scrape(api)
        assert scraped[series("kvgate_scrape_success")] == 0
        assert series("kvgate_ready") not in scraped, "nothing of an earlier scrape is shown"
        assert scraped[series("kvgate_process_threads", process="core")] >= 1
        assert {name for name, _ in scraped} <= {
            "kvgate_scrape_success",
            "kvgate_scrape_duration_seconds",
            "kvgate_process_cpu_seconds_total",
            "kvgate_process_resident_bytes",
            "kvgate_process_open_fds",
            "kvgate_process_threads",
        }
        names = [failing["name"] for failing in api.get("/readyz").json()["failing"]]
        assert names == ["core", "data_plane"]
    finally:
        daemon.go_on()
    until(lambda: api.get("/readyz").status_code == 200, 20, "ready again")


def test_settled_operations_are_remembered(daemon: Daemon, api: httpx.Client) -> None:
    settled = OperationInfo(
        number=1, request_id="r1", kind=OperationKind.RETRIEVE, phase=Phase.SETTLED, age_seconds=0.2, chunks=1,
        outcome=OutcomeKind.LOADED, chunks_done=1, settled_at=time.time(),
    )  # fmt: skip
    with RawParty(daemon.run_dir).register() as party:
        party.ping(stats=AdapterStats(state=State.HEALTHY, settled=(settled,)))
    (found,) = api.get("/v1/transfers", params={"state": "settled"}).json()["transfers"]
    assert (found["request_id"], found["outcome"], found["chunks_done"]) == ("r1", "loaded", 1)


def test_the_admin_process_is_started_again(daemon: Daemon, api: httpx.Client) -> None:
    (child,) = (pid for pid in daemon.processes() if pid != daemon.pid)
    os.kill(child, 9)
    until(lambda: [pid for pid in daemon.processes() if pid not in (daemon.pid, child)], 20, "another admin process")
    until(lambda: daemon.snapshot().state is Lifecycle.READY)


def test_an_admin_process_on_its_own_outlives_its_gateway(daemon: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with AdminProcess(daemon.run_dir, "--admin", address), httpx.Client(base_url=f"http://{address}") as alone:

        def shown_boot() -> str:
            try:
                answer = alone.get("/v1/state", timeout=20)
            except httpx.ConnectError:
                return ""
            return answer.json()["boot_id"] if answer.status_code == 200 else ""

        until(lambda: shown_boot() == daemon.ready_line["boot_id"], 20, "it listens")
        daemon.kill()
        assert alone.get("/livez", timeout=20).status_code == 503
        daemon.start()
        until(lambda: shown_boot() == daemon.ready_line["boot_id"], 20, "it found the next boot")
        assert alone.post("/v1/drain", timeout=20).status_code in (200, 202)


def test_a_hung_core_is_killed_by_the_watchdog() -> None:
    with Daemon({"KVGATE_WATCHDOG_SECONDS": "2"}) as daemon:
        daemon.start()
        daemon.pause()
        assert daemon.wait(60) == -9
        (line,) = daemon.log_lines("core_silent")
        assert "stopped" in str(line["process"])
        assert daemon.log_lines("core_killed")
        until(lambda: not daemon.processes(), 20, "the admin process ended too")
        daemon.start()
        assert daemon.snapshot().ready
