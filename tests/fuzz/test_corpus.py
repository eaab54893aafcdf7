"""Every input that fuzzing has kept, again: each once was new ground, or broke something."""

from pathlib import Path

import pytest

from gateway.wire import codec
from tests.fuzz.seeds import LAYOUT
from tests.fuzz.targets import TARGETS
from tests.support.served import Served

CORPUS = Path(__file__).parent / "corpus"


def run_corpus(name: str) -> int:
    """Run a target over what was kept for it; returns how many inputs that were."""
    inputs = sorted((CORPUS / name).iterdir())
    for path in inputs:
        try:
            TARGETS[name](path.read_bytes())
        except BaseException as error:
            error.add_note(f"the input is tests/fuzz/corpus/{name}/{path.name}")
            raise
    return len(inputs)


@pytest.mark.parametrize("name", TARGETS)
def test_a_kept_input_breaks_nothing(name: str) -> None:
    assert run_corpus(name) > 5


def test_a_reader_that_lets_an_untyped_error_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def loose(frame: bytes) -> object:
        if frame.endswith(b"\xff"):
            raise IndexError("a frame that ends in 255")
        return real(frame)

    real = codec.decode_request
    monkeypatch.setattr(codec, "decode_request", loose)

    with pytest.raises(IndexError, match="255"):
        TARGETS["wire_request"](b"\x81\xff")


def test_a_start_that_believes_a_header_out_of_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.pool.scan._is_in_place", lambda rows, used, layout: rows["extent"] > 0)

    with pytest.raises((AssertionError, ValueError)):
        run_corpus("pool")


def test_the_fuzzed_pool_has_the_layout_that_the_seeds_assume(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.close()

    assert served.pool.layout == LAYOUT
