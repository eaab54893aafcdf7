"""A real Prometheus scrapes gateway and adapter under load, and sees what is pending and retained on both roads."""

import itertools
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest
import torch

from adapter import AdapterConfig, CacheIdentity, LoadStoreOp, WorkerAdapter
from tests.support.daemon import Daemon
from tests.support.events import FakeEvent
from tests.support.poll import until
from tests.support.prometheus import Prometheus, require_prometheus

ROOT = Path(__file__).resolve().parents[2]
IDENTITY = CacheIdentity(model="tiny", block_tokens=4, chunk_tokens=16)
ENGINE = "scraped"
NUMBERS = itertools.count()  # of prompts: a chunk that is there already would be stored at once

ROADS = pytest.mark.parametrize(
    "name", ["kvgate_adapter_{}{{job='adapter'}}", f"kvgate_engine_{{}}{{{{job='gateway',engine='{ENGINE}'}}}}"]
)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon({"KVGATE_VERIFY": ""}) as running:  # checking every table after every step would leave no room for load
        yield running.start()


@pytest.fixture(scope="module")
def worker(daemon: Daemon) -> Iterator[WorkerAdapter]:
    # A deadline longer than any wait below: what a test holds ends when the test says so.
    config = AdapterConfig(engine_name=ENGINE, heartbeat_seconds=0.2, operation_deadline_seconds=120)
    adapter = WorkerAdapter(str(daemon.run_dir), IDENTITY, "group", config)
    caches = {f"layer.{i}": torch.zeros(2, 64, 4, 2, 64, dtype=torch.bfloat16) for i in range(2)}
    adapter.register_kv_caches(caches, layout="NHD", block_axis=1)
    assert adapter.wait_healthy(20)
    yield adapter
    adapter.close()


@pytest.fixture(scope="module")
def adapter_address(worker: WorkerAdapter) -> Iterator[str]:
    server, thread = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=worker.registry)
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def prometheus(daemon: Daemon, adapter_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    require_prometheus()
    targets = {"gateway": daemon.admin_url.removeprefix("http://"), "adapter": adapter_address}
    with Prometheus(tmp_path_factory.mktemp("prometheus"), targets) as running:
        yield running


@pytest.fixture
def load(worker: WorkerAdapter) -> Iterator[None]:
    """Short stores without end, in blocks that no test uses."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(0.01):
            operation = _operation(next(NUMBERS), first_block=32)
            worker.submit_store_request("load", operation, FakeEvent(fired=True))
            worker.get_finished()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    is_over.set()
    thread.join()


def _operation(number: int, first_block: int) -> LoadStoreOp:
    """One chunk of its own."""
    tokens = range(number * 16, number * 16 + 16)
    return LoadStoreOp.from_tokens(tokens, range(first_block, first_block + 4), IDENTITY)


@ROADS
def test_a_held_store_is_seen_and_its_end(worker: WorkerAdapter, prometheus: Prometheus, load: None, name: str) -> None:
    event = FakeEvent()
    worker.submit_store_request("held", _operation(next(NUMBERS), first_block=0), event)

    _until_at_least(prometheus, name.format("pending_stores"), 1)
    _until_at_least(prometheus, name.format("retained_events"), 1)
    oldest = name.format("oldest_pending_timestamp_seconds")
    until(lambda: (prometheus.value(f"time() - {oldest}") or 0) > 1, 30, "the oldest pending operation grows old")
    event.fire()
    until(lambda: (prometheus.value(f"time() - ({oldest} > 0)") or 0) < 1, 30, "only young operations are pending")


@ROADS
def test_everything_is_zero_at_rest(worker: WorkerAdapter, prometheus: Prometheus, name: str) -> None:
    stored, store_event, retrieve_event = _operation(next(NUMBERS), first_block=0), FakeEvent(), FakeEvent()
    worker.submit_store_request("first", stored, FakeEvent(fired=True))
    assert worker.wait_settled(20)
    worker.submit_retrieve_request("second", stored, retrieve_event)
    worker.submit_store_request("third", _operation(next(NUMBERS), first_block=8), store_event)

    _until_at_least(prometheus, name.format("pending_retrieves"), 1)
    _until_at_least(prometheus, name.format("pending_stores"), 1)
    _until_at_least(prometheus, name.format("retained_events"), 2)
    retrieve_event.fire()
    store_event.fire()

    for gauge in ("pending_retrieves", "pending_stores", "retained_events"):
        query = name.format(gauge)
        until(lambda query=query: prometheus.value(query) == 0, 30, f"{query} to be 0")
    until(lambda: not prometheus.unhealthy_targets(), 30, "every target's last scrape to be good")


def test_expositions_pass_promtool(daemon: Daemon, adapter_address: str, load: None) -> None:
    require_prometheus()

    for url in (f"{daemon.admin_url}/metrics", f"http://{adapter_address}/metrics"):
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read()
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
        )
        assert b"kvgate_" in text
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_scrape_configuration_is_valid() -> None:
    require_prometheus()

    checked = subprocess.run(
        ["promtool", "check", "config", ROOT / "dashboards" / "prometheus.yml"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


def _until_at_least(prometheus: Prometheus, query: str, least: float) -> None:
    until(lambda: (prometheus.value(query) or 0) >= least, 30, f"{query} to be at least {least}")
