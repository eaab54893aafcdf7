"""Who may do what: the decision alone."""

from pathlib import Path

import pytest

from gateway.admin.auth import Access, Decision, access_for
from gateway.config import ConfigError, load

HERE = {"host": "127.0.0.1:9480"}
RIGHT = {"authorization": "Bearer secret"}
OPEN = Access("", is_loopback=True)
LOCKED = Access("secret", is_loopback=True)
REMOTE = Access("secret", is_loopback=False)


@pytest.mark.parametrize(
    ("access", "method", "path", "headers", "decision"),
    [
        (OPEN, "GET", "/v1/state", HERE, Decision.ALLOWED),
        (OPEN, "POST", "/v1/drain", HERE, Decision.ALLOWED),
        (OPEN, "GET", "/v1/state", {}, Decision.ALLOWED),
        (LOCKED, "GET", "/v1/state", HERE, Decision.ALLOWED),
        (LOCKED, "POST", "/v1/drain", HERE, Decision.TOKEN_MISSING),
        (LOCKED, "DELETE", "/v1/engines/e", HERE, Decision.TOKEN_MISSING),
        (LOCKED, "POST", "/v1/drain", HERE | {"authorization": "Bearer secre"}, Decision.TOKEN_WRONG),
        (LOCKED, "POST", "/v1/drain", HERE | {"authorization": "Bearer sécret"}, Decision.TOKEN_WRONG),
        (LOCKED, "POST", "/v1/drain", HERE | {"authorization": "Basic secret"}, Decision.TOKEN_MISSING),
        (LOCKED, "POST", "/v1/drain", HERE | {"authorization": "Bearer "}, Decision.TOKEN_MISSING),
        (LOCKED, "POST", "/v1/drain", HERE | RIGHT, Decision.ALLOWED),
        (LOCKED, "POST", "/v1/drain", HERE | {"authorization": "bearer secret"}, Decision.ALLOWED),
        (REMOTE, "GET", "/v1/state", {"host": "gpu7:9480"}, Decision.TOKEN_MISSING),
        (REMOTE, "GET", "/v1/state", {"host": "gpu7:9480"} | RIGHT, Decision.ALLOWED),
        (REMOTE, "GET", "/v1/openapi.json", {"host": "gpu7:9480"}, Decision.TOKEN_MISSING),
        (REMOTE, "GET", "/metrics", {"host": "gpu7:9480"}, Decision.ALLOWED),
        (REMOTE, "GET", "/livez", {"host": "gpu7:9480"}, Decision.ALLOWED),
        (REMOTE, "GET", "/readyz", {"host": "gpu7:9480"}, Decision.ALLOWED),
        (REMOTE, "GET", "/metrics/", {"host": "gpu7:9480"}, Decision.TOKEN_MISSING),
    ],
)
def test_token(access: Access, method: str, path: str, headers: dict[str, str], decision: Decision) -> None:
    assert access.decide(method, path, headers) is decision


@pytest.mark.parametrize("access", [OPEN, LOCKED])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "http://127.0.0.1:1", "http://evil@127.0.0.1:9480", "http://["]
)
def test_a_foreign_origin_is_refused_even_with_the_token(access: Access, origin: str) -> None:
    assert access.decide("POST", "/v1/drain", HERE | RIGHT | {"origin": origin}) is Decision.FOREIGN_ORIGIN


def test_the_listener_s_own_origin_is_fine() -> None:
    assert OPEN.decide("POST", "/v1/drain", HERE | {"origin": "http://127.0.0.1:9480"}) is Decision.ALLOWED


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9480", "10.0.0.7:9480", "localhost.evil.example"])
def test_a_rebound_name_is_refused_on_loopback(host: str) -> None:
    assert OPEN.decide("GET", "/v1/state", {"host": host}) is Decision.FOREIGN_HOST


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.8.8.8:1", "[::1]:9480", "[::1]"])
def test_loopback_under_any_of_its_names_and_ports_is_fine(host: str) -> None:
    assert OPEN.decide("GET", "/v1/state", {"host": host}) is Decision.ALLOWED


def test_the_rule_follows_address_and_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("from-file\n")
    beyond = load({"admin": "0.0.0.0:0", "admin_token_file": str(token)}, {})
    assert access_for(beyond, {}) == Access("from-file", is_loopback=False)
    assert access_for(load({"admin": "[::1]:0"}, {}), {}) == Access("", is_loopback=True)
    with pytest.raises(ConfigError, match="others can reach"):
        load({"admin": "0.0.0.0:0"}, {})
