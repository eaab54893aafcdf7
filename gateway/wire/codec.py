"""Bytes to typed messages and back: the one place where bytes are decoded.

Owns: msgpack encoding, size limits, and the errors of both. Must not know: sockets. Pure; an instance per thread is not
needed, msgspec's encoders and decoders keep no state between calls.
"""

from typing import get_args

import msgspec

from gateway.wire import messages
from gateway.wire.codes import ErrorCode


class WireError(Exception):
    """A message that cannot be read. ``number`` is the request's where it could still be found, else 0."""

    def __init__(self, code: ErrorCode, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.number = number


class _Numbered(msgspec.Struct):
    number: int = 0
    type: str = ""


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(messages.AnyRequest)
_replies = msgspec.msgpack.Decoder(messages.AnyReply)
_numbers = msgspec.msgpack.Decoder(_Numbered)
_request_tags = frozenset(str(kind.__struct_config__.tag) for kind in get_args(messages.AnyRequest))


def encode(message: messages.Request | messages.Reply) -> bytes:
    """The message as one frame.

    Raises:
        WireError: a field cannot be encoded (an integer over 64 bits, a string with a lone surrogate), or the frame is
            over MAX_MESSAGE_BYTES (requests only: replies of an admin snapshot may be larger).
    """
    try:
        frame = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise WireError(
            ErrorCode.BAD_MESSAGE, f"cannot encode {type(message).__name__}: {error}", message.number
        ) from None
    if isinstance(message, messages.Request) and len(frame) > messages.MAX_MESSAGE_BYTES:
        raise WireError(
            ErrorCode.TOO_LARGE,
            f"{type(message).__name__} takes {len(frame)} bytes, at most {messages.MAX_MESSAGE_BYTES} are allowed",
            message.number,
        )
    return frame


def decode_request(frame: bytes | memoryview, max_bytes: int = messages.MAX_MESSAGE_BYTES) -> messages.AnyRequest:
    """One frame as a request.

    Raises:
        WireError: too large, not msgpack, a type that this version does not know (``unsupported``), a field of the
            wrong type, or a list over MAX_KEYS.
    """
    if len(frame) > max_bytes:
        raise WireError(ErrorCode.TOO_LARGE, f"message of {len(frame)} bytes, at most {max_bytes} are allowed")
    try:
        request = _requests.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        number, kind = _number_of(frame)
        if kind and kind not in _request_tags:
            raise WireError(
                ErrorCode.UNSUPPORTED,
                f"there is no request {kind} in wire version {messages.PROTOCOL_VERSION}",
                number,
            ) from None
        raise WireError(ErrorCode.BAD_MESSAGE, f"cannot read {kind or 'message'}: {error}", number) from None
    for field in ("keys", "reservations", "operations", "sessions"):
        values = getattr(request, field, ())
        if len(values) > messages.MAX_KEYS:
            raise WireError(
                ErrorCode.TOO_LARGE, f"{field} has {len(values)} entries, at most {messages.MAX_KEYS}", request.number
            )
    return request


def decode_reply(frame: bytes | memoryview) -> messages.AnyReply:
    """One frame as a reply.

    Raises:
        WireError: not msgpack, unknown type, or a field of the wrong type.
    """
    try:
        return _replies.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        number, _ = _number_of(frame)
        raise WireError(ErrorCode.BAD_MESSAGE, f"cannot read reply: {error}", number) from None


def _number_of(frame: bytes | memoryview) -> tuple[int, str]:
    """The number and type of a message that does not fit its struct, so that its sender still gets an answer."""
    try:
        found = _numbers.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0, ""
    return found.number, found.type[:32]
