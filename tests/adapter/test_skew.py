"""Adapters and gateways of unlike versions: refused with both sides' numbers, never an engine's error, and healed."""

import logging
from collections.abc import Callable

import msgspec
import pytest

from adapter import State, link, liveness
from gateway.wire.codes import ErrorCode
from gateway.wire.messages import POOL_FORMAT, PROTOCOL_VERSION, Error, Hello, Reserve, Welcome
from tests.adapter.scripted import ScriptedGateway
from tests.support.daemon import Daemon
from tests.support.engine import CHUNK_TOKENS, Engine, blocks, tokens
from tests.support.poll import until

OURS = f"{PROTOCOL_VERSION} to {PROTOCOL_VERSION}"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "INCOMPATIBLE_RETRY_SECONDS", 0.2)


def incompatible(engine: Engine) -> None:
    until(lambda: engine.worker.state is engine.scheduler.state is State.INCOMPATIBLE, 15, "both are incompatible")


def works_without_a_cache(engine: Engine) -> None:
    """What an engine calls is answered at once: nothing found, nothing stored, nothing raised, nothing kept."""
    number = engine.total("operations", kind="store", outcome="refused")
    engine.store("without", tokens(1), blocks(1))
    engine.retrieve("without", tokens(1), blocks(1, 4))
    assert engine.worker.wait_settled(5)
    assert engine.worker.get_finished(["without"]) == ({"without"}, {"without"})
    assert engine.worker.get_block_ids_with_load_errors() == {4, 5}
    assert engine.worker.get_failed_request_ids() == {"without"}
    assert engine.scheduler.lookup("without", tokens(1), timeout_seconds=5) == 0
    engine.scheduler.end_session("without")
    assert engine.total("operations", kind="store", outcome="refused") == number + 1
    assert engine.three() == (0, 0, 0)


def works_with_it(engine: Engine, seed: int) -> None:
    engine.wait_healthy()
    engine.store_and_wait(f"with-{seed}", tokens(2, seed), blocks(2), seed)


def hellos(daemon: Daemon, outcome: str) -> float:
    counters = daemon.snapshot().counters
    return sum(one.value for one in counters if one.name == "requests" and one.labels == ("HELLO", outcome))


@pytest.mark.parametrize(
    ("names", "number", "said"),
    [
        (("OLDEST_PROTOCOL_VERSION", "PROTOCOL_VERSION"), 0, ("0 to 0", OURS)),
        (("OLDEST_PROTOCOL_VERSION", "PROTOCOL_VERSION"), 2, ("2 to 2", OURS)),
        (("POOL_FORMAT",), 0, ("pool format 0", f"has format {POOL_FORMAT}")),
        (("POOL_FORMAT",), 2, ("pool format 2", f"has format {POOL_FORMAT}")),
    ],
    ids=["version 0", "version 2", "pool format 0", "pool format 2"],
)
def test_an_adapter_of_another_version_goes_on_without_this_daemon_until_it_fits(
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    names: tuple[str, ...],
    number: int,
    said: tuple[str, str],
) -> None:
    with monkeypatch.context() as other, caplog.at_level(logging.WARNING, "kvgate.adapter"):
        for name in names:
            other.setattr(link, name, number)
        engine = Engine(daemon.run_dir)
        incompatible(engine)
        works_without_a_cache(engine)
        before = hellos(daemon, "incompatible")
        until(lambda: hellos(daemon, "incompatible") >= before + 2, what="HELLO is said again")
        assert daemon.snapshot().engines == ()
        (complaint, again) = [record.facts["reason"] for record in caplog.records if record.event == "not_connected"]
        assert complaint == again, "one of each half"
        assert all(part in complaint for part in said), complaint
    with engine:
        works_with_it(engine, seed=1)
        assert hellos(daemon, "ok") >= 2


def other_version(welcome: Welcome) -> Welcome:
    return msgspec.structs.replace(welcome, version=PROTOCOL_VERSION + 1)


def older_version(welcome: Welcome) -> Welcome:
    return msgspec.structs.replace(welcome, version=PROTOCOL_VERSION - 1)


def other_format(welcome: Welcome) -> Welcome:
    return msgspec.structs.replace(welcome, pool_format=99)


def clock_ahead(welcome: Welcome) -> Welcome:
    return msgspec.structs.replace(welcome, monotonic=welcome.monotonic + 1000)


def clock_behind(welcome: Welcome) -> Welcome:
    return msgspec.structs.replace(welcome, monotonic=welcome.monotonic - 1000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_version, ("wire version 2", OURS)),
        (older_version, ("wire version 0", OURS)),
        (other_format, ("pool format 99", f"pool format {POOL_FORMAT}")),
        (clock_ahead, ("CLOCK_MONOTONIC", "+1000 s", "time namespace")),
        (clock_behind, ("CLOCK_MONOTONIC", "-1000 s", "time namespace")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_welcome_that_does_not_fit_is_not_taken_until_it_does(
    scripted: ScriptedGateway,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Welcome], Welcome],
    said: tuple[str, ...],
) -> None:
    scripted.answers[Hello] = lambda request: change(scripted.answer(request))
    with caplog.at_level(logging.WARNING, "kvgate.adapter"), Engine(scripted.run_dir) as engine:
        incompatible(engine)
        works_without_a_cache(engine)
        assert {type(request) for request in scripted.received} == {Hello}
        assert all(part in caplog.text for part in said), caplog.text
        del scripted.answers[Hello]
        engine.wait_healthy()
        assert engine.scheduler.lookup("r", tokens(1), timeout_seconds=5) == CHUNK_TOKENS


def test_a_gateway_that_comes_back_in_another_version_settles_what_was_pending(scripted: ScriptedGateway) -> None:
    with Engine(scripted.run_dir).wait_healthy() as engine:
        scripted.silence(Reserve)
        engine.store("r", tokens(2), blocks(2))
        until(lambda: scripted.of(Reserve))
        scripted.answers[Hello] = lambda _: Error(
            number=0, boot=b"", code=ErrorCode.INCOMPATIBLE, message="you speak 1 to 1, this daemon 2 to 3"
        )
        scripted.restart_unseen()
        incompatible(engine)
        assert engine.worker.get_finished(["r"]) == ({"r"}, set())
        works_without_a_cache(engine)
        assert engine.total("drains", trigger="restarted") == 1
        scripted.answers.clear()
        scripted.knows_parties = True
        engine.wait_healthy()


def test_a_hello_that_gets_no_welcome_is_explained(scripted: ScriptedGateway, caplog: pytest.LogCaptureFixture) -> None:
    scripted.answers[Hello] = lambda _: Error(
        number=0, boot=b"", code=ErrorCode.UNSUPPORTED, message="there is no request HELLO"
    )
    with caplog.at_level(logging.WARNING, "kvgate.adapter"), Engine(scripted.run_dir) as engine:
        until(lambda: "there is no request HELLO (unsupported)" in caplog.text)
        scripted.answers[Hello] = lambda request: msgspec.msgpack.encode({"type": "GREETING", "number": request.number})
        until(lambda: "this version cannot read" in caplog.text, what="another reason is told at once")
        scripted.silence(Hello)
        until(lambda: f"does not answer HELLO at {scripted.run_dir}" in caplog.text)
        assert engine.worker.state is State.CONNECTING
        scripted.answers.clear()
        engine.wait_healthy()
