"""Messages of operators, served on the admin socket only.

Owns: what an operator can ask for, with its answers. Must not know: what a snapshot holds. Pure.
"""

from gateway.wire.codes import SwitchMode, SwitchScope
from gateway.wire.envelope import Reply, Request
from gateway.wire.snapshot import DrainInfo


class SnapshotRequest(Request, frozen=True, kw_only=True, tag="SNAPSHOT"):
    """Everything an operator or a scrape may see; ``transfers`` adds the lists of operations.

    Attributes:
        max_transfers: so many pending operations, the oldest, and so many settled ones, the latest; 0: all.
    """

    transfers: bool = False
    max_transfers: int = 0


class Drain(Request, frozen=True, kw_only=True, tag="DRAIN"):
    """Begin or join a drain, of the gateway (``engine`` empty) or of one engine. ``deadline_seconds`` 0 forces."""

    requested_by: str
    peer: str = ""
    engine: str = ""
    deadline_seconds: float | None = None
    reason: str = ""
    flush: bool = False
    exit: bool = False


class Drained(Reply, frozen=True, kw_only=True, tag="DRAINED"):
    """Answer to DRAIN. ``already``: it had been drained before. ``drain`` is None for an engine's drain."""

    already: bool
    drain: DrainInfo | None = None


class Resume(Request, frozen=True, kw_only=True, tag="RESUME"):
    """Take new work again, from everyone or (``engine``) from one engine."""

    requested_by: str
    peer: str = ""
    engine: str = ""
    reason: str = ""


class Clear(Request, frozen=True, kw_only=True, tag="CLEAR"):
    """Forget chunks: of a model, of a namespace (hex), or all. Exactly one of the three is set."""

    requested_by: str
    peer: str = ""
    model: str = ""
    namespace: str = ""
    all: bool = False
    reason: str = ""
    dry_run: bool = False


class Cleared(Reply, frozen=True, kw_only=True, tag="CLEARED"):
    """Answer to CLEAR: what left the index; of it, what readers still hold (freed by their last release)."""

    chunks: int
    bytes: int
    held_chunks: int


class Switch(Request, frozen=True, kw_only=True, tag="SWITCH"):
    """Set a switch for good; ``mode`` None takes it away. The node's name is ``all``."""

    requested_by: str
    scope: SwitchScope
    name: str
    mode: SwitchMode | None = None
    peer: str = ""
    reason: str = ""


class Fence(Request, frozen=True, kw_only=True, tag="FENCE"):
    """Take an engine's registrations away; its slots stay quarantined until each party is proven dead."""

    requested_by: str
    engine: str
    peer: str = ""
    reason: str = ""
