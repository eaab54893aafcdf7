"""The admin API over HTTP, from a real admin process; the core is a double that says what a test needs."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http import HTTPStatus

import httpx
import pytest

from gateway.admin import views
from gateway.wire import messages
from gateway.wire.codes import DrainOutcome, ErrorCode, Health, Lifecycle, OutcomeKind
from gateway.wire.messages import Clear, Cleared, Done, Drained, Fence, Ping, Pong, Resume, SnapshotRequest
from tests.support import core_double
from tests.support.core_double import CoreDouble, check, snapshot, transfer
from tests.support.poll import until

#: Answers come within two seconds whatever the core does; the rest is for a busy machine.
BOUND_SECONDS = 5.0


def problem(answer: httpx.Response, status: int, code: str) -> dict:
    """The answer as a problem document of that status and code."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == status
    assert document["title"] == HTTPStatus(status).phrase
    assert document["code"] == code
    assert document["type"] == f"urn:kvgate:problem:{code}"
    assert document["detail"]
    return document


# -- probes ------------------------------------------------------------------------------------------------------------


def test_a_healthy_gateway_is_alive_and_ready(api: httpx.Client, core: CoreDouble) -> None:
    assert api.get("/livez").json() == {"alive": True}
    assert api.get("/readyz").json() == {"ready": True}
    assert core.asked(Ping), "readiness asks through the data plane"
    verbose = api.get("/readyz?verbose").json()
    assert [c["name"] for c in verbose["checks"]] == ["loop", "reaper", "pool", "admin"]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"state": Lifecycle.DRAINING, "ready": False}, ["state"]),
        ({"state": Lifecycle.STARTING, "ready": False}, ["state"]),
        ({"health": Health.UNHEALTHY, "ready": False, "checks": (check("pool", ok=False, reason="gone"),)}, ["pool"]),
    ],
)
def test_readiness_names_what_fails(api: httpx.Client, core: CoreDouble, changes: dict, names: list[str]) -> None:
    core.says(SnapshotRequest, snapshot(**changes))
    document = problem(api.get("/readyz"), 503, "not_ready")
    assert [failing["name"] for failing in document["failing"]] == names
    assert all(failing["reason"] for failing in document["failing"])
    assert all(name in document["detail"] for name in names)


def test_verbose_lists_every_check_also_when_one_fails(api: httpx.Client, core: CoreDouble) -> None:
    checks = (check("loop"), check("pool", ok=False, reason="gone"), check("admin", critical=False))
    core.says(SnapshotRequest, snapshot(health=Health.UNHEALTHY, ready=False, checks=checks))
    document = problem(api.get("/readyz?verbose"), 503, "not_ready")
    assert [(c["name"], c["ok"], c["reason"]) for c in document["checks"]] == [
        ("loop", True, ""),
        ("pool", False, "gone"),
        ("admin", True, ""),
    ]
    assert "checks" not in api.get("/readyz").json()


def test_a_wedged_data_plane_is_not_ready_though_the_core_says_so(api: httpx.Client, core: CoreDouble) -> None:
    core.hears_engines = False
    document = problem(api.get("/readyz"), 503, "not_ready")
    assert [failing["name"] for failing in document["failing"]] == ["data_plane"]
    assert api.get("/livez").status_code == 200


def test_the_data_plane_s_refusal_is_told(api: httpx.Client, core: CoreDouble) -> None:
    core.refuses(Ping, ErrorCode.INTERNAL, "the tables are broken")
    failing = problem(api.get("/readyz"), 503, "not_ready")["failing"]
    assert failing[0]["name"] == "data_plane"
    assert "the tables are broken" in failing[0]["reason"]


@pytest.mark.parametrize("state", [Lifecycle.STARTING, Lifecycle.DRAINING, Lifecycle.DRAINED])
def test_alive_while_not_ready(api: httpx.Client, core: CoreDouble, state: Lifecycle) -> None:
    core.says(SnapshotRequest, snapshot(state=state, ready=False, checks=(check("pool", ok=False),)))
    assert api.get("/livez").status_code == 200


@pytest.mark.parametrize("name", ["loop", "reaper"])
def test_a_stale_loop_or_reaper_is_not_alive(api: httpx.Client, core: CoreDouble, name: str) -> None:
    core.says(SnapshotRequest, snapshot(checks=(check(name, ok=False, reason="stale"),)))
    assert problem(api.get("/livez"), 503, "not_alive")["failing"] == [{"name": name, "reason": "stale"}]


def test_a_hung_core_leaves_probes_and_scrapes_answering(api: httpx.Client, core: CoreDouble) -> None:
    core.hears_admin = core.hears_engines = False
    paths = ["/livez", "/readyz", "/metrics", "/v1/state", "/v1/drain?wait_seconds=60"] * 4

    def timed(path: str) -> tuple[httpx.Response, float]:
        began = time.monotonic()
        return api.get(path), time.monotonic() - began

    with ThreadPoolExecutor(len(paths)) as threads:
        answers = list(zip(paths, threads.map(timed, paths), strict=True))
    for path, (answer, seconds) in answers:
        assert seconds < BOUND_SECONDS, path
        if path == "/metrics":
            assert answer.status_code == 200
            assert "kvgate_scrape_success 0.0" in answer.text
            assert "kvgate_state" not in answer.text
        else:
            assert answer.status_code == 503, path
            assert answer.headers["content-type"] == "application/problem+json"
    problem(api.get("/v1/state"), 503, "unreachable")

    core.reset()
    assert api.get("/readyz").status_code == 200
    assert "kvgate_scrape_success 1.0" in api.get("/metrics").text


def test_clients_that_stop_half_way_hold_up_nobody(api: httpx.Client) -> None:
    address = (api.base_url.host, api.base_url.port)
    head = b"POST /v1/drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
    with ExitStack() as stack:
        for sent in (b"", head, head + b"\r\n{") * 3:
            stack.enter_context(socket.create_connection(address)).sendall(sent)
        began = time.monotonic()
        assert api.get("/livez").status_code == 200
        assert api.get("/metrics").status_code == 200
        assert time.monotonic() - began < BOUND_SECONDS


def test_metrics_are_prometheus_text(api: httpx.Client) -> None:
    answer = api.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'kvgate_engine_pending_stores{engine="e1",model="m"} 2.0' in answer.text
    assert 'kvgate_process_threads{process="admin"}' in answer.text
    assert 'kvgate_process_threads{process="core"}' not in answer.text, "this admin process is no core's child"


def test_many_who_ask_at_once_cost_the_core_few_snapshots(api: httpx.Client, core: CoreDouble) -> None:
    paths = ["/livez", "/metrics", "/v1/state", "/v1/engines"] * 25
    began = time.monotonic()
    with ThreadPoolExecutor(20) as threads:
        statuses = list(threads.map(lambda path: api.get(path).status_code, paths))
    seconds = time.monotonic() - began
    assert statuses == [200] * len(paths)
    assert len(core.asked(SnapshotRequest)) <= 2 + seconds / 0.05


def test_a_snapshot_is_never_older_than_the_question(api: httpx.Client, core: CoreDouble) -> None:
    for number in range(10):
        core.says(SnapshotRequest, snapshot(run_dir=f"/run/{number}"))
        assert api.get("/v1/state").json()["run_dir"] == f"/run/{number}"


# -- gateway -----------------------------------------------------------------------------------------------------------


def test_the_state_document(api: httpx.Client, core: CoreDouble) -> None:
    taken = snapshot(drain=core_double.drain())
    core.says(SnapshotRequest, taken)
    assert api.get("/v1/state").json() == views.state_of(taken).model_dump(mode="json")


def test_a_drain_is_asked_for_as_given(api: httpx.Client, core: CoreDouble) -> None:
    core.says(messages.Drain, Drained(number=0, boot=b"", already=False, drain=core_double.drain()))
    body = {"deadline_seconds": 2.5, "reason": "kernel update", "flush": True, "exit": True}
    answer = api.post("/v1/drain", json=body, headers={"X-Requested-By": "ops"})
    assert answer.status_code == 202
    assert answer.json()["id"] == "d1"
    (asked,) = core.asked(messages.Drain)
    assert (asked.deadline_seconds, asked.reason, asked.flush, asked.exit) == (2.5, "kernel update", True, True)
    assert (asked.requested_by, asked.engine) == ("ops", "")
    assert asked.peer.startswith("127.0.0.1:")


def test_a_drain_needs_no_body_and_says_when_it_was_drained_already(api: httpx.Client, core: CoreDouble) -> None:
    core.says(messages.Drain, Drained(number=0, boot=b"", already=True, drain=core_double.drain()))
    assert api.post("/v1/drain").status_code == 200
    (asked,) = core.asked(messages.Drain)
    assert (asked.deadline_seconds, asked.reason, asked.flush, asked.exit) == (None, "", False, False)


@pytest.mark.parametrize(
    "body",
    [
        '{"deadline_second": 5}',
        '{"deadline_seconds": -1}',
        '{"deadline_seconds": 86401}',
        '{"deadline_seconds": NaN}',
        '{"deadline_seconds": Infinity}',
        '{"deadline_seconds": "soon"}',
        '{"exit": 7}',
        '{"reason": "\\ud800"}',
        '{"reason": "' + 501 * "x" + '"}',
        "[]",
        "{",
    ],
)
def test_a_body_that_makes_no_sense_is_refused_and_nothing_asked(
    api: httpx.Client, core: CoreDouble, body: str
) -> None:
    answer = api.post("/v1/drain", content=body, headers={"content-type": "application/json"})
    document = problem(answer, 422, "invalid")
    assert document["errors"][0]["field"].startswith("body")
    assert core.asked(messages.Drain) == []


def test_a_wait_ends_early_when_drained(api: httpx.Client, core: CoreDouble) -> None:
    core.says(SnapshotRequest, snapshot(state=Lifecycle.DRAINING, drain=core_double.drain()))
    over = core_double.drain(state=Lifecycle.DRAINED, finished_at=9.0, outcome=DrainOutcome.COMPLETED)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(api.get, "/v1/drain?wait_seconds=60")
        until(lambda: len(core.asked(SnapshotRequest)) > 1, what="the wait asks again")
        assert not waiting.done()
        core.says(SnapshotRequest, snapshot(state=Lifecycle.DRAINED, drain=over))
        answer = waiting.result(timeout=20)
    assert answer.json()["outcome"] == "completed"


def test_a_wait_ends_with_the_drain_still_under_way(api: httpx.Client, core: CoreDouble) -> None:
    core.says(SnapshotRequest, snapshot(state=Lifecycle.DRAINING, drain=core_double.drain()))
    assert api.get("/v1/drain?wait_seconds=0.2").json()["state"] == "draining"


def test_before_the_first_drain_there_is_none(api: httpx.Client) -> None:
    answer = api.get("/v1/drain?wait_seconds=60")
    assert (answer.status_code, answer.json()) == (200, None)


@pytest.mark.parametrize("wait", ["-1", "301", "nan", "inf", "x"])
def test_a_wait_out_of_range_is_refused(api: httpx.Client, wait: str) -> None:
    problem(api.get("/v1/drain", params={"wait_seconds": wait}), 422, "invalid")


def test_resume(api: httpx.Client, core: CoreDouble) -> None:
    core.says(Resume, Done(number=0, boot=b""))
    assert api.post("/v1/resume", json={"reason": "done"}).json()["state"] == "ready"
    (asked,) = core.asked(Resume)
    assert (asked.reason, asked.engine, asked.requested_by) == ("done", "", "api")


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_refusal_of_the_core_has_a_status(api: httpx.Client, core: CoreDouble, code: ErrorCode) -> None:
    core.refuses(Resume, code, "because", retry_after_ms=1500)
    answer = api.post("/v1/resume")
    document = problem(answer, answer.status_code, code)
    assert 400 <= answer.status_code < 600
    assert document["detail"] == "because"
    assert document["retry_after_seconds"] == 1.5
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize(
    ("code", "status"), [(ErrorCode.CONFLICT, 409), (ErrorCode.INVALID, 422), (ErrorCode.STARTING, 503)]
)
def test_what_the_lifecycle_refuses(api: httpx.Client, core: CoreDouble, code: ErrorCode, status: int) -> None:
    core.refuses(messages.Drain, code)
    problem(api.post("/v1/drain"), status, code)


# -- engines -----------------------------------------------------------------------------------------------------------


def test_an_engine_that_left_is_gone_in_every_document(api: httpx.Client, core: CoreDouble) -> None:
    drained = core_double.engine("b", parties=(), state=Lifecycle.DRAINED)
    core.says(
        SnapshotRequest, snapshot(engines=(core_double.engine("a", parties=()), drained, core_double.engine("c")))
    )
    expected = {"a": "gone", "b": "drained", "c": "ready"}
    assert {e["name"]: e["state"] for e in api.get("/v1/engines").json()["engines"]} == expected
    assert {e["name"]: e["state"] for e in api.get("/v1/state").json()["engines"]} == expected
    assert {name: api.get(f"/v1/engines/{name}").json()["state"] for name in expected} == expected


def test_engines(api: httpx.Client, core: CoreDouble) -> None:
    taken = snapshot(engines=(core_double.engine("b"), core_double.engine("a")))
    core.says(SnapshotRequest, taken)
    assert api.get("/v1/engines").json() == views.engines_of(taken).model_dump(mode="json")
    assert api.get("/v1/engines/b").json()["name"] == "b"


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/drain"), ("POST", "/resume"), ("DELETE", "")])
def test_an_unknown_engine_is_404_and_nothing_asked(
    api: httpx.Client, core: CoreDouble, method: str, path: str
) -> None:
    document = problem(api.request(method, f"/v1/engines/nobody{path}"), 404, "unknown_engine")
    assert "nobody" in document["detail"]
    assert all(core.asked(change) == [] for change in (messages.Drain, Resume, Fence))


def test_one_engine_is_drained_resumed_and_removed(api: httpx.Client, core: CoreDouble) -> None:
    core.says(messages.Drain, Drained(number=0, boot=b"", already=False))
    for request in (Resume, Fence):
        core.says(request, Done(number=0, boot=b""))
    assert api.post("/v1/engines/e1/drain", json={"deadline_seconds": 0}).status_code == 202
    core.says(messages.Drain, Drained(number=0, boot=b"", already=True))
    assert api.post("/v1/engines/e1/drain").status_code == 200
    assert api.post("/v1/engines/e1/resume").json()["name"] == "e1"
    removed = api.delete("/v1/engines/e1")
    assert (removed.status_code, removed.content) == (204, b"")
    assert [m.engine for m in core.received if not isinstance(m, SnapshotRequest | Ping)] == ["e1"] * 4
    assert core.asked(messages.Drain)[0].deadline_seconds == 0
    problem(api.post("/v1/engines/e1/drain", json={"exit": True}), 422, "invalid")


# -- transfers and cache -----------------------------------------------------------------------------------------------


def test_transfers_tell_the_story_of_a_request(api: httpx.Client, core: CoreDouble) -> None:
    story = snapshot(transfers=(transfer(1, outcome=OutcomeKind.STORED), transfer(2), transfer(3, "r2")))
    core.answers[SnapshotRequest] = lambda request: story if request.transfers else snapshot()
    assert [t["number"] for t in api.get("/v1/transfers").json()["transfers"]] == [2, 3, 1]
    found = api.get("/v1/transfers", params={"request": "r1", "state": "settled"}).json()["transfers"]
    assert [(t["number"], t["outcome"]) for t in found] == [(1, "stored")]
    problem(api.get("/v1/transfers?state=lost"), 422, "invalid")


def test_the_cache(api: httpx.Client) -> None:
    assert api.get("/v1/cache").json() == views.cache_of(snapshot()).model_dump(mode="json")


def test_a_clear_is_asked_for_as_given(api: httpx.Client, core: CoreDouble) -> None:
    core.says(Clear, Cleared(number=0, boot=b"", chunks=3, bytes=3072, held_chunks=1))
    answer = api.post("/v1/cache/clear", json={"model": "m", "reason": "new weights", "dry_run": True})
    assert answer.json() == {"dry_run": True, "chunks": 3, "bytes": 3072, "held_chunks": 1}
    (asked,) = core.asked(Clear)
    assert (asked.model, asked.namespace, asked.all, asked.dry_run) == ("m", "", False, True)


@pytest.mark.parametrize("body", [None, {}, {"dry_run": True}, {"all": True, "model": "m"}, {"namespace": "AB"}])
def test_a_clear_of_nothing_named_is_refused(api: httpx.Client, core: CoreDouble, body: dict | None) -> None:
    problem(api.post("/v1/cache/clear", json=body), 422, "invalid")
    assert core.asked(Clear) == []


def test_a_clear_of_what_nobody_knows_is_404(api: httpx.Client, core: CoreDouble) -> None:
    core.refuses(Clear, ErrorCode.NOT_FOUND, "there is no model 'typo'; known are: m")
    document = problem(api.post("/v1/cache/clear", json={"model": "typo"}), 404, "not_found")
    assert document["detail"].endswith("known are: m")


# -- the shape of errors -----------------------------------------------------------------------------------------------


def test_what_does_not_exist(api: httpx.Client) -> None:
    for path in ("/docs", "/redoc", "/openapi.json", "/v1", "/v1/state/", "/v1/pins", "/v1/config"):
        problem(api.get(path), 404, "not_found")
    refused = api.delete("/v1/state")
    problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "GET"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("DELETE", "/v1/drain", "GET, POST"), ("PATCH", "/v1/engines/e1", "DELETE, GET"), ("POST", "/livez", "GET")],
)
def test_a_wrong_method_is_told_every_right_one(api: httpx.Client, method: str, path: str, allowed: str) -> None:
    refused = api.request(method, path)
    problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == allowed


def test_a_body_must_be_json_and_small(api: httpx.Client, core: CoreDouble) -> None:
    problem(api.post("/v1/drain", content="{}"), 415, "media_type")
    problem(api.post("/v1/drain", data={"reason": "x"}), 415, "media_type")
    kind = {"content-type": "application/json"}
    problem(api.post("/v1/drain", content=b" " * 70_000, headers=kind), 413, "too_large")
    chunked = api.post("/v1/drain", content=iter([b" " * 40_000] * 2), headers=kind)
    problem(chunked, 413, "request_entity_too_large")
    deep = api.post("/v1/drain", content=b"[" * 60_000, headers=kind)
    assert deep.status_code in (400, 422)
    assert core.asked(messages.Drain) == []


def test_a_foreign_page_changes_nothing(api: httpx.Client, core: CoreDouble) -> None:
    problem(api.post("/v1/drain", headers={"origin": "http://evil.example"}), 403, "foreign_origin")
    problem(api.post("/v1/drain", headers={"host": "evil.example"}), 403, "foreign_host")
    assert core.asked(messages.Drain) == []


def test_an_answer_of_another_kind_is_no_answer(api: httpx.Client, core: CoreDouble) -> None:
    core.says(messages.Drain, Done(number=0, boot=b""))
    problem(api.post("/v1/drain"), 502, "unexpected_reply")
    core.says(SnapshotRequest, Pong(number=0, boot=b"", state=Lifecycle.READY, health=Health.HEALTHY, known=False))
    problem(api.get("/v1/state"), 503, "unreachable")
