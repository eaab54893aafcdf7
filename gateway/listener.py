"""Opening a TCP listener that a setting asks for, or saying why it cannot be had.

Owns: that sentence, in the setting's own words. Must not know: what is served. Any thread.
"""

import errno
import os
import socket

from gateway.config import parse_address

_BACKLOG = 128


class ListenError(Exception):
    """The address cannot be listened on; the message names setting, address and what would help.

    Attributes:
        is_taken: another process listens on it, which may be over soon.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.is_taken = number == errno.EADDRINUSE


def listen(setting: str, address: str) -> socket.socket:
    """A listening socket, the caller's to close.

    Args:
        setting: that holds the address.
        address: HOST:PORT; port 0 takes a free one.

    Raises:
        ListenError: see there.
    """
    host, port = parse_address(setting, address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except UnicodeError:
        number = socket.EAI_NONAME
    except OSError as error:
        number = error.errno or 0
    reason = _reason(number, host, port)
    next_step = f"set {setting} (--{setting}, KVGATE_{setting.upper()}) to another HOST:PORT"
    raise ListenError(f"cannot listen on the {setting} address {address}: {reason}; {next_step}", number)


def _reason(number: int, host: str, port: int) -> str:
    """What the system's number means here; those of names (EAI) are negative."""
    if number < 0:
        return f"there is no host {host}"
    match number:
        case errno.EADDRINUSE:
            return f"another process listens on port {port}"
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine"
        case errno.EACCES:
            return f"this process may not take port {port}"
        case _:
            return os.strerror(number)
