"""The bytes of wire protocol 1. A frame that changes here is another protocol for every peer that is already running.

To record a message that is new: run this file as a program; it writes the frames that are missing and changes none.
"""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from gateway.wire import codec, messages
from tests.wire.samples import REPLIES, REQUESTS, tag

GOLDEN = Path(__file__).parent / "golden"
ALL = (*REQUESTS, *REPLIES)


def recorded(message: messages.Request | messages.Reply) -> Path:
    return GOLDEN / f"{tag(message)}.hex"


def test_every_message_of_the_contract_has_a_sample() -> None:
    types = {*get_args(messages.AnyRequest), *get_args(messages.AnyReply)}

    assert {type(message) for message in ALL} == types


@pytest.mark.parametrize("message", ALL, ids=tag)
def test_a_message_is_encoded_as_it_always_was(message: messages.AnyRequest | messages.AnyReply) -> None:
    assert codec.encode(message).hex() == "".join(recorded(message).read_text().split())


@pytest.mark.parametrize("message", REQUESTS, ids=tag)
def test_a_recorded_request_still_means_the_same(message: messages.AnyRequest) -> None:
    assert codec.decode_request(bytes.fromhex(recorded(message).read_text())) == message


@pytest.mark.parametrize("message", REPLIES, ids=tag)
def test_a_recorded_reply_still_means_the_same(message: messages.AnyReply) -> None:
    assert codec.decode_reply(bytes.fromhex(recorded(message).read_text())) == message


@pytest.mark.parametrize("message", REQUESTS, ids=tag)
def test_a_field_of_a_later_version_is_ignored(message: messages.AnyRequest) -> None:
    fields = msgspec.msgpack.decode(codec.encode(message))

    frame = msgspec.msgpack.encode({**fields, "field_of_a_later_version": [1, {"a": b"b"}]})

    assert codec.decode_request(frame) == message


@pytest.mark.parametrize("message", ALL, ids=tag)
def test_no_recorded_frame_is_left_over_or_missing(message: messages.AnyRequest | messages.AnyReply) -> None:
    assert recorded(message) in set(GOLDEN.iterdir())
    assert len(list(GOLDEN.iterdir())) == len(ALL)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for sample in ALL:
        if not recorded(sample).exists():
            text = codec.encode(sample).hex()
            lines = [text[start : start + 96] for start in range(0, len(text), 96)]
            recorded(sample).write_text("\n".join(lines) + "\n")
