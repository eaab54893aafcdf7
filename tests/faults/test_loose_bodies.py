"""JSON values of the wrong type: refused, never guessed at. A guess may cut an engine's work."""

import httpx
import pytest

from gateway.wire.codes import Lifecycle
from tests.support.daemon import Daemon


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/drain", {"deadline_seconds": False}),
        ("/v1/drain", {"deadline_seconds": "0"}),
        ("/v1/drain", {"exit": "no"}),
        ("/v1/drain", {"flush": 1}),
        ("/v1/cache/clear", {"all": "yes"}),
        ("/v1/cache/clear", {"all": True, "dry_run": 0}),
    ],
)
def test_a_value_of_another_type_is_refused(daemon: Daemon, path: str, body: dict[str, object]) -> None:
    reply = httpx.post(f"{daemon.admin_url}{path}", json=body, timeout=10, trust_env=False)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert daemon.snapshot().state is Lifecycle.READY


@pytest.mark.parametrize("body", [b"\x80", b"{", b"[" * 60_000], ids=["not-utf-8", "cut", "deep"])
def test_what_is_no_json_is_refused_as_any_other_wrong_body(daemon: Daemon, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    reply = httpx.post(f"{daemon.admin_url}/v1/drain", content=body, headers=headers, timeout=10, trust_env=False)
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert daemon.snapshot().state is Lifecycle.READY


def test_a_whole_number_is_a_number_of_seconds(daemon: Daemon) -> None:
    with httpx.Client(base_url=daemon.admin_url, timeout=10, trust_env=False) as client:
        assert client.post("/v1/drain", json={"deadline_seconds": 1, "reason": "test"}).status_code == 202
        assert client.post("/v1/resume", json={"reason": "test"}).status_code == 200
