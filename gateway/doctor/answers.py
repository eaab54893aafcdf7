"""Who answers: by the engines' socket, by the operators' socket, over HTTP.

Owns: checks of reachability, versions, clocks and ports, each with a bound on its time. Must not know: directories.
Nothing is changed. Any thread.
"""

import http.client
import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gateway import __version__
from gateway.client import GatewayClient, GatewayRefused, GatewayUnreachable
from gateway.config import parse_address
from gateway.doctor.finding import Finding, failed, ok, skipped, warning
from gateway.wire.codes import ErrorCode
from gateway.wire.messages import POOL_FORMAT, PROTOCOL_VERSION, SnapshotReply, SnapshotRequest, Welcome

#: The longest a healthy gateway takes, many times over; a hung one costs so much a question.
ANSWER_SECONDS = 1.0
#: The admin process answers within two seconds, always.
HTTP_SECONDS = 2.5
_MAX_CLOCK_SECONDS = 1.0
_SOFTWARE = f"kvgate-doctor/{__version__}"
_NO_DAEMON = "the daemon's lock is not seen held"
_HUNG_STEP = "run kvgate bundle, then end the gateway's process: engines go on without it, and it comes back warm"


@dataclass(frozen=True)
class Greeting:
    """The answer to a HELLO, and our own clock while it was on its way."""

    welcome: Welcome
    asked_at: float
    heard_at: float


def greet(path: Path) -> Greeting:
    """Say HELLO.

    Raises:
        GatewayUnreachable: nobody answered in time; the message says why where it is known.
        GatewayRefused: the versions do not fit.
    """
    with GatewayClient(path, timeout_seconds=ANSWER_SECONDS, software=_SOFTWARE) as client:
        asked_at = time.monotonic()
        welcome = client.hello()
        return Greeting(welcome, asked_at, time.monotonic())


def check_engine_socket(path: Path, *, is_daemon_there: bool, pool_id: bytes | None) -> list[Finding]:
    """HELLO as an engine says it: reachable, of our version, with the pool that lies here, with our clock.

    Args:
        path: of the shared socket.
        is_daemon_there: its lock is held.
        pool_id: of the file beside the socket; None: it could not be read.
    """
    if not is_daemon_there:
        return [skipped(name, _NO_DAEMON) for name in ("socket", "versions", "same_pool", "clock")]
    rest = [skipped(name, "the gateway did not answer") for name in ("same_pool", "clock")]
    try:
        greeting = greet(path)
    except GatewayUnreachable as error:
        found = failed("socket", f"{error}, though a daemon holds its lock", _HUNG_STEP)
        return [found, skipped("versions", "the gateway did not answer"), *rest]
    except GatewayRefused as refusal:
        step = "use versions of kvgate that fit on both sides; gateways are upgraded first"
        if refusal.code is not ErrorCode.INCOMPATIBLE:
            step = "ask again in a moment"
        return [ok("socket", f"{path} answers"), failed("versions", refusal.error.message, step), *rest]
    welcome = greeting.welcome
    return [
        ok("socket", f"{path} answers: {welcome.state}, {welcome.health}"),
        ok("versions", f"both sides speak protocol {PROTOCOL_VERSION} and pool format {POOL_FORMAT}"),
        _same_pool(welcome, pool_id),
        _clock(greeting),
    ]


def check_operator_socket(path: Path, *, is_daemon_there: bool) -> Finding:
    """Whether the core answers operators, and is of this command's version."""
    name = "admin_socket"
    if not is_daemon_there:
        return skipped(name, _NO_DAEMON)
    try:
        with GatewayClient(path, timeout_seconds=ANSWER_SECONDS, software=_SOFTWARE) as client:
            reply = client.request(SnapshotRequest(number=0))
    except (GatewayUnreachable, GatewayRefused) as error:
        return failed(name, f"{error}, though a daemon holds its lock", _HUNG_STEP)
    if not isinstance(reply, SnapshotReply):
        return failed(name, f"it answered with {type(reply).__name__}", "use one version of kvgate on both sides")
    if reply.version != __version__:
        detail = f"the gateway is version {reply.version}, this command {__version__}"
        return warning(name, detail, "use the command line of the gateway's version")
    return ok(name, f"{path} answers: version {reply.version}, {reply.state}, {reply.health}")


def check_admin_api(admin_file: Path, address: str, *, is_daemon_there: bool) -> Finding:
    """Whether the admin API answers; before a start, whether its port is free.

    Args:
        admin_file: where the admin process says where it listens.
        address: HOST:PORT as configured.
        is_daemon_there: its lock is held.
    """
    name = "admin_api"
    if not is_daemon_there:
        return check_port_is_free(name, "admin", address)
    url = admin_url(admin_file)
    if url is None:
        return failed(name, f"{admin_file} does not say where it listens", "look for its words on the gateway's stderr")
    try:
        status, _ = http_get(url, "/livez")
    except OSError as error:
        return failed(name, f"{url} does not answer: {error}", "look for the admin process's words on stderr")
    if status != http.client.OK:
        return failed(name, f"{url}/livez answers {status}", f"look at {url}/readyz?verbose")
    return ok(name, f"{url} answers")


def check_probe(address: str, *, is_daemon_there: bool) -> Finding:
    """Whether the probe listener accepts; before a start, whether its port is free."""
    name = "probe"
    if not is_daemon_there:
        return check_port_is_free(name, "probe", address)
    host, port = parse_address("probe", address)
    try:
        socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        return failed(name, f"{address} does not accept: {error}", "start the gateway with this probe address")
    return ok(name, f"{address} accepts")


def check_port_is_free(name: str, setting: str, address: str) -> Finding:
    """Whether a start could listen on ``address``."""
    host, port = parse_address(setting, address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return failed(name, f"{address} cannot be listened on: {error}", f"free it, or set {setting} to another port")
    return ok(name, f"{address} is free for the next start")


def admin_url(admin_file: Path) -> str | None:
    """Where the admin process says it listens; None: it does not say."""
    try:
        url = json.loads(admin_file.read_text("utf-8"))["url"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return url if isinstance(url, str) and urlsplit(url).scheme == "http" else None


def http_get(url: str, path: str) -> tuple[int, bytes]:
    """Status and body of a GET; no proxy, no redirects, within HTTP_SECONDS between two bytes.

    Raises:
        OSError: no answer, or one that is not HTTP.
    """
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=HTTP_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP answer ({type(error).__name__})") from error
    finally:
        connection.close()


def _same_pool(welcome: Welcome, pool_id: bytes | None) -> Finding:
    name = "same_pool"
    if pool_id is None:
        return skipped(name, "the pool file could not be read")
    if welcome.pool_id != pool_id:
        step = "mount the gateway's directory as a whole: socket and pool must be of one gateway"
        return failed(name, "the gateway that answers has another pool than the file beside its socket", step)
    return ok(name, f"the gateway that answers has this pool, {pool_id.hex()}")


def _clock(greeting: Greeting) -> Finding:
    theirs = greeting.welcome.monotonic
    off = max(greeting.asked_at - theirs, theirs - greeting.heard_at, 0.0)
    if off > _MAX_CLOCK_SECONDS:
        step = "run both in one time namespace: deadlines are told in this clock"
        return failed("clock", f"the gateway's monotonic clock differs from this one by {off:.1f} s", step)
    return ok("clock", "both sides have one monotonic clock")
