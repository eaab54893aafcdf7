"""What a caller may get wrong about a prompt: an error that says so, and no key that stands for something else."""

import pytest

from adapter import prompts
from adapter.prompts import Prompts

CHUNK = 16
TOKENS = list(range(2 * CHUNK))


@pytest.mark.parametrize("salt", [None, 5, b"salt"])
def test_a_salt_that_is_no_string_is_an_error(salt: object) -> None:
    with pytest.raises(ValueError, match="cache_salt"):
        Prompts(CHUNK).keys("request", TOKENS, salt, None)


@pytest.mark.parametrize("entry", ["text", 5, bytearray(b"image"), memoryview(b"image")])
def test_an_extra_key_that_is_not_bytes_is_an_error(entry: object) -> None:
    known = Prompts(CHUNK)
    before = known.keys("request", TOKENS, "", [b"image", None])
    with pytest.raises(ValueError, match="extra key"):
        known.keys("request", TOKENS, "", [entry, None])
    assert known.keys("request", TOKENS, "", [b"image", None]) == before


def test_keys_after_an_error_are_those_of_the_prompt() -> None:
    known, longer = Prompts(CHUNK), list(range(4 * CHUNK))
    known.keys("request", TOKENS, "", None)
    with pytest.raises(ValueError, match="cache_salt"):
        known.keys("request", longer, None, None)
    assert known.keys("request", longer, "", None) == Prompts(CHUNK).keys("request", longer, "", None)


def test_requests_that_never_end_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_KEPT_PROMPTS", 100)
    known = Prompts(CHUNK)
    for i in range(1000):
        known.keys(f"request {i}", [], "", None)
    assert len(known._prompts) == 100
