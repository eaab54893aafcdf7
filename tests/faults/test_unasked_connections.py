"""Connections on which nobody asks, or stops in the middle, are dropped; who watches for long is not."""

import socket
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest

from gateway.admin.arrival import REQUEST_SECONDS
from tests.support.daemon import Daemon

BEGINNINGS = {
    "nothing": b"",
    "half a head": b"GET /livez HTTP/1.1\r\nHost: ",
    "half a body": b"POST /v1/resume HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 20\r\n\r\n{",
    "half of a second head": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET ",
}
EVENTS = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_who_does_not_ask_is_dropped_and_who_watches_is_not(daemon: Daemon) -> None:
    address = urlsplit(daemon.admin_url)
    with ExitStack() as stack:

        def connected(sent: bytes) -> socket.socket:
            one = stack.enter_context(socket.create_connection((address.hostname, address.port)))
            one.settimeout(4 * REQUEST_SECONDS)
            one.sendall(sent)
            return one

        watcher = connected(EVENTS)
        silent = {name: connected(sent) for name, sent in BEGINNINGS.items()}

        for name, one in silent.items():
            try:
                while one.recv(65536):
                    pass
            except TimeoutError:
                pytest.fail(f"with {name} sent, the connection is held")

        watcher.setblocking(False)
        with suppress(BlockingIOError):  # all that came is read
            while watcher.recv(65536):
                pass
        watcher.settimeout(4 * REQUEST_SECONDS)
        assert b"overview" in watcher.recv(65536)
