from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One daemon for the tests of a file; each leaves it ready. Afterwards it has logged no defect."""
    with Daemon() as started:
        yield started.start()
