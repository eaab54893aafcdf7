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
    for name, number in (("start", op.start), ("end", op.end), ("skip_first_tokens", op.skip_first_tokens)):
        if type(number) is not int and (name != "end" or number is not None):
            raise ValueError(f"{name} is {number!r}, expected a whole number of tokens")
    if not isinstance(op.keys, Sequence):
        raise ValueError(f"keys are {_shortened(op.keys)}, expected a sequence of bytes")  # noqa: TRY004 - as above
    keys = tuple(op.keys)
    if not all([type(key) is bytes and len(key) == KEY_BYTES for key in keys]):  # noqa: C419 - a list is faster
        raise ValueError(f"keys must be bytes of {KEY_BYTES} each")
    end = op.start + len(keys) * chunk if op.end is None else op.end
    if op.start % chunk or op.start < 0 or end - op.start != len(keys) * chunk:
        raise ValueError(
            f"[{op.start}, {end}) must begin on an edge of {chunk} tokens and span {len(keys)} chunks, one a key"
        )
    block_ids = _block_ids(op, num_blocks)
    if len(block_ids) * block != end - op.start:
        raise ValueError(
            f"block_ids has {len(block_ids)} entries, expected {(end - op.start) // block} for [{op.start}, {end})"
        )
    if op.skip_first_tokens % block or not 0 <= op.skip_first_tokens <= end - op.start:
        raise ValueError(
            f"skip_first_tokens is {op.skip_first_tokens}, expected a multiple of {block} up to {end - op.start}"
        )
    is_store = kind is OperationKind.STORE
    return Transfer(
        kind=kind,
        request_id=request_id,
        keys=keys,
        block_ids=block_ids,
        blocks_per_chunk=identity.blocks_per_chunk,
        chunk_bytes=chunk_bytes,
        depth=op.start // chunk,
        parent=op.parent or b"",
        skip_blocks=0 if is_store else op.skip_first_tokens // block,  # a chunk is stored whole or not at all
        writes=identity.replica == 0,
    )


def _block_ids(op: LoadStoreOp, num_blocks: int | None) -> "array[int]":
    limit = MAX_BLOCKS if num_blocks is None else num_blocks
    try:
        unsigned = array("Q", op.block_ids)  # refuses what is negative
    except (TypeError, OverflowError):
        unsigned = None
    if unsigned is None or (unsigned and max(unsigned) >= limit):
        raise ValueError(f"block_ids are {_shortened(op.block_ids)}, expected 0 to {limit - 1}, as integers")
    return array("q", unsigned.tobytes())


def _shortened(values: object) -> str:
    text = repr(values)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
