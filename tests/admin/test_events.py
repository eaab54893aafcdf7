"""GET /v1/events: one snapshot a second for all who watch, bounded whoever watches; a silent core is told at once."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from gateway.admin.events import MAX_WATCHERS
from gateway.wire.codes import Health, Lifecycle
from gateway.wire.messages import SnapshotRequest
from tests.support import core_double
from tests.support.admin_process import AdminProcess
from tests.support.busy import Busy
from tests.support.core_double import CoreDouble
from tests.support.poll import until

Event = tuple[str, dict]


@contextmanager
def watching(api: httpx.Client, **headers: str) -> Iterator[Iterator[Event]]:
    """The events of one watcher."""
    with api.stream("GET", "/v1/events", headers=headers) as answer:
        assert answer.status_code == 200
        yield _events(answer.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[Event]:
    name = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def following(events: Iterator[Event], name: str) -> dict:
    """The next event of this name."""
    return next(document for found, document in events if found == name)


def test_history_comes_first_and_then_the_overview_that_the_route_gives(api: httpx.Client, core: CoreDouble) -> None:
    with api.stream("GET", "/v1/events") as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        events = _events(answer.iter_lines())
        name, history = next(events)
        assert (name, set(history)) == ("history", {"points"})
        told = following(events, "overview")
    asked = api.get("/v1/overview").json()
    assert told["at"] == pytest.approx(asked["at"], abs=30)
    assert told.keys() == asked.keys()
    assert told["checks"] == asked["checks"]
    assert told["engines"][0]["retained_events"] == 3


def test_all_who_watch_share_one_snapshot_a_second(api: httpx.Client, core: CoreDouble) -> None:
    with ExitStack() as stack:
        watchers = [stack.enter_context(watching(api)) for _ in range(6)]
        for events in watchers:
            following(events, "overview")
        began, asked = time.monotonic(), len(core.asked(SnapshotRequest))
        for events in watchers:
            for _ in range(3):
                following(events, "overview")
        seconds = time.monotonic() - began
    assert len(core.asked(SnapshotRequest)) - asked <= seconds + 2
    assert seconds > 1.5, "frames come a second apart"


def test_operations_are_asked_for_with_a_bound(api: httpx.Client, core: CoreDouble) -> None:
    with watching(api) as events:
        following(events, "overview")
        following(events, "overview")
    bounds = {request.max_transfers for request in core.asked(SnapshotRequest) if request.transfers}
    assert bounds == {100}


def test_a_silent_core_is_told_and_so_is_its_return(api: httpx.Client, core: CoreDouble) -> None:
    with watching(api) as events:
        following(events, "overview")
        core.hears_admin = False
        silent = following(events, "unanswered")
        assert "did not answer" in silent["reason"]
        core.hears_admin = True
        assert following(events, "overview")["state"] == "ready"


def test_a_watcher_that_comes_while_the_core_is_silent_is_told_so(api: httpx.Client, core: CoreDouble) -> None:
    core.hears_admin = False
    with watching(api) as events:
        assert following(events, "unanswered")["reason"]


def test_the_last_minutes_are_kept_while_nobody_watches(tmp_path: Path) -> None:
    with CoreDouble(tmp_path) as core, AdminProcess(core.run_dir) as admin, admin.client() as api:
        until(lambda: len(core.asked(SnapshotRequest)) >= 2, 30, "points are taken")
        assert not any(request.transfers for request in core.asked(SnapshotRequest)), "nobody looks at operations"
        with watching(api) as events:
            name, history = next(events)
    assert name == "history"
    assert len(history["points"]) >= 1
    assert set(history["points"][0]) == {"at", "boot_id", "totals", "used_bytes", "pending"}


def test_watchers_have_a_bound_and_one_that_leaves_makes_room(tmp_path: Path) -> None:
    with CoreDouble(tmp_path) as core, AdminProcess(core.run_dir) as admin, ExitStack() as stack:
        api = stack.enter_context(
            httpx.Client(base_url=admin.url, timeout=20, trust_env=False, limits=httpx.Limits(max_connections=None))
        )
        first = stack.enter_context(ExitStack())
        watchers = [first.enter_context(watching(api))]  # held: a stream that nobody holds is closed
        watchers += [stack.enter_context(watching(api)) for _ in range(MAX_WATCHERS - 1)]
        for events in watchers:
            following(events, "history")
        refused = api.get("/v1/events")
        assert (refused.status_code, refused.json()["code"]) == (503, "too_many_watchers")
        assert refused.headers["retry-after"]
        first.close()

        def is_let_in() -> bool:
            with api.stream("GET", "/v1/events") as answer:
                return answer.status_code == 200

        until(is_let_in, 10, "room for another")


def test_a_watcher_that_takes_nothing_is_dropped_and_holds_up_nobody(tmp_path: Path) -> None:
    busy = Busy(64)
    with CoreDouble(tmp_path) as core, AdminProcess(core.run_dir) as admin, admin.client() as api:
        core.answers[SnapshotRequest] = lambda asked: busy.with_transfers(asked.max_transfers)
        address = httpx.URL(admin.url)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect((address.host, address.port))
            deaf.sendall(f"GET /v1/events HTTP/1.1\r\nHost: {address.host}\r\n\r\n".encode())
            until(lambda: _connections(admin.pid, address.port) == 1, 20, "the deaf one is let in")
            with watching(api) as events:
                gaps = []
                for _ in range(5):
                    began = time.monotonic()
                    following(events, "overview")
                    gaps.append(time.monotonic() - began)
                assert max(gaps) < 4, gaps
                until(lambda: _connections(admin.pid, address.port) == 1, 60, "only the one that listens is left")


def _connections(pid: int, port: int) -> int:
    """Connections of the process on this port that the kernel still keeps."""
    sockets = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        1
        for row in rows
        if int(row[1].partition(":")[2], 16) == port and row[3] == "01" and f"socket:[{row[9]}]" in sockets
    )


def test_a_stop_ends_the_stream_at_once(tmp_path: Path) -> None:
    with CoreDouble(tmp_path) as core, AdminProcess(core.run_dir) as admin, admin.client() as api:
        with watching(api) as events:
            following(events, "overview")
            assert admin.stop() == 0
            assert {name for name, _ in events} <= {"overview", "unanswered"}, "the stream has its end, and no error"
        assert "graceful" not in admin.stderr, "nobody had to be cut off when the grace was over"


def test_the_token_is_needed_where_reads_need_it(tmp_path: Path) -> None:
    with CoreDouble(tmp_path) as core:
        settings = {"KVGATE_ADMIN": "0.0.0.0:0", "KVGATE_ADMIN_TOKEN": "secret"}
        with AdminProcess(core.run_dir, settings=settings) as admin, admin.client() as api:
            assert api.get("/v1/events").status_code == 401
            assert api.get("/v1/overview").status_code == 401
            assert api.get("/").status_code == 200, "the page holds no data, and has to ask for the token"
            assert api.get("/page/app.js").status_code == 200
            with watching(api, Authorization="Bearer secret") as events:
                following(events, "overview")


def test_a_drain_is_seen_as_it_goes(api: httpx.Client, core: CoreDouble) -> None:
    core.says(
        SnapshotRequest,
        core_double.snapshot(
            state=Lifecycle.DRAINING, ready=False, health=Health.DEGRADED, drain=core_double.drain(reason="rollout")
        ),
    )
    with watching(api) as events:
        overview = following(events, "overview")
        while overview["state"] != "draining":
            overview = following(events, "overview")
    assert overview["drain"]["remaining"] == {"operations": 2, "leases": 1, "dirty": 0}
    assert overview["verdict"]["findings"][0]["name"] == "state"
    assert "rollout" in overview["verdict"]["line"]
