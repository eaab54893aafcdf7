"""``kvgate bench``: a table and a document of the same figures; a trace that cannot be read is told by line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli.main import cli

#: Of ten chunks a pool of two finds none, or two for who knows what comes; one of four finds four.
PROMPTS = [[1, 2], [3], [1, 2], [4, 5, 6], [1, 2]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"hash_ids": chunks}) + "\n" for chunks in PROMPTS))
    return path


def bench(*words: str):
    return CliRunner().invoke(cli, ["bench", *words])


def test_the_document_has_each_capacity_with_each_policy_and_the_optimum(trace: Path) -> None:
    done = bench("--trace", str(trace), "--capacity", "2", "--capacity", "100", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {
        "requests": 5,
        "chunks": 10,
        "hit_rates": [
            {"capacity": 2, "by_policy": {"lfu": 0.1, "lru": 0.1}, "optimum": 0.4},
            {"capacity": 100, "by_policy": {"lfu": 0.4, "lru": 0.4}, "optimum": 0.4},
        ],
    }


def test_the_table_has_the_same_figures(trace: Path) -> None:
    lines = bench("--trace", str(trace), "--capacity", "100").output.splitlines()
    assert lines[0].startswith("5 requests, 10 chunks")
    assert [line.split() for line in lines[1:]] == [
        ["capacity", "lfu", "lru", "optimum"],
        ["100", "0.4000", "0.4000", "0.4000"],
    ]


def test_a_trace_that_cannot_be_read_is_told_by_line(trace: Path) -> None:
    trace.write_text("no JSON\n")
    done = bench("--trace", str(trace))
    assert done.exit_code == 1
    assert done.stderr.startswith("kvgate: line 1 is 'no JSON'")
    assert done.stdout == ""


@pytest.mark.parametrize("words", [(), ("--trace", "x", "--capacity", "0")])
def test_wrong_flags_are_usage(words: tuple[str, ...]) -> None:
    assert bench(*words).exit_code == 2
