"""Copying one chunk between the engine's blocks and the pool, and proving that what was read is what was granted.

Owns: the order of a retrieve's copy and its check. Must not know: operations, threads. Runs on copy threads.
"""

from collections.abc import Callable

from adapter.actions import Unit
from gateway.device.base import BlockCopier
from gateway.pool.mapping import PoolMapping, acquire_fence
from gateway.wire.codes import OperationKind, Reason

#: Copies one unit and says why it failed, if it did. Tests put their own in its place.
CopyUnit = Callable[[Unit, PoolMapping, BlockCopier], Reason]


def copy_unit(unit: Unit, mapping: PoolMapping, copier: BlockCopier) -> Reason:
    """Copy one chunk; for a retrieve, then look whether its slot is still the one that was granted.

    The slot's bytes may be given to another chunk at any moment of the copy: a lease protects only while its daemon
    lives. So the header is read again after the last byte, with a fence between: READY, with the key and the generation
    of the grant, means that no writer had the slot since. Otherwise the blocks hold bytes of nobody, and are reported.

    Returns:
        NONE, or CHANGED.

    Raises:
        ValueError: a block id is out of range; nothing was copied.
    """
    address = mapping.data_address + unit.offset
    if unit.kind is OperationKind.STORE:
        copier.gather(unit.block_ids, address)
        return Reason.NONE
    copier.scatter(unit.block_ids, address, unit.skip_blocks)
    acquire_fence()
    return Reason.NONE if mapping.holds(unit.slot, unit.key, unit.generation) else Reason.CHANGED
