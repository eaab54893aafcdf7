"""An engine that an operator removes and lets back: it is the same engine, and what it did happened once."""

from gateway.wire.messages import Fence, Reply, Request, Resume
from tests.support import scrape
from tests.support.daemon import Daemon
from tests.support.engine import Engine, blocks, tokens
from tests.support.poll import until


def test_what_a_removed_engine_did_is_counted_once_when_it_comes_back(daemon: Daemon) -> None:
    with Engine(daemon.run_dir, name="removed") as engine:
        engine.wait_healthy()
        engine.store_and_wait("request", tokens(2), blocks(2), seed=1)
        until(lambda: _stored(daemon) == 1, what="the gateway heard of the store")

        _change(daemon, Fence(number=0, requested_by="test", engine="removed"))
        until(lambda: not engine.is_healthy(), what="the engine knows that it was removed")
        _change(daemon, Resume(number=0, requested_by="test", engine="removed"))
        engine.wait_healthy()

        engine.store_and_wait("another", tokens(2, seed=1), blocks(2, first=8), seed=2)
        until(lambda: _stored(daemon) >= 2, what="the gateway heard of the second store")
        assert _stored(daemon) == engine.total("operations", kind="store", outcome="stored") == 2


def _change(daemon: Daemon, message: Request) -> Reply:
    with daemon.admin_client() as client:
        return client.request(message)


def _stored(daemon: Daemon) -> float:
    series = scrape.of_gateway(daemon.admin_url)
    return scrape.value(series, "kvgate_engine_operations_total", engine="removed", kind="store", outcome="stored")
