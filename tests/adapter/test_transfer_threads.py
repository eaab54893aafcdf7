import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.actions import CopyChunk
from adapter.transfer.copier import CopyThreads
from adapter.transfer.events import EventWatcher
from adapter.transfer.prefault import Prefault
from gateway.pool.mapping import PoolMapping
from tests.adapter.scripted import ScriptedGateway
from tests.support.events import EventCounter, FakeEvent
from tests.support.poll import until


class Watched:
    """A watcher and what it told."""

    def __init__(self) -> None:
        self.ended: list[tuple[list[int], bool]] = []
        self.watcher = EventWatcher(lambda numbers, fired: self.ended.append((list(numbers), fired)), "test-events")
        self.watcher.start()


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.watcher.close()
    made.watcher.join(5)
    assert not made.watcher._thread.is_alive()


def test_an_event_is_told_when_it_fires_for_all_that_wait(watched: Watched) -> None:
    event = FakeEvent()
    watched.watcher.watch(1, event)
    watched.watcher.watch(2, event)
    assert watched.ended == []
    event.fire()
    until(lambda: watched.ended, what="the event was told")
    assert watched.ended == [([1, 2], True)]


def test_an_event_that_raises_is_told_as_failed(watched: Watched) -> None:
    watched.watcher.watch(7, FakeEvent(error=RuntimeError("device lost")))
    until(lambda: watched.ended == [([7], False)], what="the fault was told")


def test_a_forgotten_event_is_not_told_and_not_kept(watched: Watched) -> None:
    counter = EventCounter()
    event = counter.make()
    other = FakeEvent()
    watched.watcher.watch(1, event)
    watched.watcher.watch(2, other)
    watched.watcher.forget(event)
    event.fire()
    del event
    until(lambda: gc.collect() >= 0 and counter.live == 0, what="the event was dropped")
    other.fire()
    until(lambda: watched.ended, what="the other was told")
    assert watched.ended == [([2], True)]


def test_a_query_that_does_not_return_holds_nobody_up(watched: Watched) -> None:
    class Stuck(FakeEvent):
        def __init__(self) -> None:
            super().__init__()
            self.entered, self.release = threading.Event(), threading.Event()

        def query(self) -> bool:
            self.entered.set()
            self.release.wait(30)
            return False

    stuck = Stuck()
    watched.watcher.watch(1, stuck)
    assert stuck.entered.wait(10)
    watched.watcher.watch(2, FakeEvent())
    watched.watcher.forget(stuck)
    stuck.release.set()
    gone = weakref.ref(stuck)
    del stuck
    until(lambda: gc.collect() >= 0 and gone() is None, what="the stuck event was dropped")


def test_a_mapping_is_walked_through_once_and_can_be_closed_at_any_time(run_dir: Path) -> None:
    with ScriptedGateway(run_dir):
        mapping = PoolMapping.open(run_dir / "pool")
        whole = Prefault(mapping)
        until(lambda: not whole._thread.is_alive(), what="the walk ended")
        whole.stop()
        Prefault(mapping).stop()
        mapping.close()


def test_units_are_copied_in_order_on_one_thread_and_all_before_the_end() -> None:
    copied: list[int] = []
    threads = CopyThreads(1, lambda chunk: copied.append(chunk.chunk), "test-copy")
    threads.start()
    for i in range(100):
        threads.put(CopyChunk(1, i))
    threads.close()
    threads.join(10)
    assert copied == list(range(100))


def test_several_threads_copy_at_a_time() -> None:
    both = threading.Barrier(2, timeout=10)
    threads = CopyThreads(2, lambda _: both.wait(), "test-copy")
    threads.start()
    threads.put(CopyChunk(1, 0))
    threads.put(CopyChunk(1, 1))
    threads.close()
    threads.join(10)
    assert not both.broken
