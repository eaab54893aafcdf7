"""The description in the repository is the one that is served."""

import asyncio
import json
from pathlib import Path

from gateway.admin.openapi import description

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


def test_the_committed_description_is_up_to_date() -> None:
    assert COMMITTED.read_text() == asyncio.run(description()), "run: make fix"


def test_every_error_is_described_as_a_problem() -> None:
    described = json.loads(COMMITTED.read_text())
    assert "HTTPValidationError" not in described["components"]["schemas"]
    for path, calls in described["paths"].items():
        for method, call in calls.items():
            for status, answer in call["responses"].items():
                if status >= "400":
                    kinds = set(answer["content"])
                    assert kinds == {"application/problem+json"}, f"{method} {path} {status}"
