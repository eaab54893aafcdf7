"""An engine's operation, checked and copied: from then on the caller may change its lists.

Owns: what makes a ``LoadStoreOp`` fit an identity. Must not know: the ledger's steps, threads. Pure; runs on the
engine's thread, so it is written to be quick.
"""

from array import array
from collections.abc import Sequence

from adapter.actions import Transfer
from adapter.identity import CacheIdentity
from adapter.operation import LoadStoreOp
from gateway.wire.codes import OperationKind
from gateway.wire.keys import KEY_BYTES

#: Of a KV cache that is not there yet: what the copies' integers can hold.
MAX_BLOCKS = 1 << 63
#: Characters of a caller's value in an error.
MAX_SHOWN = 200


def transfer_of(
    kind: OperationKind,
    request_id: str,
    op: LoadStoreOp,
    *,
    identity: CacheIdentity,
    chunk_bytes: int,
    num_blocks: int | None,
) -> Transfer:
    """The ledger's copy of an operation.

    Args:
        kind: store or retrieve.
        request_id: whose it is.
        op: what it covers.
        identity: what it must fit.
        chunk_bytes: of one chunk of this worker.
        num_blocks: of the KV cache; None while there is none.

    Raises:
        ValueError: it does not fit; the message names what was wrong and what was expected.
    """
    if not isinstance(request_id, str):
        raise ValueError(f"request_id is {request_id!r}, expected a string")  # noqa: TRY004 - one error for all of it
    chunk, block = identity.chunk_tokens, identity.block_tokens
    start, skip = op.start, op.skip_first_tokens
    if not (type(start) is type(skip) is int and (op.end is None or type(op.end) is int)):
        raise ValueError(_wrong_number(op))
    keys = op.keys
    if type(keys) is not tuple:
        if type(keys) is not list and not isinstance(keys, Sequence):
            raise ValueError(f"keys are {_shortened(keys)}, expected a sequence of bytes")
        keys = tuple(keys)
    for key in keys:
        if type(key) is not bytes or len(key) != KEY_BYTES:
            raise ValueError(f"keys must be bytes of {KEY_BYTES} each")
    num_tokens = len(keys) * chunk
    end = start + num_tokens if op.end is None else op.end
    if start % chunk or start < 0 or end - start != num_tokens:
        raise ValueError(
            f"[{start}, {end}) must begin on an edge of {chunk} tokens and span {len(keys)} chunks, one a key"
        )
    block_ids = _block_ids(op, num_blocks)
    if len(block_ids) * block != num_tokens:
        raise ValueError(f"block_ids has {len(block_ids)} entries, expected {num_tokens // block} for [{start}, {end})")
    if skip % block or not 0 <= skip <= num_tokens:
        raise ValueError(f"skip_first_tokens is {skip}, expected a multiple of {block} up to {num_tokens}")
    return Transfer(  # by position: twice as fast as by name
        kind,
        request_id,
        keys,
        block_ids,
        identity.blocks_per_chunk,
        chunk_bytes,
        start // chunk,
        op.parent or b"",
        0 if kind is OperationKind.STORE else skip // block,  # a chunk is stored whole or not at all
        identity.replica == 0,
    )


def _wrong_number(op: LoadStoreOp) -> str:
    numbers = {"start": op.start, "skip_first_tokens": op.skip_first_tokens, "end": op.end}
    name = next(name for name, number in numbers.items() if type(number) is not int)
    return f"{name} is {numbers[name]!r}, expected a whole number of tokens"


def _block_ids(op: LoadStoreOp, num_blocks: int | None) -> "array[int]":
    limit = MAX_BLOCKS if num_blocks is None else num_blocks
    try:
        block_ids = array("q", op.block_ids)
    except (TypeError, OverflowError):
        block_ids = None
    if block_ids is None or (block_ids and not 0 <= min(block_ids) <= max(block_ids) < limit):
        raise ValueError(f"block_ids are {_shortened(op.block_ids)}, expected 0 to {limit - 1}, as integers")
    return block_ids


def _shortened(values: object) -> str:
    text = repr(values)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
