"""Where an adapter's admin server may listen, and who may use it there.

Owns: reading ``AdapterConfig.admin`` and the token. Must not know: sockets. Any thread.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from gateway.config import is_loopback, parse_address

UNIX = "unix"
TOKEN_VARIABLE = "KVGATE_ADMIN_TOKEN"  # noqa: S105 - the variable's name


@dataclass(frozen=True)
class Address:
    """HOST and port to listen on; ``host`` empty: a Unix socket in a private directory.

    Attributes:
        token: what changes need, and reads too where others can reach the listener; empty: none is set. Who can open a
            Unix socket in a private directory is its owner: there it is not asked for.
    """

    host: str
    port: int
    token: str

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket."""
        return not self.host

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.is_unix or is_loopback(self.host)


def check(text: str) -> None:
    """Check the text of a setting.

    Raises:
        ValueError: neither ``unix`` nor HOST:PORT.
    """
    if text != UNIX:
        parse_address("admin", text)


def resolve(text: str, token_file: str | None) -> Address:
    """The address with its token, from the file or from the environment.

    Raises:
        ValueError: the token cannot be read, or others could reach the listener and there is none.
    """
    if text == UNIX:
        return Address(host="", port=0, token="")
    host, port = parse_address("admin", text)
    token = os.environ.get(TOKEN_VARIABLE, "").strip() if token_file is None else _read(token_file)
    address = Address(host, port, token)
    if not token and not address.is_loopback:
        raise ValueError(
            f"admin is {text}, which others can reach, and no token is set: set admin_token_file or {TOKEN_VARIABLE}, "
            "or listen on 127.0.0.1"
        )
    return address


def _read(token_file: str) -> str:
    try:
        token = Path(token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"admin_token_file {token_file} cannot be read: {error}") from None
    if not token:
        raise ValueError(f"admin_token_file {token_file} is empty, expected a token")
    return token
