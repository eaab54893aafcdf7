import random

import pytest

from adapter import prompts
from adapter.prompts import Prompts
from gateway.wire.keys import chunk_chain, root_key, token_bytes

CHUNK = 16


def reference(tokens: list[int], salt: str = "", extra: list[bytes | None] | None = None) -> list[bytes]:
    return chunk_chain(root_key(salt), token_bytes(tokens), CHUNK, extra)


def test_keys_grow_with_the_prompt_and_are_those_of_hashing_all_of_it() -> None:
    source = random.Random(1)
    tokens = [source.randrange(2**32) for _ in range(200)]
    known = Prompts(CHUNK)
    for length in (0, 15, 16, 40, 48, 200, 100, 199):
        assert known.keys("r", tokens[:length], "", None) == reference(tokens[:length])


def test_the_callers_list_may_grow_and_change_in_place() -> None:
    known = Prompts(CHUNK)
    tokens = list(range(1000, 1040))
    for _ in range(3):
        assert known.keys("r", tokens, "", None) == reference(tokens)
        tokens.extend(range(5000, 5037))
    tokens[3] = 7
    assert known.keys("r", tokens, "", None) == reference(tokens)
    assert known.keys("r", tuple(tokens), "", None) == reference(tokens)
    again = [int(str(token)) for token in tokens]  # equal, and other objects
    assert known.keys("r", again, "", None) == reference(tokens)


def test_a_bad_token_at_the_end_changes_nothing() -> None:
    known = Prompts(CHUNK)
    tokens = list(range(40))
    known.keys("r", tokens, "", None)
    with pytest.raises(ValueError, match="token ids"):
        known.keys("r", [*tokens, -1], "", None)
    assert known.keys("r", tokens + tokens, "", None) == reference(tokens + tokens)


def test_one_request_id_with_other_tokens_is_hashed_anew() -> None:
    known = Prompts(CHUNK)
    known.keys("r", list(range(64)), "", None)
    changed = [*range(16), 999, *range(17, 64)]
    assert known.keys("r", changed, "", None) == reference(changed)


def test_another_salt_or_extra_key_is_hashed_anew() -> None:
    known = Prompts(CHUNK)
    tokens = list(range(48))
    plain = known.keys("r", tokens, "", None)
    salted = known.keys("r", tokens, "tenant", None)
    assert salted == reference(tokens, "tenant")
    extra = [None, b"image", None]
    with_image = known.keys("r", tokens, "", extra)
    assert with_image == reference(tokens, "", extra)
    assert with_image[0] == plain[0]
    assert len({plain[1], salted[1], with_image[1]}) == 3
    assert with_image[2] != plain[2], "what follows another chunk is another chunk"
    longer = [*extra, b"lora"]
    assert known.keys("r", list(range(64)), "", longer) == reference(list(range(64)), "", longer)


def test_extra_keys_must_be_one_a_full_chunk() -> None:
    known = Prompts(CHUNK)
    with pytest.raises(ValueError, match="2 full chunks"):
        known.keys("r", list(range(33)), "", [b"x"])


@pytest.mark.parametrize("bad", [[-1], [2**32], ["x"], [1.5]])
def test_token_ids_must_be_unsigned_32_bit(bad: list[object]) -> None:
    with pytest.raises(ValueError, match="token ids"):
        Prompts(CHUNK).keys("r", bad, "", None)


def test_the_caller_may_change_what_it_got() -> None:
    known = Prompts(CHUNK)
    tokens = list(range(32))
    known.keys("r", tokens, "", None).clear()
    assert known.keys("r", tokens, "", None) == reference(tokens)


def test_reset_changes_every_key() -> None:
    known = Prompts(CHUNK)
    before = known.keys("r", list(range(32)), "", None)
    known.reset(b"nonce")
    assert not set(before) & set(known.keys("r", list(range(32)), "", None))


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_KEPT_BYTES", 3072)
    known = Prompts(CHUNK)
    for i in range(50):
        known.keys(f"r{i}", list(range(64)), "", None)
    assert len(known._prompts) == 4
    assert known._kept_bytes == 3072
    for i in range(50):
        known.forget(f"r{i}")
    assert known._kept_bytes == 0
