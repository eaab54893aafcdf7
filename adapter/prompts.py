"""The chunk keys of prompts, hashed once: a request that comes back with more tokens pays for the new ones only.

Owns: for each request, the tokens hashed so far and their keys. Must not know: lookups, the gateway. Pure; the caller
serializes calls.

What was hashed is kept as tokens, not trusted by its request id: the same id with other tokens, another salt or
another extra key is hashed anew. What is kept is bounded, in bytes and in requests: the one used longest ago goes.

Most of a long prompt's second turn would be the conversion of its first into bytes. An engine extends one list, so the
integers in it are the same objects as before: a list is compared with the one kept, which looks at objects first and
takes a tenth of the time, and only what is new is converted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.wire.keys import chunk_chain, extra_of_chunks, root_key, token_bytes

MAX_KEPT_BYTES = 128 << 20
#: The shortest prompts keep next to no bytes, and still a place each.
MAX_KEPT_PROMPTS = 8192
POINTER_BYTES = 8


@dataclass(slots=True)
class _Prompt:
    """``keys[i]`` belongs to the chunk i of ``tokens``; what follows the last whole chunk has no key.

    Attributes:
        token_ids: what ``tokens`` was made from, where that was a list; else empty.
        kept_bytes: what of it counts against the bound; the integers in the list are the engine's.
    """

    root: bytes
    token_ids: list[int]
    tokens: bytes
    extra_keys: tuple[bytes | None, ...]
    keys: list[bytes]
    kept_bytes: int = 0


class Prompts:
    """Keys of the prompts seen lately."""

    def __init__(self, chunk_tokens: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._prompts: dict[str, _Prompt] = {}  # the one used longest ago first
        self._kept_bytes = 0
        self._nonce = b""

    def __len__(self) -> int:
        return len(self._prompts)

    def keys(
        self, request_id: str, token_ids: Sequence[int], cache_salt: str, extra_keys: Sequence[bytes | None] | None
    ) -> list[bytes]:
        """The keys of every full chunk of ``token_ids``, in order. The list is the caller's.

        Raises:
            ValueError: a token id is out of range, the salt is no string, or ``extra_keys`` has not one entry of bytes
                or None for each full chunk. Nothing has changed.
        """
        width = 4 * self._chunk_tokens
        num_chunks = len(token_ids) // self._chunk_tokens
        extra = extra_of_chunks(extra_keys, num_chunks)
        root = root_key(cache_salt, self._nonce)
        prompt = self._prompts.get(request_id)
        # The last step that may fail: it extends the kept prompt in place.
        ids, tokens, extends = _encoded(prompt, token_ids)
        self.forget(request_id)
        known = self._known_chunks(prompt, root, tokens, extra, extends=extends)
        keys = prompt.keys[:known] if prompt is not None else []
        parent = keys[-1] if keys else root
        new_extra = None if extra_keys is None else extra[known:]
        keys += chunk_chain(parent, tokens[known * width :], self._chunk_tokens, new_extra)
        self._keep(request_id, _Prompt(root, ids, tokens, extra, keys))
        return list(keys)

    def forget(self, request_id: str) -> None:
        """The request is over."""
        prompt = self._prompts.pop(request_id, None)
        if prompt is not None:
            self._kept_bytes -= prompt.kept_bytes

    def reset(self, nonce: bytes) -> None:
        """From now on no key equals one from before: ``nonce`` is mixed into every root."""
        self._nonce = nonce
        self._prompts.clear()
        self._kept_bytes = 0

    def _known_chunks(
        self, prompt: _Prompt | None, root: bytes, tokens: bytes, extra: tuple[bytes | None, ...], *, extends: bool
    ) -> int:
        """How many leading chunks are those of the kept prompt: all of the shorter one, or none.

        ``extends``: the tokens are known to begin with the kept ones.
        """
        if prompt is None or prompt.root != root:
            return 0
        num_chunks = min(len(prompt.keys), len(extra))
        same_extra = prompt.extra_keys[:num_chunks] == extra[:num_chunks]
        end = 4 * self._chunk_tokens * num_chunks
        same_tokens = extends or tokens.startswith(prompt.tokens[:end])
        return num_chunks if same_extra and same_tokens else 0

    def _keep(self, request_id: str, prompt: _Prompt) -> None:
        self._prompts[request_id] = prompt
        prompt.kept_bytes = len(prompt.tokens) + POINTER_BYTES * len(prompt.token_ids)
        self._kept_bytes += prompt.kept_bytes
        while len(self._prompts) > 1 and (self._kept_bytes > MAX_KEPT_BYTES or len(self._prompts) > MAX_KEPT_PROMPTS):
            oldest = next(iter(self._prompts))
            self.forget(oldest)


def _encoded(prompt: _Prompt | None, token_ids: Sequence[int]) -> tuple[list[int], bytes, bool]:
    """The ids, to be kept where they are a list; their bytes; whether they extend the kept prompt. All are checked.

    Raises:
        ValueError: a token id is out of range; the prompt is as it was.
    """
    if not isinstance(token_ids, list):
        return [], token_bytes(token_ids), False
    if prompt is not None and prompt.token_ids:
        ids, known = prompt.token_ids, len(prompt.token_ids)
        new = token_ids[known:]
        new_bytes = token_bytes(new)
        ids += new  # so that whole lists are compared: a slice as long as the prompt would cost more than comparing
        if ids == token_ids:
            return ids, prompt.tokens + new_bytes, True
        del ids[known:]
    return token_ids.copy(), token_bytes(token_ids), False
