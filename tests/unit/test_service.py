"""The service over a real core and a real pool file, with the clock in the test's hand."""

import logging
from collections.abc import Iterator

import msgspec
import pytest

from gateway.metrics.table import GATEWAY
from gateway.wire import messages
from gateway.wire.codes import ErrorCode, Lifecycle
from gateway.wire.messages import Error, Request
from tests.support.served import START, Served

PARTY = b"p" * 16


@pytest.fixture
def served(tmp_path) -> Iterator[Served]:
    parts = Served(tmp_path)
    yield parts
    parts.close()


HELLO = messages.Hello(number=0, oldest_version=1, newest_version=1, pool_format=1, monotonic=0.0)
KEYS = (b"k" * 32,)
OF_PARTY = {"number": 0, "party": PARTY}
BEFORE_READY = (
    HELLO,
    messages.Ping(number=0),
    messages.SnapshotRequest(number=0),
    messages.Switch(number=0, requested_by="t", scope="node", name="all", mode="off"),
)
NOT_BEFORE_READY = (
    messages.Register(**OF_PARTY, role="worker", group="g", engine="e", model="m"),
    messages.Unregister(**OF_PARTY),
    messages.Lookup(**OF_PARTY, session=1, namespace=b"n" * 16, keys=KEYS),
    messages.Release(**OF_PARTY, session=1, start=0, end=1),
    messages.EndSession(**OF_PARTY, session=1),
    messages.Reserve(**OF_PARTY, operation=1, keys=KEYS),
    messages.Commit(**OF_PARTY, operation=1, pool_id=b"x" * 16, reservations=(1,)),
    messages.Abort(**OF_PARTY, operation=1),
    messages.Read(**OF_PARTY, operation=1, keys=KEYS),
    messages.EndRead(**OF_PARTY, operation=1),
    messages.Store(**OF_PARTY, operation=1, keys=KEYS, blocks=b"\0\0\0\0"),
    messages.Retrieve(**OF_PARTY, operation=1, keys=KEYS, blocks=b"\0\0\0\0"),
    messages.Cancel(**OF_PARTY, operation=1),
    messages.ReleaseEvent(**OF_PARTY, operation=1),
    messages.Clear(number=0, requested_by="t", all=True),
    messages.Fence(number=0, requested_by="t", engine="e"),
)
CONFLICTS_BEFORE_READY = (messages.Drain(number=0, requested_by="t"), messages.Resume(number=0, requested_by="t"))


def name(message: object) -> str:
    return type(message).__name__


def test_every_request_of_the_contract_is_in_one_of_the_lists() -> None:
    listed = {type(m) for m in (*BEFORE_READY, *NOT_BEFORE_READY, *CONFLICTS_BEFORE_READY)}

    assert listed == set(messages.AnyRequest.__args__)


@pytest.mark.parametrize("request_", BEFORE_READY, ids=name)
def test_meeting_and_looking_is_served_while_memory_is_reserved(served: Served, request_: Request) -> None:
    assert served.core.state is Lifecycle.STARTING
    assert served.code(request_) is None


@pytest.mark.parametrize("request_", NOT_BEFORE_READY, ids=name)
def test_work_is_refused_while_memory_is_reserved_and_told_when_to_come_back(served: Served, request_: Request) -> None:
    reply = served.ask(request_)

    assert isinstance(reply, Error)
    assert reply.code is ErrorCode.STARTING
    assert reply.retry_after_ms > 0
    assert "25%" in reply.message


@pytest.mark.parametrize("request_", CONFLICTS_BEFORE_READY, ids=name)
def test_a_drain_while_memory_is_reserved_is_a_conflict(served: Served, request_: Request) -> None:
    assert served.code(request_) is ErrorCode.CONFLICT


@pytest.mark.parametrize("request_", [*NOT_BEFORE_READY, *CONFLICTS_BEFORE_READY], ids=name)
def test_a_request_for_another_boot_is_refused_whatever_it_is(served: Served, request_: Request) -> None:
    other = msgspec.structs.replace(request_, boot=b"other boot, 16 b")

    assert served.code(other) is ErrorCode.WRONG_BOOT


def test_hello_is_for_any_boot(served: Served) -> None:
    assert served.code(msgspec.structs.replace(HELLO, boot=b"other boot, 16 b")) is None


@pytest.mark.parametrize("request_", [*NOT_BEFORE_READY, *CONFLICTS_BEFORE_READY], ids=name)
def test_only_what_ends_something_is_done_after_its_deadline(served: Served, request_: Request) -> None:
    served.core.init_done(START)
    late = msgspec.structs.replace(request_, deadline=START - 0.001)

    is_expired = served.code(late) is ErrorCode.EXPIRED

    assert is_expired == (not isinstance(request_, messages.ENDING))


def test_a_deadline_that_is_now_is_kept(served: Served) -> None:
    served.core.init_done(START)

    assert served.code(messages.Resume(number=0, requested_by="t", deadline=START)) is None


def test_admin_messages_are_for_the_admin_socket(served: Served) -> None:
    for request in (*CONFLICTS_BEFORE_READY, messages.SnapshotRequest(number=0), *NOT_BEFORE_READY[-2:]):
        assert served.code(request, is_admin=False) is ErrorCode.FORBIDDEN


def test_a_step_that_fails_by_a_defect_is_answered_logged_and_counted(served: Served, monkeypatch, caplog) -> None:
    served.core.init_done(START)

    def broken(*_args: object, **_kwargs: object) -> None:
        raise KeyError("a defect")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(served.core, "heartbeat", broken)
        reply = served.ask(messages.Ping(number=0))

    assert isinstance(reply, Error)
    assert reply.code is ErrorCode.INTERNAL
    assert "a defect" not in reply.message
    assert [record.getMessage() for record in caplog.records] == ["request_failed"]
    assert served.counted("PING", "internal") == 1
    assert served.code(messages.Ping(number=0)) is None
    assert served.counted("PING", "ok") == 1


def test_a_reply_that_cannot_be_encoded_becomes_an_error_for_the_same_request(
    served: Served, monkeypatch, caplog
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(served.progress, "share", "\ud800")
        reply = served.ask(messages.SnapshotRequest(number=0))

    assert isinstance(reply, Error)
    assert reply.code is ErrorCode.INTERNAL
    assert served.counted("SNAPSHOT", "internal") == 1


def test_what_cannot_be_read_is_counted_as_such(served: Served) -> None:
    served.service.answer(b"\xc1", is_admin=False)
    served.service.answer(bytes(messages.MAX_MESSAGE_BYTES + 1), is_admin=False)

    bad = {sample.labels: sample.value for sample in served.traffic.counters() if sample.name == "bad_messages"}
    assert bad == {("bad_message",): 1, ("too_large",): 1}
    assert served.counted("unknown", "bad_message") == 1


def test_how_long_requests_took_is_measured_by_operation(served: Served) -> None:
    clock = iter([START, START + 0.02])
    served.service._monotonic = lambda: next(clock)
    served.ask(HELLO)

    (histogram,) = served.traffic.histograms()
    assert (histogram.labels, sum(histogram.counts)) == (("HELLO",), 1)
    assert histogram.sum == pytest.approx(0.02)


@pytest.mark.parametrize(
    "request_",
    [
        messages.Clear(number=0, requested_by="t"),
        messages.Clear(number=0, requested_by="t", all=True, model="m"),
        messages.Clear(number=0, requested_by="t", namespace="not hex"),
    ],
)
def test_a_clear_names_exactly_one_thing(served: Served, request_: Request) -> None:
    served.core.init_done(START)

    assert served.code(request_) is ErrorCode.INVALID


def test_a_dry_run_is_no_change_to_write_down(served: Served, caplog) -> None:
    served.core.init_done(START)
    with caplog.at_level(logging.INFO):
        assert served.code(messages.Clear(number=0, requested_by="t", all=True, dry_run=True)) is None
        assert caplog.records == []
        assert served.code(messages.Clear(number=0, requested_by="t", all=True)) is None
        assert [record.getMessage() for record in caplog.records] == ["audit"]


def test_a_snapshot_tells_the_size_of_every_table_of_the_metric(served: Served) -> None:
    served.core.init_done(START)
    reply = served.ask(messages.SnapshotRequest(number=0))
    (label,) = next(metric.labels for metric in GATEWAY if metric.name == "table_entries")

    assert isinstance(reply, messages.SnapshotReply)
    told = {sample.labels[0]: sample.value for sample in reply.gauges if sample.name == "table_entries"}
    assert told == dict.fromkeys(label.values or (), 0)
