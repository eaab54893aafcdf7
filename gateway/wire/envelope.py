"""What every message has, and the limits of all.

Owns: the fields of every request and every reply, the two replies that any request may have, versions and sizes. Must
not know: what is asked. Pure.
"""

import msgspec

from gateway.wire.codes import ErrorCode

PROTOCOL_VERSION = 1
OLDEST_PROTOCOL_VERSION = 1
POOL_FORMAT = 1

MAX_MESSAGE_BYTES = 1 << 20  # refused before decoding, with a reply
MAX_FRAME_BYTES = 16 << 20  # ZeroMQ drops the connection before it buffers more
MAX_KEYS = 8192  # keys, reservations, operations or sessions in one message
MAX_SOCKET_PATH_BYTES = 107  # ``sun_path`` of a Unix socket address holds 108 bytes with its final zero


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every request.

    Attributes:
        number: chosen by the sender, increasing on its socket; stands in the reply.
        boot: boot id (16 bytes) the request is meant for; HELLO leaves it empty.
        deadline: past it a granting request has no effect (``expired``); 0 = none.
    """

    number: int
    boot: bytes = b""
    deadline: float = 0.0


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Fields of every reply: the request's number and the boot id of the daemon that answers."""

    number: int
    boot: bytes


class Error(Reply, frozen=True, kw_only=True, tag="Error"):
    """The request was not done and changed nothing. ``number`` is 0 when it could not be read."""

    code: ErrorCode
    message: str
    retry_after_ms: int = 0


class Done(Reply, frozen=True, kw_only=True, tag="Done"):
    """The request was done, and there is nothing more to say."""
