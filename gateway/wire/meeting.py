"""Meeting: two sides say what they speak, and a peer becomes a party.

Owns: HELLO, REGISTER and UNREGISTER with their answers. Must not know: what a party does next. Pure.
"""

from gateway.wire.codes import Health, Lifecycle, Role, TransferMode
from gateway.wire.envelope import Reply, Request
from gateway.wire.handles import HandleOffer


class Hello(Request, frozen=True, kw_only=True, tag="HELLO"):
    """First message on a socket: which versions the sender speaks, and its clock."""

    oldest_version: int
    newest_version: int
    pool_format: int
    monotonic: float
    software: str = ""


class Welcome(Reply, frozen=True, kw_only=True, tag="WELCOME"):
    """Answer to HELLO: the version chosen, the limits, where the pool is, and who may copy."""

    version: int
    pool_format: int
    pool_id: bytes
    state: Lifecycle
    health: Health
    monotonic: float
    max_message_bytes: int
    max_keys: int
    heartbeat_seconds: float
    lease_seconds: float
    reservation_seconds: float
    transfer: TransferMode = TransferMode.POOL


class Register(Request, frozen=True, kw_only=True, tag="REGISTER"):
    """A party comes, or comes back. It says so only while no unit granted by an older boot is running.

    Attributes:
        party: random 16 bytes.
        group: parties of one model replica share it.
        engine: the operator's stable name, ``[A-Za-z0-9._-]{1,63}``.
        model: served model name, for labels.
        namespace: 16 bytes; a scheduler half may leave it empty.
        chunk_bytes: bytes of one chunk of this worker's shard; 0 for a scheduler half.
        holds_nothing: nothing granted by an older boot is in use: WRITING slots of this owner may be freed.
        chunk_tokens: tokens of one chunk, for token counts.
        transfer: who copies for this worker: pool, or handle with an ``offer``.
    """

    party: bytes
    role: Role
    group: str
    engine: str
    model: str
    namespace: bytes = b""
    shard: int = 0
    shard_count: int = 1
    replica: int = 0
    replicas: int = 1
    chunk_bytes: int = 0
    holds_nothing: bool = True
    pid: int = 0
    software: str = ""
    chunk_tokens: int = 256
    transfer: TransferMode = TransferMode.POOL
    offer: HandleOffer | None = None


class Unregister(Request, frozen=True, kw_only=True, tag="UNREGISTER"):
    """A party leaves. Its leases end; its live reservations are quarantined until it is proven dead."""

    party: bytes
