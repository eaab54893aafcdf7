"""Every closed set of words of the contract.

Owns: the enumerations that stand in messages, metrics labels and the admin API. Must not know: anything else;
this module imports the standard library only, so that the pure core may use it. Runs on any thread.

Values are the words seen on the wire and in labels: renaming one is a protocol change.
"""

from collections.abc import Iterable
from enum import StrEnum


class Lifecycle(StrEnum):
    """What was asked of the gateway."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Health(StrEnum):
    """What the gateway's checks observe."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class SwitchScope(StrEnum):
    """What a switch is for."""

    NODE = "node"
    MODEL = "model"
    ENGINE = "engine"


class SwitchMode(StrEnum):
    """What an operator lets a node, a model or an engine do, until they say otherwise."""

    ON = "on"
    NO_STORE = "no_store"
    NO_LOAD = "no_load"
    OFF = "off"

    @property
    def stores(self) -> bool:
        """Whether new stores are taken."""
        return self in (SwitchMode.ON, SwitchMode.NO_LOAD)

    @property
    def loads(self) -> bool:
        """Whether lookups find anything, and loads are begun."""
        return self in (SwitchMode.ON, SwitchMode.NO_STORE)


def strictest(modes: Iterable[SwitchMode]) -> SwitchMode:
    """What all of these together allow; ``on`` when there are none."""
    taken = frozenset(modes) - {SwitchMode.ON}
    if len(taken) > 1:  # one that takes stores and one that takes loads leave nothing
        return SwitchMode.OFF
    return next(iter(taken), SwitchMode.ON)


class Role(StrEnum):
    """Which half of an engine a party is."""

    SCHEDULER = "scheduler"
    WORKER = "worker"


class ErrorCode(StrEnum):
    """Why a request was not done. An error changes nothing."""

    BAD_MESSAGE = "bad_message"  # not msgpack, or a field of the wrong type
    TOO_LARGE = "too_large"  # over the negotiated size, key or list limits
    INVALID = "invalid"  # well formed, but its values make no sense
    UNSUPPORTED = "unsupported"  # a type of message this daemon does not know
    INCOMPATIBLE = "incompatible"  # wire version, pool format or way of copying: both sides' values stand in it
    FORBIDDEN = "forbidden"  # an admin message on the shared socket
    WRONG_BOOT = "wrong_boot"  # meant for another boot of the daemon
    STARTING = "starting"  # the pool is still being reserved
    DRAINING = "draining"  # no new work; retry after retry_after_ms
    STOPPING = "stopping"
    OFF = "off"  # an operator's switch forbids it
    EXPIRED = "expired"  # the request's deadline had passed when it was read
    UNKNOWN_PARTY = "unknown_party"  # register first
    LOCK_NOT_HELD = "lock_not_held"  # the party's proof-of-death lock is not seen held
    COLLISION = "collision"  # another live party has this id, or its lock byte
    GEOMETRY = "geometry"  # the chunk size does not fit the pool or the namespace's other parties
    FENCED = "fenced"  # an operator removed this engine
    CONFLICT = "conflict"  # the lifecycle table has no such step
    NOT_FOUND = "not_found"  # an operator names what nobody knows; the message names what is known
    LIMIT = "limit"  # a table of the daemon is at its bound
    INTERNAL = "internal"


class ReserveStatus(StrEnum):
    """The answer for one key of a RESERVE."""

    GRANTED = "granted"
    EXISTS = "exists"  # READY already: counts as stored
    BUSY = "busy"  # under another live reservation
    QUOTA = "quota"  # the party's share of the pool is reserved: commit some, ask again
    FULL = "full"  # nothing may be evicted


class CommitStatus(StrEnum):
    """The answer for one reservation of a COMMIT."""

    COMMITTED = "committed"
    EXISTS = "exists"  # another committed this key first: counts as stored
    DRAINED = "drained"  # a drain had cut it: the slot is free again
    CLEARED = "cleared"  # a clear came between: the slot is free again
    UNKNOWN = "unknown"  # no such reservation of this party


class TransferMode(StrEnum):
    """Who copies between an engine's blocks and the pool."""

    AUTO = "auto"  # as the other side wants it; pool where neither cares
    POOL = "pool"  # the engine's process
    HANDLE = "handle"  # the gateway, through memory and event handles


class CopyStatus(StrEnum):
    """How one chunk of a STORE or RETRIEVE ended."""

    COPIED = "copied"  # a store's: and committed
    EXISTS = "exists"  # it was there already: counts as stored
    BUSY = "busy"  # another fills it
    FULL = "full"  # nothing may be evicted
    MISSING = "missing"  # not there
    CHANGED = "changed"  # its slot was another one after the copy
    COPY_ERROR = "copy_error"
    EVENT_ERROR = "event_error"  # the event's handle did not open, or asking it failed
    EXPIRED = "expired"  # not finished before the deadline
    CANCELLED = "cancelled"  # by CANCEL, by the board, or because its party left
    DRAINED = "drained"
    CLEARED = "cleared"


class OperationKind(StrEnum):
    """A worker's operation."""

    STORE = "store"
    RETRIEVE = "retrieve"


class Phase(StrEnum):
    """Where an operation of the ledger stands."""

    WAITING = "waiting"  # for a grant, its event, or a place in the window
    COPYING = "copying"
    CLOSING = "closing"  # copied; waits for the COMMIT's answer
    SETTLING = "settling"  # given up; a unit still runs
    SETTLED = "settled"


class OutcomeKind(StrEnum):
    """How an operation ended. It ends once."""

    STORED = "stored"
    LOADED = "loaded"
    PARTIAL = "partial"
    REFUSED = "refused"
    FAILED = "failed"
    EXPIRED = "expired"
    REVOKED = "revoked"
    DRAINED = "drained"


class Reason(StrEnum):
    """Why an operation ended refused or failed, or why a chunk of it did."""

    NONE = ""
    NOT_HEALTHY = "not_healthy"  # the adapter was not healthy when it was submitted
    DRAINING = "draining"
    PENDING_OPS = "pending_ops"  # max_pending_ops reached
    PENDING_BYTES = "pending_bytes"  # max_pending_bytes reached
    BUSY = "busy"
    FULL = "full"
    QUOTA = "quota"
    MISSING = "missing"  # the chunk was not there when it was read
    CHANGED = "changed"  # the slot's header was another one after the copy
    COPY_ERROR = "copy_error"
    EVENT_ERROR = "event_error"  # the caller's event raised when queried
    NO_REPLY = "no_reply"
    BAD_REPLY = "bad_reply"
    ENCODE_ERROR = "encode_error"
    SEND_ERROR = "send_error"
    REFUSED_BY_GATEWAY = "refused_by_gateway"
    GATEWAY_UNHEALTHY = "gateway_unhealthy"
    UNRESPONSIVE = "unresponsive"
    DEAD = "dead"
    RESTARTED = "restarted"
    CLOSED = "closed"
    CLEARED = "cleared"
    OFF = "off"  # an operator's switch forbids it


class Trigger(StrEnum):
    """What began a clean-up of an adapter's pending work."""

    GATEWAY_DRAINING = "gateway_draining"
    GATEWAY_UNHEALTHY = "gateway_unhealthy"
    UNRESPONSIVE = "unresponsive"
    DEAD = "dead"
    RESTARTED = "restarted"
    OPERATOR = "operator"
    SWITCH = "switch"
    CLOSE = "close"


class Proof(StrEnum):
    """Why nothing touches a settled operation's blocks any more."""

    COPY_DONE = "copy_done"  # its last unit finished
    NEVER_STARTED = "never_started"  # no unit of it ever ran
    ACKNOWLEDGED = "acknowledged"  # the daemon said so (handle mode)
    DEATH = "death"  # the daemon is proven dead (handle mode)
    DEADLINE = "deadline"  # the daemon starts nothing past it (handle mode)


class State(StrEnum):
    """An adapter's view of its gateway."""

    CONNECTING = "connecting"
    HEALTHY = "healthy"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"
    UNRESPONSIVE = "unresponsive"
    DEAD = "dead"
    INCOMPATIBLE = "incompatible"
    CLOSED = "closed"


class DrainOutcome(StrEnum):
    """How a drain of the gateway ended."""

    COMPLETED = "completed"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    FORCED = "forced"
    CANCELLED = "cancelled"


class EvictionReason(StrEnum):
    """Why a READY chunk left the pool."""

    CAPACITY = "capacity"
    SLAB = "slab"  # its slab went to another size class
    CLEARED = "cleared"
    GEOMETRY = "geometry"  # the namespace came back with another chunk size
