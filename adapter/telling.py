"""Operations as they are told outside this process: in heartbeats, and by the adapter's admin server.

Owns: what is told of a request's id. Must not know: who is told, the ledger. Pure.

A request's id is whatever the engine's caller chose: of any length, and not always text that can be encoded. A
heartbeat must go out all the same, or a single request would silence its engine.
"""

from collections.abc import Iterable

import msgspec

from gateway.wire.messages import OperationInfo

MAX_REQUEST_ID_BYTES = 256


def told(operations: Iterable[OperationInfo]) -> tuple[OperationInfo, ...]:
    """The same operations, each with an id that any message can carry."""
    return tuple(_told(operation) for operation in operations)


def _told(operation: OperationInfo) -> OperationInfo:
    request_id = operation.request_id
    if request_id.isascii() and len(request_id) <= MAX_REQUEST_ID_BYTES:
        return operation
    text = request_id[:MAX_REQUEST_ID_BYTES].encode("utf-8", "backslashreplace")
    shown = text[:MAX_REQUEST_ID_BYTES].decode("utf-8", "ignore")
    return msgspec.structs.replace(operation, request_id=shown)
