from collections.abc import Iterator

import pytest

from tests.support.daemon import Daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A daemon that is ready; afterwards nothing of it may be left."""
    with Daemon() as started:
        yield started.start()
