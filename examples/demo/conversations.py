"""Requests to replay: multi-turn conversations made here, or the rows of a trace file.

Owns: what is asked, in which order. Must not know: engines, gateways, clocks. Pure but for reading the trace. Every
engine makes the same sequence and serves its own share of it, so that no prompt travels between processes.
"""

import itertools
import json
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_VOCABULARY = 128_000
_TRACE_BLOCK_TOKENS = 512


@dataclass(frozen=True)
class Request:
    """One prompt. ``tokens`` is an array of ``"I"``."""

    request_id: str
    tokens: "array[int]"


def conversations(max_tokens: int, seed: int = 1) -> Iterator[Request]:
    """Turns of sixteen chats at a time, without end.

    A chat begins with one of five system prompts, which they share; each turn's prompt is the whole history and one
    more user message. A chat that would outgrow ``max_tokens`` makes room for a new one.
    """
    rng = random.Random(seed)
    system_prompts = [_text(rng, 300, 1200) for _ in range(5)]
    chats = [array("I", rng.choice(system_prompts)) for _ in range(16)]
    for number in itertools.count():
        chat = rng.randrange(len(chats))
        message = _text(rng, 40, 500)
        if len(chats[chat]) + len(message) > max_tokens:
            chats[chat] = array("I", rng.choice(system_prompts))
        history = chats[chat]
        history.extend(message)
        yield Request(f"chat-{number}", array("I", history[:max_tokens]))
        history.extend(_text(rng, 50, 600))


def trace(path: Path, max_tokens: int) -> Iterator[Request]:
    """The rows of a trace, in order and over again, each as fast as the engine can.

    A row is a JSON object with ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens) and ``hash_ids``,
    one a 512-token block of the prompt; equal ids mean equal prefixes. Prompts are cut to ``max_tokens``.

    Raises:
        ValueError: a row is not such an object, or there is none; the message names the file and the line.
    """
    rows: list[tuple[int, list[int]]] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                rows.append((int(row["input_length"]), [int(value) for value in row["hash_ids"]]))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: expected input_length and hash_ids: {error}") from None
    if not rows:
        raise ValueError(f"{path} has no rows")
    for number, (length, hash_ids) in enumerate(itertools.cycle(rows)):
        blocks = hash_ids[: -(-max_tokens // _TRACE_BLOCK_TOKENS)]
        tokens = array("I", itertools.chain.from_iterable(map(_trace_block, blocks)))
        yield Request(f"trace-{number}", tokens[: min(length, max_tokens)])


def _trace_block(hash_id: int) -> range:
    """512 token ids that no other id's block has, up to eight million ids."""
    first = hash_id * _TRACE_BLOCK_TOKENS % 2**32
    return range(first, first + _TRACE_BLOCK_TOKENS)


def _text(rng: random.Random, shortest: int, longest: int) -> "array[int]":
    return array("I", (rng.randrange(_VOCABULARY) for _ in range(rng.randint(shortest, longest))))
