"""What was opened for an engine takes long to close, or its copy raises: nobody else waits, and nothing stops."""

import threading
from collections.abc import Callable

from gateway.handles.line import Line, Unit
from gateway.handles.operation import Operation, Place
from gateway.wire.codes import CopyStatus
from gateway.wire.messages import Retrieve
from tests.support.poll import until


def line(ended: list[CopyStatus], *, copy=lambda _: CopyStatus.COPIED, has_ended: Callable[[], object] = bool) -> Line:
    return Line(
        copy=copy,
        unit_ended=lambda unit, status: ended.append(status),
        has_ended=has_ended,
        name="copy-test",
    )


def units(count: int) -> list[Unit]:
    request = Retrieve(number=1, party=b"p" * 16, operation=1, keys=(b"k" * 32,) * count, blocks=bytes(4 * count))
    operation = Operation(request, 1)
    return [Unit(operation, chunk, Place(chunk, 0, 1)) for chunk in range(count)]


def test_the_loop_does_not_wait_for_memory_to_be_closed() -> None:
    may_end, closed_by = threading.Event(), []

    def release() -> None:
        closed_by.append(threading.get_ident())
        may_end.wait(10)

    leaving = line([], has_ended=release)
    leaving.close()
    until(lambda: closed_by, what="it is being closed")
    assert leaving.is_alive()
    assert closed_by != [threading.get_ident()]
    may_end.set()
    leaving.join(10)
    assert not leaving.is_alive()


def test_memory_is_closed_when_the_copy_that_runs_has_ended_and_not_before() -> None:
    ended: list[CopyStatus] = []
    runs, may_end, order = threading.Event(), threading.Event(), []

    def copy(unit: Unit) -> CopyStatus:
        runs.set()
        may_end.wait(10)
        order.append("copied")
        return CopyStatus.COPIED

    busy = line(ended, copy=copy, has_ended=lambda: order.append("closed"))
    busy.put(units(2))
    assert runs.wait(10)
    busy.close()
    may_end.set()
    busy.join(10)
    assert order == ["copied", "closed"]
    assert ended == [CopyStatus.COPIED]


def test_a_copy_that_raises_ends_its_unit_and_not_the_line() -> None:
    ended: list[CopyStatus] = []
    failures = iter([RuntimeError("the driver is lost"), None])

    def copy(unit: Unit) -> CopyStatus:
        if failure := next(failures):
            raise failure
        return CopyStatus.COPIED

    lasting = line(ended, copy=copy)
    lasting.put(units(2))
    until(lambda: len(ended) == 2, what="both have ended")
    assert ended == [CopyStatus.COPY_ERROR, CopyStatus.COPIED]
    lasting.close()
    lasting.join(10)
