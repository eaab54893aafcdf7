"""A copy that does not end before the test says so."""

import threading

from adapter.actions import Unit
from adapter.transfer.chunks import copy_unit
from gateway.device.copy import ChunkCopier
from gateway.pool.mapping import PoolMapping
from gateway.wire.codes import Reason


class HeldCopy:
    """Put in the place of a worker's own copy of a unit: it waits in the middle until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, unit: Unit, mapping: PoolMapping, copier: ChunkCopier) -> Reason:
        self.begun.set()
        assert self.go.wait(60)
        return copy_unit(unit, mapping, copier)
