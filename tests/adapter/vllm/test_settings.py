"""The ``kvgate.…`` settings in vLLM's extra configuration."""

import pytest

from adapter.vllm import settings


def test_defaults() -> None:
    read = settings.read({"kvgate.run_dir": "/run/kvgate"})

    assert read.run_dir == "/run/kvgate"
    assert (read.allow_fail, read.model, read.revision) == (False, None, None)
    assert read.adapter.heartbeat_seconds == 1.0


def test_settings_of_the_adapter_are_passed_on_and_those_of_others_left() -> None:
    read = settings.read({"kvgate.run_dir": "d", "kvgate.engine_name": "node-7", "kvgate.copy_threads": 2, "other": {}})

    assert (read.adapter.engine_name, read.adapter.copy_threads) == ("node-7", 2)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({}, "kvgate.run_dir is missing"),
        ({"kvgate.run_dir": ""}, "kvgate.run_dir is missing"),
        ({"kvgate.run_dir": 3}, "kvgate.run_dir is 3, expected a value of type str"),
        ({"kvgate.run_dir": "d", "kvgate.rundir": "d"}, "kvgate.rundir is not a setting of kvgate; there are"),
        ({"kvgate.run_dir": "d", "kvgate.chunk_tokens": "256"}, "expected a value of type int"),
        ({"kvgate.run_dir": "d", "kvgate.chunk_tokens": True}, "expected a value of type int"),
        ({"kvgate.run_dir": "d", "kvgate.allow_fail": 1}, "expected a value of type bool"),
        ({"kvgate.run_dir": "d", "kvgate.copy_threads": 0}, "copy_threads is 0"),
        ({"kvgate.run_dir": "d", "kvgate.engine_name": "a b"}, "engine_name"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(extra: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        settings.read(extra)


@pytest.mark.parametrize(("block", "chunk"), [(16, 256), (32, 256), (128, 256), (48, 288), (784, 784)])
def test_a_chunk_is_256_tokens_or_the_next_multiple_of_a_block(block: int, chunk: int) -> None:
    assert settings.Settings("d").chunk_tokens_of(block) == chunk


def test_a_chunk_that_was_set_must_fit_the_block() -> None:
    assert settings.Settings("d", chunk_tokens=512).chunk_tokens_of(32) == 512
    for chunk in (100, 0, -256):
        with pytest.raises(ValueError, match="multiple of vLLM's block size 32"):
            settings.Settings("d", chunk_tokens=chunk).chunk_tokens_of(32)
