"""Who may do what on the admin API: one decision.

Owns: token, Host and Origin checks. Must not know: what a route does, FastAPI. Pure, but for reading the token's file.

The token is what counts. Host and Origin keep a browser on the operator's machine from being used against a listener on
loopback: a page of elsewhere names its own origin, and a rebound DNS name its own host.
"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import urlsplit

from gateway.config import GatewayConfig, admin_token, is_loopback, parse_address

#: Read without a token anywhere: probes and scrapes have none.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/metrics"})

#: The operator's page, which holds no data: the parts of it lie below this.
_PAGE, _PARTS = "/", "/page/"

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Decision(Enum):
    """What becomes of a request before its route sees it."""

    ALLOWED = auto()
    TOKEN_MISSING = auto()
    TOKEN_WRONG = auto()
    FOREIGN_ORIGIN = auto()
    FOREIGN_HOST = auto()


@dataclass(frozen=True)
class Access:
    """The rule of one listener. ``token`` empty: none is set, which only a loopback listener may do."""

    token: str
    is_loopback: bool

    def decide(self, method: str, path: str, headers: Mapping[str, str]) -> Decision:
        """Whether the request may go on; ``headers`` are by lower-case name."""
        host = headers.get("host", "")
        if self.is_loopback and host and not is_loopback(_without_port(host).lower()):
            return Decision.FOREIGN_HOST
        origin = headers.get("origin")
        if origin is not None and _site_of(origin) != host.lower():
            return Decision.FOREIGN_ORIGIN
        is_open = path in OPEN_PATHS or path == _PAGE or path.startswith(_PARTS)
        if not self.token or is_open or (self.is_loopback and method in _READING):
            return Decision.ALLOWED
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            return Decision.TOKEN_MISSING
        if not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return Decision.TOKEN_WRONG
        return Decision.ALLOWED


def access_for(config: GatewayConfig, environ: Mapping[str, str]) -> Access:
    """The rule of the control listener. Settings are refused before this where they leave it open to others.

    Raises:
        ConfigError: the token cannot be read.
    """
    host, _ = parse_address("admin", config.admin)
    return Access(token=admin_token(config, environ), is_loopback=is_loopback(host))


def _site_of(origin: str) -> str | None:
    """The host and port that an Origin header names; None where it is not one."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
