"""The API does what its committed description says: requests made from it find no server error and no other answer.

Requests go to a real daemon with an engine. What would end the daemon (a drain with ``exit``) or wait for long is made
tame; the stream of events has no end and is tested elsewhere.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.admin_process import AdminProcess
from tests.support.core_double import CoreDouble
from tests.support.daemon import Daemon
from tests.support.party import RawParty

DESCRIPTION = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 12  # a call and a kind of request

SCHEMA = schemathesis.openapi.from_path(DESCRIPTION)
CALLS = {call.label: call for found in SCHEMA.get_all_operations() if (call := found.ok()).label != "GET /v1/events"}
CHANGES = [
    (method.upper(), path)
    for path, calls in json.loads(DESCRIPTION.read_text())["paths"].items()
    for method in calls
    if method != "get"
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Daemon() as daemon, RawParty(daemon.start().run_dir).register():
        yield daemon.admin_url


@pytest.mark.parametrize(
    ("label", "mode"),
    [(label, GenerationMode.POSITIVE) for label in CALLS]
    + [(label, GenerationMode.NEGATIVE) for label, call in CALLS.items() if len(call.query) or len(call.body)],
)
def test_every_answer_is_one_that_is_described(url: str, label: str, mode: GenerationMode) -> None:
    call = CALLS[label]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=call.as_strategy(generation_mode=mode))
    def ask(case: Case) -> None:
        _tame(case)
        answer = case.call(base_url=url, timeout=20)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text  # 503: it does not serve just now
        case.validate_response(answer, checks=CHECKS)

    ask()


def _tame(case: Case) -> None:
    """Nothing that ends the daemon or waits; of names of engines some that there are."""
    if isinstance(case.body, dict) and case.body.get("exit") is True:
        case.body["exit"] = False
    if "wait_seconds" in (case.query or {}) and str(case.query["wait_seconds"]).replace(".", "").isdigit():
        case.query["wait_seconds"] = 0.1
    name = (case.path_parameters or {}).get("name")
    if name is not None and len(str(name)) % 2:
        case.path_parameters["name"] = "engine-a"


def test_what_changes_something_is_described() -> None:
    assert len(CHANGES) >= 6


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, CoreDouble]]:
    with (
        CoreDouble(tmp_path_factory.mktemp("core")) as core,
        AdminProcess(core.run_dir, settings={"KVGATE_ADMIN_TOKEN": "secret"}) as admin,
        admin.client() as api,
    ):
        yield api, core


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_no_change_without_the_token_or_from_another_origin(
    locked: tuple[httpx.Client, CoreDouble], method: str, path: str
) -> None:
    api, core = locked
    target = path.format(name="e1", scope="engine")
    right = {"Authorization": "Bearer secret"}
    for headers, status, code in (
        ({}, 401, "token_missing"),
        ({"Authorization": "Bearer other"}, 401, "token_wrong"),
        (right | {"Origin": "http://elsewhere.example"}, 403, "foreign_origin"),
        (right | {"Origin": "null"}, 403, "foreign_origin"),
    ):
        answer = api.request(method, target, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    changes = [message for message in core.received if type(message).__name__ not in ("SnapshotRequest", "Ping")]
    assert changes == []
