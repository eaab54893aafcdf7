"""Who may do what on the admin API: one decision, and the rule for where it may listen.

Owns: token, Host and Origin checks. Must not know: routes' meanings, FastAPI. Pure but for reading the token's file.

The token is what counts. Host and Origin keep a browser on the operator's machine from being used against a listener on
loopback: a page of elsewhere names its own origin, and a rebound DNS name its own host.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from urllib.parse import urlsplit

TOKEN_VARIABLE = "KVGATE_ADMIN_TOKEN"  # noqa: S105 - the variable's name

#: Read without a token anywhere: probes and scrapes have none.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/metrics"})

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
        if self.is_loopback and host and not is_loopback_host(_without_port(host)):
            return Decision.FOREIGN_HOST
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return Decision.FOREIGN_ORIGIN
        if not self.token or path in OPEN_PATHS or (self.is_loopback and method in _READING):
            return Decision.ALLOWED
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            return Decision.TOKEN_MISSING
        if not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return Decision.TOKEN_WRONG
        return Decision.ALLOWED


def parse_address(text: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[IPV6]:PORT`` as host and port; port 0 is any free one.

    Raises:
        ValueError: the text is neither.
    """
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        separator = ""
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is no address, expected HOST:PORT, for instance 127.0.0.1:9480 or [::1]:9480")
    return host, int(port)


def is_loopback_host(host: str) -> bool:
    """Whether a host, as written, means this machine only. Names are not resolved: only ``localhost`` is known to."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_token(token_file: str | None, environ: Mapping[str, str]) -> str:
    """The admin token from its file, else from the environment; empty when neither is set.

    Raises:
        ValueError: the file cannot be read, or what it or the variable holds is empty or no single word.
    """
    if token_file:
        try:
            text, source = Path(token_file).read_text("utf-8"), f"token file {token_file}"
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"cannot read token file {token_file}: {error}") from None
    elif TOKEN_VARIABLE in environ:
        text, source = environ[TOKEN_VARIABLE], TOKEN_VARIABLE
    else:
        return ""
    token = text.strip()
    if not token:
        raise ValueError(f"{source} holds no token")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"{source} holds something else than one word of printable ASCII")
    return token


def access_for(address: str, token: str) -> Access:
    """The rule for a control listener at this address.

    Raises:
        ValueError: the address is none, or reaches beyond this machine and no token is set.
    """
    host, _ = parse_address(address)
    is_loopback = is_loopback_host(host)
    if not is_loopback and not token:
        raise ValueError(
            f"the admin API would listen on {address}, which others can reach, without a token: set {TOKEN_VARIABLE} "
            "or a token file, or listen on 127.0.0.1"
        )
    return Access(token=token, is_loopback=is_loopback)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
