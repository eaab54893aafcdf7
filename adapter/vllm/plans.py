"""What the scheduler half tells the worker halves for one step, and what they answer.

Owns: these messages. vLLM carries them between its own processes. Must not know: vLLM, adapters.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Load:
    """Bring the chunks of tokens [start, start + all of the keys') into these blocks.

    Attributes:
        keys: one a chunk.
        block_ids: of all these chunks, in token order.
        start: first token, on a chunk edge.
        skip_tokens: from ``start``: blocks that vLLM already holds, and may share; they are not written.
    """

    request_id: str
    keys: tuple[bytes, ...]
    block_ids: tuple[int, ...]
    start: int
    skip_tokens: int = 0


@dataclass(frozen=True)
class Store:
    """Keep the chunks of tokens from ``start`` on, computed when this step is."""

    request_id: str
    keys: tuple[bytes, ...]
    block_ids: tuple[int, ...]
    start: int
    parent: bytes | None = None


@dataclass(frozen=True)
class StepPlan:
    """One step of the engine.

    Attributes:
        fresh_blocks: given out since the last step: what was in them is about to be overwritten.
        is_idle: no tokens are computed in this step.
    """

    loads: tuple[Load, ...] = ()
    stores: tuple[Store, ...] = ()
    fresh_blocks: tuple[int, ...] = ()
    is_idle: bool = False


@dataclass(frozen=True)
class StepReport:
    """What a worker half has to say after a step. ``is_pending``: operations of it are not settled."""

    is_pending: bool

    def aggregate(self, other: StepReport) -> StepReport:
        """Of all ranks: pending where one is."""
        return StepReport(self.is_pending or other.is_pending)


@dataclass(frozen=True)
class RankGeometry:
    """The KV cache of one rank, as its worker half read it."""

    encoded: bytes = field(repr=False)
