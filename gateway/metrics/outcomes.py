"""Which outcome each request can have: ``ok``, or one of the wire's error codes.

Owns: that set, so that a scrape carries no series that can never count. Must not know: what a request does. Pure. A
daemon that checks itself (``KVGATE_VERIFY=1``) compares every answer with it.
"""

from collections.abc import Mapping

from gateway.wire.codes import ErrorCode

#: The outcome of a request that was done; every other outcome is an error code.
OK = "ok"
#: The operation of a request that could not be read.
UNKNOWN = "unknown"

_READ = (OK, ErrorCode.INTERNAL)  # every request that could be read
_MEANT = (*_READ, ErrorCode.WRONG_BOOT)  # … and names a boot, as all but HELLO do
_ENDS = (*_MEANT, ErrorCode.STARTING)  # what ends something is refused in one state only
_PARTY = (ErrorCode.UNKNOWN_PARTY, ErrorCode.FENCED, ErrorCode.INVALID)
_BEGINS = (*_ENDS, ErrorCode.STOPPING, ErrorCode.EXPIRED, ErrorCode.LIMIT, *_PARTY)
_GRANTS = (*_BEGINS, ErrorCode.DRAINING, ErrorCode.OFF)
#: Whoever is fenced is not copied for from that moment on: it hears that it is no party.
_COPIES = tuple(outcome for outcome in _GRANTS if outcome != ErrorCode.FENCED)
_ADMITS = (
    ErrorCode.LOCK_NOT_HELD,
    ErrorCode.COLLISION,
    ErrorCode.GEOMETRY,
    ErrorCode.FENCED,
    ErrorCode.INVALID,
    ErrorCode.INCOMPATIBLE,
)
_OPERATES = (*_MEANT, ErrorCode.FORBIDDEN)
_CHANGES = (*_OPERATES, ErrorCode.EXPIRED, ErrorCode.NOT_FOUND)
_SERVED = (ErrorCode.STARTING, ErrorCode.STOPPING)

OUTCOMES: Mapping[str, tuple[str, ...]] = {
    "HELLO": (*_READ, ErrorCode.INCOMPATIBLE),
    "REGISTER": (*_ENDS, ErrorCode.STOPPING, ErrorCode.DRAINING, ErrorCode.EXPIRED, ErrorCode.LIMIT, *_ADMITS),
    "UNREGISTER": _ENDS,
    "PING": (*_MEANT, ErrorCode.INVALID),
    "LOOKUP": _BEGINS,
    "RELEASE": (*_ENDS, ErrorCode.INVALID),
    "END_SESSION": (*_ENDS, ErrorCode.INVALID),
    "RESERVE": _GRANTS,
    "COMMIT": (*_ENDS, *_PARTY),
    "ABORT": (*_ENDS, ErrorCode.FENCED, ErrorCode.INVALID),
    "READ": _GRANTS,
    "DONE": (*_ENDS, ErrorCode.INVALID),
    "STORE": _COPIES,
    "RETRIEVE": _COPIES,
    "CANCEL": _ENDS,
    "RELEASE_EVENT": _ENDS,
    "SNAPSHOT": _OPERATES,
    "DRAIN": (*_CHANGES, ErrorCode.CONFLICT, ErrorCode.INVALID),
    "RESUME": (*_CHANGES, ErrorCode.CONFLICT),
    "CLEAR": (*_CHANGES, *_SERVED, ErrorCode.INVALID),
    "FENCE": (*_CHANGES, *_SERVED),
    "SWITCH": (*_OPERATES, ErrorCode.EXPIRED, ErrorCode.INVALID, ErrorCode.LIMIT),
    UNKNOWN: (ErrorCode.BAD_MESSAGE, ErrorCode.TOO_LARGE, ErrorCode.UNSUPPORTED),
}
