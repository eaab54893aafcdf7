"""Bytes nobody should send: the next good request works, something is counted, the gateway stays ready."""

import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.wire import messages
from gateway.wire.codes import ErrorCode, Health
from gateway.wire.messages import Error, Hello, Ping, Pong, Sample
from tests.support.daemon import Daemon
from tests.support.poll import until
from tests.support.raw import RawDealer

MIB = 1 << 20


@pytest.fixture(scope="module")
def served() -> Iterator[Daemon]:
    """One daemon for all of it: it must survive everything, one after the other and in any order."""
    with Daemon() as started:
        yield started.start()


def counter(daemon: Daemon, name: str, *labels: str) -> float:
    samples: tuple[Sample, ...] = daemon.snapshot().counters
    return sum(sample.value for sample in samples if sample.name == name and sample.labels == labels)


def assert_serves(daemon: Daemon) -> None:
    with daemon.dealer() as dealer:
        dealer.hello()
        assert isinstance(dealer.ask(Ping(number=0)), Pong)
    snapshot = daemon.snapshot()
    assert (snapshot.ready, snapshot.health) == (True, Health.HEALTHY)


def raw_connection(daemon: Daemon) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(str(daemon.socket))
    return connection


@pytest.mark.parametrize(
    "frame",
    [b"", os.urandom(64), b"\xc1", b"GET / HTTP/1.1\r\n\r\n", b"\x91" * 100_000, msgspec.msgpack.encode({"number": 3})],
    ids=["empty", "random", "no msgpack", "http", "nested", "no type"],
)
def test_a_frame_that_cannot_be_read_is_answered_on_the_same_socket(served: Daemon, frame: bytes) -> None:
    before = counter(served, "bad_messages", "bad_message")
    with served.dealer() as dealer:
        dealer.send_frames(frame)

        reply = dealer.receive()
        assert isinstance(reply, Error)
        assert reply.code is ErrorCode.BAD_MESSAGE
        dealer.hello()
    assert counter(served, "bad_messages", "bad_message") == before + 1
    assert_serves(served)


def test_the_number_of_an_unreadable_message_stands_in_the_error(served: Daemon) -> None:
    with served.dealer() as dealer:
        dealer.send_frames(msgspec.msgpack.encode({"type": "LOOKUP", "number": 77, "keys": "no"}))

        assert dealer.receive().number == 77


def test_a_message_of_the_next_size_is_answered(served: Daemon) -> None:
    before = counter(served, "bad_messages", "too_large")
    with served.dealer() as dealer:
        dealer.send_frames(bytes(messages.MAX_MESSAGE_BYTES + 1))

        reply = dealer.receive()
        assert isinstance(reply, Error)
        assert reply.code is ErrorCode.TOO_LARGE
    assert counter(served, "bad_messages", "too_large") == before + 1
    assert_serves(served)


@pytest.mark.parametrize("count", [2, 100])
def test_a_message_of_many_frames_is_dropped_and_counted(served: Daemon, count: int) -> None:
    before = counter(served, "bad_messages", "frames")
    with served.dealer() as dealer:
        dealer.send_frames(*[b"x"] * count)
        until(lambda: counter(served, "bad_messages", "frames") == before + 1)

        dealer.hello()  # the only reply: to the good request
    assert_serves(served)


def test_a_frame_over_the_transports_limit_ends_its_connection(served: Daemon) -> None:
    before = counter(served, "connections", "closed")
    resident = resident_bytes(served)
    with served.dealer() as dealer:
        dealer.send_frames(bytes(64 * MIB))

        until(lambda: counter(served, "connections", "closed") > before)
    assert resident_bytes(served) - resident < 32 * MIB
    assert_serves(served)


@pytest.mark.parametrize(
    "data",
    [os.urandom(4096), b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\xff" * 64, b"\xff" + bytes(8) + b"\x7f"],
    ids=["random", "http", "no greeting", "half a greeting"],
)
def test_a_stranger_on_the_socket_is_counted_and_disturbs_nobody(served: Daemon, data: bytes) -> None:
    before = counter(served, "connections", "accepted")
    with raw_connection(served) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

        until(lambda: counter(served, "connections", "accepted") > before)
    assert_serves(served)


def test_a_failed_handshake_is_counted(served: Daemon) -> None:
    before = counter(served, "connections", "handshake_failed")
    with raw_connection(served) as connection:
        # A ZMTP 3 greeting with a mechanism nobody speaks.
        connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"MAGIC".ljust(20, b"\0") + bytes(32))

        until(lambda: counter(served, "connections", "handshake_failed") > before)
    assert_serves(served)


def test_a_pickle_is_never_opened(served: Daemon, tmp_path) -> None:
    trap = tmp_path / "executed"

    class Trap:
        def __reduce__(self):
            return (os.system, (f"touch {trap}",))

    with served.dealer() as dealer:
        dealer.send_frames(pickle.dumps(Trap()))
        reply = dealer.receive()

    assert isinstance(reply, Error)
    assert not trap.exists()
    assert_serves(served)


@pytest.mark.parametrize(("oldest", "newest"), [(2, 9), (0, 0)])
def test_another_wire_version_is_refused_with_both_sides_numbers(served: Daemon, oldest: int, newest: int) -> None:
    with served.dealer() as dealer:
        reply = dealer.ask(Hello(number=0, oldest_version=oldest, newest_version=newest, pool_format=1, monotonic=0.0))

    assert isinstance(reply, Error)
    assert reply.code is ErrorCode.INCOMPATIBLE
    assert f"{oldest} to {newest}" in reply.message
    assert f"{messages.OLDEST_PROTOCOL_VERSION} to {messages.PROTOCOL_VERSION}" in reply.message


def test_another_pool_format_is_refused_with_both_numbers(served: Daemon) -> None:
    with served.dealer() as dealer:
        reply = dealer.ask(Hello(number=0, oldest_version=1, newest_version=1, pool_format=99, monotonic=0.0))

    assert isinstance(reply, Error)
    assert reply.code is ErrorCode.INCOMPATIBLE
    assert "99" in reply.message
    assert f"format {messages.POOL_FORMAT}" in reply.message


def test_a_later_peer_that_speaks_our_version_too_is_welcome(served: Daemon) -> None:
    with served.dealer() as dealer:
        reply = dealer.ask(Hello(number=0, oldest_version=1, newest_version=9, pool_format=1, monotonic=0.0))

    assert isinstance(reply, messages.Welcome)
    assert reply.version == messages.PROTOCOL_VERSION


def test_a_second_connection_under_a_live_ones_identity_is_not_served(served: Daemon) -> None:
    with RawDealer(served.socket, identity=b"the very same") as first:
        first.hello()
        with RawDealer(served.socket, identity=b"the very same") as second:
            second.send_frames(b"\xc1")

            assert second.is_silent(0.3)
            assert isinstance(first.ask(Ping(number=0)), Pong)


def resident_bytes(daemon: Daemon) -> int:
    pages = (Path("/proc") / str(daemon.pid) / "statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
