"""What a gateway opens to the network when nobody asks for anything: one port, on loopback."""

import ipaddress
from pathlib import Path

from gateway.config import GatewayConfig
from tests.support.daemon import Daemon

LISTEN = "0A"


def listeners(pid: int) -> list[str]:
    """Addresses of the TCP and UDP sockets of one process that take in what others send."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text(encoding="ascii").splitlines()[1:] if path.exists() else ():
            (
                _,
                local,
                _,
                state,
                *_,
            ) = line.split()
            if line.split()[9] in inodes and (state == LISTEN or table.startswith("udp")):
                found.append(address_of(local.split(":")[0]))
    return found


def address_of(text: str) -> str:
    """The kernel writes addresses as words of four bytes, each in the machine's order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(b"".join(words)))


def test_by_default_there_is_one_listener_on_loopback() -> None:
    defaults = GatewayConfig()
    assert ipaddress.ip_address(defaults.admin.rpartition(":")[0]).is_loopback
    assert not defaults.probe


def test_only_loopback_is_listened_on() -> None:
    with Daemon({"KVGATE_ADMIN": ""}, ("--admin", "127.0.0.1:0")) as daemon:
        daemon.start()
        assert listeners(daemon.pid) == [], "the core has no network socket"
        everything = [address for pid in daemon.processes() for address in listeners(pid)]
        assert everything == ["127.0.0.1"]
