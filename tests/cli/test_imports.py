"""What a command costs before it does anything: the core process must not carry what only operators need."""

import subprocess
import sys

import pytest

from tests.support.daemon import REPOSITORY

HEAVY = {"fastapi", "starlette", "uvicorn", "pydantic", "httpx", "rich", "torch"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("gateway.cli.main", HEAVY | {"zmq", "msgspec"}),
        ("gateway.cli.serve", HEAVY),
        ("gateway.cli.operate", HEAVY - {"pydantic"}),
        ("gateway.cli.doctor", HEAVY),
        ("adapter.doctor", HEAVY | {"click"}),
        ("gateway.admin.__main__", {"rich", "torch"}),
    ],
)
def test_a_process_imports_what_it_needs(module: str, unwanted: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert unwanted & set(done.stdout.split()) == set()
