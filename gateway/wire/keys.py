"""Chunk keys and namespaces: what makes two pieces of KV cache the same.

Owns: the BLAKE3 chain over a prompt's chunks and the namespace fingerprint. Must not know: sockets, pools, engines.
Runs on the engine's threads; pure.

A chunk key is 32 bytes: BLAKE3 over the parent's key, the chunk's token ids (little-endian uint32) and the chunk's
extra key. The first parent is the root, which carries the cache salt. Everything that is hashed is length-prefixed or
of fixed length, so that no two inputs share an encoding. Nothing depends on PYTHONHASHSEED or on the process.
"""

import sys
from array import array
from collections.abc import Sequence

from blake3 import blake3

KEY_BYTES = 32
NAMESPACE_BYTES = 16

_ROOT_DOMAIN = b"kvgate root 1\0"
_CHUNK_DOMAIN = b"kvgate chunk 1\0"
_NAMESPACE_DOMAIN = b"kvgate namespace 1\0"


def _sized(value: bytes) -> bytes:
    return len(value).to_bytes(8, "little") + value


def root_key(cache_salt: str = "", reset_nonce: bytes = b"") -> bytes:
    """The parent of a prompt's first chunk.

    Args:
        cache_salt: keeps tenants apart; empty equals none.
        reset_nonce: random bytes of a scheduler half's last ``reset()``; empty when it never was reset.

    Raises:
        ValueError: the salt is no string.
    """
    if not isinstance(cache_salt, str):
        raise ValueError(f"cache_salt is {cache_salt!r}, expected a string, empty for none")  # noqa: TRY004
    return blake3(_ROOT_DOMAIN + _sized(cache_salt.encode("utf-8", "surrogatepass")) + _sized(reset_nonce)).digest()


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32.

    Raises:
        ValueError: an id is not an integer in [0, 2**32).
    """
    try:
        tokens = array("I", token_ids)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers in [0, 2**32): {error}") from None
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()


def extra_of_chunks(extra_keys: Sequence[bytes | None] | None, num_chunks: int) -> tuple[bytes | None, ...]:
    """The extra key of each chunk, checked; None for all where there are none.

    Raises:
        ValueError: there is not one entry a full chunk, or one is neither ``bytes`` nor None. (What can change later,
            such as a bytearray, would be the key of something else by then.)
    """
    if extra_keys is None:
        return (None,) * num_chunks
    extra = tuple(extra_keys)
    if len(extra) != num_chunks:
        raise ValueError(f"extra_keys has {len(extra)} entries, expected one for each of {num_chunks} full chunks")
    for entry in extra:
        if entry is not None and type(entry) is not bytes:
            raise ValueError(f"an extra key is {entry!r}, expected bytes or None")
    return extra


def chunk_chain(
    parent: bytes,
    tokens: bytes,
    chunk_tokens: int,
    extra_keys: Sequence[bytes | None] | None = None,
) -> list[bytes]:
    """The keys of every full chunk of ``tokens``, in order.

    Args:
        parent: the root key, or the key of the chunk before the first token.
        tokens: ``token_bytes`` of the ids; a partial last chunk is dropped.
        chunk_tokens: tokens a chunk.
        extra_keys: None, or one ``bytes | None`` for each full chunk (LoRA, multimodal items).

    Raises:
        ValueError: ``extra_keys`` does not fit, as in ``extra_of_chunks``.
    """
    width = 4 * chunk_tokens
    view = memoryview(tokens)
    keys: list[bytes] = []
    for i, extra in enumerate(extra_of_chunks(extra_keys, len(tokens) // width)):
        hasher = blake3(_CHUNK_DOMAIN + parent)
        hasher.update(view[i * width : (i + 1) * width])
        hasher.update(b"\0" if extra is None else b"\1" + _sized(extra))
        parent = hasher.digest()
        keys.append(parent)
    return keys


def namespace_id(fields: Sequence[tuple[str, str | int]]) -> bytes:
    """The 16-byte fingerprint of everything that must agree before bytes may be shared.

    Args:
        fields: name and value pairs in a fixed order (model, revision, dtype, layout, block geometry, …).
    """
    hasher = blake3(_NAMESPACE_DOMAIN)
    for name, value in fields:
        kind, text = ("i", str(value)) if isinstance(value, int) else ("s", value)
        hasher.update(_sized(name.encode()) + kind.encode() + _sized(text.encode("utf-8", "surrogatepass")))
    return hasher.digest(NAMESPACE_BYTES)
