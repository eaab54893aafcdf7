"""The two ends of every copy: the engine's KV cache and the mapped pool.

Owns: the registered tensors, the copier made for them, the mapping of the pool. Must not know: operations, messages.
Guarded by the adapter's lock, but for ``copy`` and ``release``; nothing is replaced while a copy runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from adapter.actions import Unit
from adapter.geometry import Geometry, Tensor
from adapter.half import PoolUnusableError
from adapter.transfer.chunks import CopyUnit
from adapter.transfer.prefault import Prefault
from gateway.device.copy import ChunkCopier, Region
from gateway.pool.format import PoolFormatError
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import Reason


class Memory:
    """Where one worker copies from and to. ``copy`` does so for one unit; tests put their own in its place."""

    def __init__(self, copy: CopyUnit) -> None:
        #: The KV cache's shape; None before it was registered.
        self.geometry: Geometry | None = None
        #: Bytes of one chunk of this worker; 0 before.
        self.chunk_bytes = 0
        self._copy = copy
        self._tensors: tuple[Tensor, ...] = ()  # keeps the memory alive to which the copier points
        self._copier: ChunkCopier | None = None
        self._mapping: PoolMapping | None = None
        self._prefault: Prefault | None = None

    def set_cache(
        self, caches: Mapping[str, Tensor], geometry: Geometry, regions: Sequence[Region], blocks_per_chunk: int
    ) -> None:
        """Copy from and to this KV cache from now on."""
        self._copier = ChunkCopier(regions, geometry.num_blocks)
        self._tensors = tuple(caches.values())
        self.geometry = geometry
        self.chunk_bytes = self._copier.chunk_bytes(blocks_per_chunk)

    def map_pool(self, path: Path, pool_id: bytes) -> Callable[[], None]:
        """Map the pool, if another one is mapped or none.

        Returns:
            What gives up the mapping of before; it may take long.

        Raises:
            PoolUnusableError: it cannot be mapped, or is another pool than ``pool_id``. The mapping stays as it was.
        """
        if self._mapping is not None and self._mapping.pool_id == pool_id:
            return _nothing
        try:
            mapping = PoolMapping.open(path)
        except PoolFormatError as error:
            raise PoolUnusableError(str(error), is_lasting=True) from None
        except OSError as error:
            raise PoolUnusableError(f"cannot map {path}: {error}", is_lasting=False) from None
        if mapping.pool_id != pool_id:
            mapping.close()
            raise PoolUnusableError(f"{path} is another pool than the gateway's", is_lasting=False)
        give_up = partial(_unmap, self._mapping, self._prefault)
        self._mapping, self._prefault = mapping, Prefault(mapping)
        return give_up

    @property
    def pool_id(self) -> bytes:
        """Of the mapped pool; empty when there is none."""
        return b"" if self._mapping is None else self._mapping.pool_id

    def has_room_at(self, offset: int) -> bool:
        """Whether a chunk at this offset lies within the mapped pool."""
        return self._mapping is not None and 0 <= offset <= self._mapping.data_bytes - self.chunk_bytes

    def copy(self, unit: Unit) -> Reason:
        """Copy one unit that the ledger has begun. On a copy thread, without the lock."""
        if self._mapping is None or self._copier is None:
            return Reason.COPY_ERROR
        return self._copy(unit, self._mapping, self._copier)

    def release(self) -> None:
        """No copy runs and none will: unmap the pool, let the tensors go."""
        _unmap(self._mapping, self._prefault)
        self._mapping = self._prefault = self._copier = None
        self._tensors = ()


def _unmap(mapping: PoolMapping | None, prefault: Prefault | None) -> None:
    if prefault is not None:
        prefault.stop()
    if mapping is not None:
        mapping.close()


def _nothing() -> None:
    """There is no mapping to give up."""
