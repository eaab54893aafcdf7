import dataclasses

import pytest

from adapter import CacheIdentity, LoadStoreOp
from adapter.actions import Transfer
from adapter.transfer.request import transfer_of
from gateway.wire.codes import OperationKind

IDENTITY = CacheIdentity("m", block_tokens=16, chunk_tokens=64)
KEYS = tuple(bytes([i]) * 32 for i in range(2))
GOOD = LoadStoreOp(keys=KEYS, block_ids=list(range(8)), start=64, end=192)


def checked(op: LoadStoreOp, kind: OperationKind = OperationKind.RETRIEVE, request_id: object = "r") -> Transfer:
    return transfer_of(kind, request_id, op, identity=IDENTITY, chunk_bytes=4096, num_blocks=8)


def test_a_good_operation() -> None:
    transfer = checked(dataclasses.replace(GOOD, skip_first_tokens=32, parent=b"p" * 32))
    assert transfer.keys == KEYS
    assert list(transfer.block_ids) == list(range(8))
    assert (transfer.depth, transfer.parent, transfer.skip_blocks) == (1, b"p" * 32, 2)
    assert (transfer.blocks_per_chunk, transfer.chunk_bytes, transfer.writes) == (4, 4096, True)


def test_end_follows_from_the_keys() -> None:
    assert checked(dataclasses.replace(GOOD, end=None)) == checked(GOOD)


def test_a_prompt_shorter_than_a_chunk_is_an_operation_of_nothing() -> None:
    assert checked(LoadStoreOp.from_tokens([1, 2, 3], [], IDENTITY)).keys == ()


def test_a_store_is_whole() -> None:
    assert checked(dataclasses.replace(GOOD, skip_first_tokens=32), OperationKind.STORE).skip_blocks == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": 63, "end": 191}, "edge of 64"),
        ({"start": -64, "end": 64}, "edge of 64"),
        ({"end": 191}, "one a key"),
        ({"end": 256}, "one a key"),
        ({"end": 64}, "one a key"),
        ({"keys": KEYS[:1]}, "one a key"),
        ({"keys": (KEYS[0], b"short")}, "32"),
        ({"keys": (KEYS[0], "x" * 32)}, "32"),
        ({"block_ids": list(range(7))}, "expected 8"),
        ({"block_ids": [*range(7), 8]}, "expected 0 to 7"),
        ({"block_ids": [*range(7), -1]}, "expected 0 to 7"),
        ({"block_ids": [*range(7), "x"]}, "integers"),
        ({"block_ids": [*range(7), 2**70]}, "integers"),
        ({"skip_first_tokens": 8}, "multiple of 16"),
        ({"skip_first_tokens": None}, "skip_first_tokens is None"),
        ({"start": 0.0}, "start is 0.0"),
        ({"end": "256"}, "end is '256'"),
        ({"keys": None}, "keys are None"),
        ({"skip_first_tokens": -16}, "multiple of 16"),
        ({"skip_first_tokens": 144}, "multiple of 16"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked(dataclasses.replace(GOOD, **change))


def test_a_request_id_is_a_string() -> None:
    with pytest.raises(ValueError, match="request_id"):
        checked(GOOD, request_id=7)
