"""Names and identifiers that look alike when they are put one after another: none may stand for another's cache."""

import itertools

import pytest

from adapter import CacheIdentity
from gateway.wire.keys import chunk_chain, root_key, token_bytes
from tests.support.engine import CHUNK_TOKENS, tokens

#: The last two, with "a" and "", are the same row of fields twice where no length stands before a name or a value.
ODD = [
    "a",
    "a@b",
    "b",
    "@",
    "/",
    "a/b",
    "%40",
    "a%40b",
    " ",
    "a b",
    "é",
    "e\u0301",
    "\0",
    "model" * 60,
    "salt@a",
    "",
    "arevisionsb",
    "brevisions",
]


class Plain:
    """A geometry of which only this is asked."""

    layout = "NHD"

    def block_shapes(self) -> list[tuple[int, int]]:
        return [(2, 512)]


def test_model_revision_and_fingerprint_do_not_run_into_each_other() -> None:
    identities = [
        CacheIdentity(model=model, revision=revision, fingerprint=fingerprint)
        for model, revision, fingerprint in itertools.product(filter(None, ODD), ODD, ["", "a", "@", "b"])
    ]
    assert len({identity.namespace(Plain()) for identity in identities}) == len(identities)  # type: ignore[arg-type]


def test_salts_and_extra_keys_do_not_run_into_each_other() -> None:
    one_chunk = token_bytes(tokens(1))
    extras = [None, b"", *(text.encode() for text in ODD if text)]
    keys = [chunk_chain(root_key(salt), one_chunk, CHUNK_TOKENS, [extra])[0] for salt in ODD for extra in extras]
    assert len(set(keys)) == len(keys)
    assert root_key("") == root_key()
    assert root_key("ab", b"c") != root_key("a", b"bc")


def test_thousands_of_identifiers_make_as_many_keys() -> None:
    one_chunk, root = token_bytes(tokens(1)), root_key()
    extras = [number.to_bytes(8, "little") for number in range(5000)]
    assert len({chunk_chain(root, one_chunk, CHUNK_TOKENS, [extra])[0] for extra in extras}) == 5000


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_prompt_that_shares_only_its_tail_shares_no_key(changed: int) -> None:
    prompt = tokens(4)
    other = [*prompt]
    other[changed * CHUNK_TOKENS] ^= 1
    mine, theirs = (chunk_chain(root_key(), token_bytes(ids), CHUNK_TOKENS) for ids in (prompt, other))
    assert mine[:changed] == theirs[:changed]
    assert not set(mine[changed:]) & set(theirs[changed:])
