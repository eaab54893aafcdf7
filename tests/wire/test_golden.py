"""The bytes of the wire protocol, one folder for each of its versions. A peer that already runs knows no others.

What is recorded never changes: ``SHA256SUMS`` holds every frame to what it was on the day it was recorded. Frames of
earlier versions stay and stay readable, with the meaning they had, since fields are only ever added.

To record a message that is new: run this file as a program; it writes the frames that are missing and changes none.
"""

import hashlib
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from gateway.wire import codec, messages
from tests.wire.samples import REPLIES, REQUESTS, tag

GOLDEN = Path(__file__).parent / "golden"
CURRENT = GOLDEN / f"v{messages.PROTOCOL_VERSION}"
SUMS = "SHA256SUMS"
ALL = (*REQUESTS, *REPLIES)
VERSIONS = sorted(GOLDEN.iterdir())
FRAMES = sorted(GOLDEN.glob("*/*.hex"))
REQUEST_TAGS = {tag(message) for message in REQUESTS}


def recorded(message: messages.Request | messages.Reply) -> Path:
    return CURRENT / f"{tag(message)}.hex"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sums(folder: Path) -> dict[str, str]:
    """Digest by file name, in the format of the tool ``sha256sum``."""
    pairs = (line.split() for line in (folder / SUMS).read_text().splitlines())
    return {name: found for found, name in pairs}


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def keeps(old: object, new: object) -> bool:
    """Whether everything that stood in ``old`` stands in ``new``; maps may have gained fields."""
    match old, new:
        case dict(), dict():
            return all(name in new and keeps(value, new[name]) for name, value in old.items())
        case list(), list():
            return len(old) == len(new) and all(map(keeps, old, new))
        case _:
            return old == new


def test_every_message_of_the_contract_has_a_sample() -> None:
    types = {*get_args(messages.AnyRequest), *get_args(messages.AnyReply)}

    assert {type(message) for message in ALL} == types


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_no_recorded_frame_was_changed_added_or_taken_away_unnoticed(folder: Path) -> None:
    assert sums(folder) == {path.name: digest(path) for path in folder.glob("*.hex")}


def test_no_version_is_without_its_frames() -> None:
    spoken = range(1, messages.PROTOCOL_VERSION + 1)

    assert [folder.name for folder in VERSIONS] == sorted(f"v{version}" for version in spoken)


@pytest.mark.parametrize("path", FRAMES, ids=name_of)
def test_a_frame_of_any_version_is_read_with_the_meaning_it_had(path: Path) -> None:
    frame = bytes.fromhex(path.read_text())

    decode = codec.decode_request if path.stem in REQUEST_TAGS else codec.decode_reply
    again = codec.encode(decode(frame))

    assert keeps(msgspec.msgpack.decode(frame), msgspec.msgpack.decode(again))


@pytest.mark.parametrize("message", ALL, ids=tag)
def test_a_message_is_encoded_as_it_always_was(message: messages.AnyRequest | messages.AnyReply) -> None:
    assert codec.encode(message).hex() == "".join(recorded(message).read_text().split())


@pytest.mark.parametrize("message", REQUESTS, ids=tag)
def test_a_recorded_request_still_means_the_same(message: messages.AnyRequest) -> None:
    assert codec.decode_request(bytes.fromhex(recorded(message).read_text())) == message


@pytest.mark.parametrize("message", REPLIES, ids=tag)
def test_a_recorded_reply_still_means_the_same(message: messages.AnyReply) -> None:
    assert codec.decode_reply(bytes.fromhex(recorded(message).read_text())) == message


@pytest.mark.parametrize("path", FRAMES, ids=name_of)
def test_a_field_of_a_later_version_is_ignored_at_any_depth(path: Path) -> None:
    frame = bytes.fromhex(path.read_text())
    decode = codec.decode_request if path.stem in REQUEST_TAGS else codec.decode_reply

    later = msgspec.msgpack.encode(_with_more(msgspec.msgpack.decode(frame)))

    assert later != frame
    assert decode(later) == decode(frame)


def _with_more(value: object) -> object:
    """The same, with a field more in every map."""
    match value:
        case dict():
            more = {name: _with_more(inner) for name, inner in value.items()}
            return {**more, "field_of_a_later_version": [1, {"a": b"b"}]}
        case list():
            return [_with_more(inner) for inner in value]
        case _:
            return value


def test_every_message_of_this_version_is_recorded() -> None:
    assert {path.name for path in CURRENT.glob("*.hex")} == {recorded(message).name for message in ALL}


if __name__ == "__main__":
    CURRENT.mkdir(parents=True, exist_ok=True)
    for sample in ALL:
        if not recorded(sample).exists():
            text = codec.encode(sample).hex()
            lines = [text[start : start + 96] for start in range(0, len(text), 96)]
            recorded(sample).write_text("\n".join(lines) + "\n")
            with (CURRENT / SUMS).open("a") as file:
                file.write(f"{digest(recorded(sample))}  {recorded(sample).name}\n")
