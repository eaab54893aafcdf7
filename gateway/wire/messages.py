"""Wire protocol 1: every message, as frozen tagged structs.

Owns: which messages there are, and in which sets they stand; each family has a module of its own beside this one, and
all their names are imported from here. Must not know: how a message is sent, or what it does to the tables. Pure.

One request is one ZeroMQ frame (DEALER to ROUTER over ``ipc://``) holding one msgpack map; its reply is one frame of
the same kind. Unknown fields are ignored and fields are only ever added, each with a default. ``docs/protocol.md`` is
the prose of these files; ``tests/wire/golden`` holds their bytes.

Times named ``*_deadline`` are CLOCK_MONOTONIC seconds of the node; ``*_at`` are Unix seconds.
"""

from gateway.wire.envelope import (
    MAX_FRAME_BYTES,
    MAX_KEYS,
    MAX_MESSAGE_BYTES,
    MAX_SOCKET_PATH_BYTES,
    OLDEST_PROTOCOL_VERSION,
    POOL_FORMAT,
    PROTOCOL_VERSION,
    Done,
    Error,
    Reply,
    Request,
)
from gateway.wire.handles import (
    Cancel,
    Copied,
    HandleOffer,
    ReleaseEvent,
    Retrieve,
    SharedMemory,
    SharedRegion,
    Store,
)
from gateway.wire.heartbeat import AdapterStats, DrainNotice, HistogramSample, OperationInfo, Ping, Pong, Sample
from gateway.wire.lookups import EndSession, Found, Lookup, Release
from gateway.wire.meeting import Hello, Register, Unregister, Welcome
from gateway.wire.operators import Clear, Cleared, Drain, Drained, Fence, Resume, SnapshotRequest, Switch
from gateway.wire.slots import Abort, Commit, Committed, EndRead, Read, Readable, ReadSlot, Reserve, Reserved, SlotGrant
from gateway.wire.snapshot import (
    CheckInfo,
    DrainInfo,
    EngineInfo,
    NamespaceInfo,
    PartyInfo,
    Remaining,
    SlotCounts,
    SnapshotReply,
    SwitchInfo,
    TransferInfo,
)

__all__ = [
    "ENDING",
    "MAX_FRAME_BYTES",
    "MAX_KEYS",
    "MAX_MESSAGE_BYTES",
    "MAX_SOCKET_PATH_BYTES",
    "OLDEST_PROTOCOL_VERSION",
    "POOL_FORMAT",
    "PROTOCOL_VERSION",
    "Abort",
    "AdapterStats",
    "AdminRequest",
    "AnyReply",
    "AnyRequest",
    "Cancel",
    "CheckInfo",
    "Clear",
    "Cleared",
    "Commit",
    "Committed",
    "Copied",
    "Done",
    "Drain",
    "DrainInfo",
    "DrainNotice",
    "Drained",
    "EndRead",
    "EndSession",
    "EngineInfo",
    "EngineRequest",
    "Error",
    "Fence",
    "Found",
    "HandleOffer",
    "HandleRequest",
    "Hello",
    "HistogramSample",
    "Lookup",
    "NamespaceInfo",
    "OperationInfo",
    "PartyInfo",
    "Ping",
    "Pong",
    "Read",
    "ReadSlot",
    "Readable",
    "Register",
    "Release",
    "ReleaseEvent",
    "Remaining",
    "Reply",
    "Request",
    "Reserve",
    "Reserved",
    "Resume",
    "Retrieve",
    "Sample",
    "SharedMemory",
    "SharedRegion",
    "SlotCounts",
    "SlotGrant",
    "SlotRequest",
    "SnapshotReply",
    "SnapshotRequest",
    "Store",
    "Switch",
    "SwitchInfo",
    "TransferInfo",
    "Unregister",
    "Welcome",
]

SlotRequest = Reserve | Commit | Abort | Read | EndRead
HandleRequest = Store | Retrieve | Cancel | ReleaseEvent
EngineRequest = Hello | Register | Unregister | Ping | Lookup | Release | EndSession | SlotRequest | HandleRequest
AdminRequest = SnapshotRequest | Drain | Resume | Clear | Fence | Switch
AnyRequest = EngineRequest | AdminRequest
AnyReply = (
    Error | Done | Welcome | Pong | Found | Reserved | Committed | Readable | Copied | Drained | Cleared | SnapshotReply
)

#: Requests that end something: served in every state but starting, whatever their deadline.
ENDING = (Unregister, Release, EndSession, Commit, Abort, EndRead, Cancel, ReleaseEvent)
