"""kvgate inside an engine: look up, store and retrieve KV chunks through the node's gateway.

Imports neither FastAPI nor uvicorn, nor torch: tensors are used by their public methods only.
"""

from adapter.config import AdapterConfig
from adapter.geometry import Geometry
from adapter.identity import CacheIdentity
from adapter.operation import IpcEvent, LoadStoreOp
from adapter.scheduler import Pending, SchedulerAdapter
from adapter.snapshot import PendingOperation, Snapshot
from adapter.worker import WorkerAdapter
from gateway.wire.codes import State

__all__ = [
    "AdapterConfig",
    "CacheIdentity",
    "Geometry",
    "IpcEvent",
    "LoadStoreOp",
    "Pending",
    "PendingOperation",
    "SchedulerAdapter",
    "Snapshot",
    "State",
    "WorkerAdapter",
]
