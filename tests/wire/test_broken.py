"""Frames no well-behaved peer sends: each is a typed error with what could be saved of it, and nothing else happens."""

import os
import pickle
import random

import msgspec
import pytest

from gateway.wire import codec, messages
from gateway.wire.codes import ErrorCode
from tests.wire.samples import KEYS, NAMESPACE, PARTY, REQUESTS, tag

#: What may come of a frame with wrong bytes in it.
ALLOWED = (None, ErrorCode.BAD_MESSAGE, ErrorCode.TOO_LARGE, ErrorCode.UNSUPPORTED)


def frame(**fields) -> bytes:
    return msgspec.msgpack.encode(fields)


def outcome(data: bytes) -> ErrorCode | None:
    """The error a frame is refused with; None: it was read."""
    try:
        codec.decode_request(data)
    except codec.WireError as error:
        return error.code
    return None


def refusal(data: bytes) -> codec.WireError:
    with pytest.raises(codec.WireError) as caught:
        codec.decode_request(data)
    return caught.value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xc1",
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"{}",
        frame(),
        frame(type="PING"),  # no number
        frame(type=7, number=1),
        frame(type="PING", number="seven"),
        frame(type="PING", number=1.5),
        frame(type="PING", number=1, party="text, not bytes", operations=[1]),
        frame(type="LOOKUP", number=1, party=PARTY, session=1, namespace=NAMESPACE, keys=[1, 2]),
        frame(type="LOOKUP", number=1, party=PARTY, session=1, namespace=NAMESPACE, keys=KEYS[0]),
        frame(type="REGISTER", number=1, party=PARTY, role="driver", group="g", engine="e", model="m"),
        b"\x81\xa6number\x01" + b"\x81" * 5,
        b"\x91" * 100_000,  # nested deeper than anyone can follow
        b"\xdd\xff\xff\xff\xff",  # an array that says it has four thousand million entries
        frame(type="PING", number=1) + b"\x00",  # bytes after the end
    ],
)
def test_what_cannot_be_read_is_a_bad_message(data: bytes) -> None:
    assert refusal(data).code is ErrorCode.BAD_MESSAGE


@pytest.mark.parametrize("kind", ["NO_SUCH_MESSAGE", "PONG", "x" * 500])
def test_a_type_that_is_not_known_is_named_with_its_number(kind: str) -> None:
    error = refusal(frame(type=kind, number=77, keys=[1]))

    assert (error.code, error.number) == (ErrorCode.UNSUPPORTED, 77)
    assert kind[:32] in error.message
    assert f"wire version {messages.PROTOCOL_VERSION}" in error.message
    assert len(error.message) < 100


def test_the_number_is_saved_where_it_can_be_found() -> None:
    assert refusal(frame(type="LOOKUP", number=9, keys=3)).number == 9
    assert refusal(frame(type="NO_SUCH_MESSAGE", number=9)).number == 9
    assert refusal(b"\xc1").number == 0


def test_a_message_over_the_size_limit_is_refused_before_it_is_read() -> None:
    error = refusal(b"\xc1" * (messages.MAX_MESSAGE_BYTES + 1))

    assert error.code is ErrorCode.TOO_LARGE
    assert str(messages.MAX_MESSAGE_BYTES) in error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "LOOKUP", "party": PARTY, "session": 1, "namespace": NAMESPACE, "keys": [b"k"] * 8193},
        {"type": "COMMIT", "party": PARTY, "operation": 1, "pool_id": PARTY, "reservations": [1] * 8193},
        {"type": "PING", "operations": [1] * 8193},
        {"type": "PING", "sessions": [1] * 8193},
    ],
    ids=["keys", "reservations", "operations", "sessions"],
)
def test_a_list_over_the_limit_is_refused_under_its_number(fields: dict[str, object]) -> None:
    error = refusal(frame(number=4, **fields))

    assert (error.code, error.number) == (ErrorCode.TOO_LARGE, 4)


def test_a_pickle_is_bytes_that_cannot_be_read(tmp_path) -> None:
    trap = tmp_path / "executed"

    class Trap:
        def __reduce__(self):
            return (os.system, (f"touch {trap}",))

    assert refusal(pickle.dumps(Trap())).code is ErrorCode.BAD_MESSAGE
    assert not trap.exists()


@pytest.mark.parametrize("message", REQUESTS, ids=tag)
def test_every_shortened_frame_is_a_typed_error(message: messages.AnyRequest) -> None:
    whole = codec.encode(message)

    for length in range(len(whole)):
        assert refusal(whole[:length]).code is ErrorCode.BAD_MESSAGE


def test_damaged_frames_are_read_or_refused_and_never_anything_else() -> None:
    dice = random.Random(20)
    for message in REQUESTS:
        whole = bytearray(codec.encode(message))
        for _ in range(200):
            damaged = bytearray(whole)
            for _ in range(dice.randint(1, 8)):
                damaged[dice.randrange(len(damaged))] = dice.randrange(256)
            assert outcome(bytes(damaged)) in ALLOWED


@pytest.mark.parametrize(
    "message",
    [
        messages.Ping(number=1, party=PARTY, next_operation=2**64),
        messages.EndSession(number=1, party=PARTY, session=-(2**63) - 1),
        messages.Resume(number=1, requested_by="\ud800"),
    ],
    ids=["too large", "too small", "a lone surrogate"],
)
def test_what_cannot_be_encoded_is_an_error_with_its_number(message: messages.AnyRequest) -> None:
    with pytest.raises(codec.WireError) as caught:
        codec.encode(message)

    assert (caught.value.code, caught.value.number) == (ErrorCode.BAD_MESSAGE, 1)


def test_a_request_over_the_size_limit_is_not_sent() -> None:
    with pytest.raises(codec.WireError) as caught:
        codec.encode(messages.Resume(number=3, requested_by="x" * messages.MAX_MESSAGE_BYTES))

    assert (caught.value.code, caught.value.number) == (ErrorCode.TOO_LARGE, 3)


def test_a_reply_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(codec.WireError) as caught:
        codec.decode_reply(frame(type="PONG", number=5, boot=b"x"))

    assert (caught.value.code, caught.value.number) == (ErrorCode.BAD_MESSAGE, 5)
