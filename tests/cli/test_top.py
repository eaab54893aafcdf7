"""``kvgate top``: once, as lines, and live on a terminal of its own; and the verdict that ``status`` begins with."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from gateway.admin.overview import overview_of
from gateway.cli.top import Size, frame
from gateway.wire.codes import Health, Lifecycle, OperationKind, OutcomeKind, Reason
from gateway.wire.messages import SnapshotRequest
from tests.support import core_double
from tests.support.admin_process import AdminProcess
from tests.support.busy import Busy
from tests.support.core_double import CoreDouble, snapshot, transfer
from tests.support.daemon import COMMAND, REPOSITORY
from tests.support.poll import until

ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}


@pytest.fixture
def core(tmp_path: Path) -> Iterator[CoreDouble]:
    with CoreDouble(tmp_path) as double:
        healthy(double)
        yield double


def healthy(core: CoreDouble, **changes: object) -> None:
    core.answers[SnapshotRequest] = lambda _: snapshot(
        engines=(core_double.engine(last_heartbeat_at=time.time()),), **changes
    )


def kvgate(core: CoreDouble, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        cwd=REPOSITORY, env={**ENVIRON, "KVGATE_RUN_DIR": str(core.run_dir)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@contextmanager
def on_a_terminal(core: CoreDouble, *words: str, columns: int = 100, rows: int = 30) -> Iterator["Terminal"]:
    own, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *words, "--run-dir", str(core.run_dir)],
        cwd=REPOSITORY, env={**ENVIRON, "TERM": "xterm-256color"}, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(own, False)
    try:
        yield Terminal(process, own)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(own)


class Terminal:
    """What a command has written so far, and the command."""

    def __init__(self, process: subprocess.Popen[bytes], own: int) -> None:
        self.process = process
        self._own = own
        self._read = b""

    @property
    def text(self) -> str:
        try:
            while more := os.read(self._own, 1 << 16):
                self._read += more
        except (BlockingIOError, OSError):  # nothing more for now, or the command has ended
            pass
        return self._read.decode(errors="replace")

    def shows(self, words: str) -> None:
        until(lambda: words in self.text, 30, words)


# -- once --------------------------------------------------------------------------------------------------------------


def test_without_a_terminal_it_is_shown_once_and_plainly(core: CoreDouble) -> None:
    for words in (("top",), ("top", "--once")):
        done = kvgate(core, *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert "All is well: serving 1 engine, 3 operations pending." in done.stdout
        assert re.search(r"e1 +ready +2 +1 +3 ", done.stdout)
        assert "\x1b" not in done.stdout


def test_a_gateway_that_does_not_serve_exits_5_and_one_that_is_not_there_4(core: CoreDouble, tmp_path: Path) -> None:
    healthy(core, state=Lifecycle.DRAINED, ready=False, drain=core_double.drain(state=Lifecycle.DRAINED))
    for words in (("top", "--once"), ("top", "--once", "--json")):
        assert kvgate(core, *words).returncode == 5
    absent = kvgate(core, "top", "--run-dir", str(tmp_path / "nowhere"))
    assert (absent.returncode, absent.stdout) == (4, "")
    assert absent.stderr.count("\n") == 1


def test_json_is_the_overview_by_either_way(core: CoreDouble) -> None:
    with AdminProcess(core.run_dir) as admin:
        asked = kvgate(core, "top", "--once", "--json", "--admin", admin.url)
        told = json.loads(kvgate(core, "top", "--once", "--json").stdout)
    assert json.loads(asked.stdout).keys() == told.keys()
    assert told["engines"][0]["retained_events"] == 3
    assert {request.max_transfers for request in core.asked(SnapshotRequest) if request.transfers} == {100}


def test_json_lines_go_on_until_interrupted(core: CoreDouble) -> None:
    command = [*COMMAND, "top", "--json", "--interval", "0.2", "--run-dir", str(core.run_dir)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as lines:
        assert lines.stdout is not None
        ats = [json.loads(lines.stdout.readline())["at"] for _ in range(3)]
        lines.send_signal(signal.SIGINT)
        assert lines.wait(20) == 0
        assert lines.stderr is not None
        assert lines.stderr.read() == ""
    assert ats[0] < ats[1] < ats[2]


# -- live --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_live_until_a_signal_and_the_terminal_is_given_back(core: CoreDouble, number: int) -> None:
    with on_a_terminal(core, "top", "--interval", "0.2") as terminal:
        terminal.shows("All is well: serving 1 engine")
        healthy(core, health=Health.DEGRADED, checks=(core_double.check("quarantine", ok=False, critical=False),))
        terminal.shows("quarantine")
        terminal.process.send_signal(number)
        assert terminal.process.wait(20) == 0
        text = terminal.text
    assert "Traceback" not in text
    assert "Aborted" not in text
    assert text.rfind("\x1b[?1049l") > text.rfind("\x1b[?1049h"), "the screen from before is back"
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "and so is the cursor"


def test_a_gateway_that_falls_silent_keeps_its_last_values_marked_as_old(core: CoreDouble) -> None:
    with on_a_terminal(core, "top", "--interval", "0.2", "--timeout", "0.3") as terminal:
        terminal.shows("All is well")
        core.hears_admin = False
        terminal.shows("NOT LIVE, values of")
        assert "e1" in terminal.text
        before = terminal.text
        core.hears_admin = True
        until(lambda: "NOT LIVE" not in terminal.text[len(before) :][-1500:], 30, "live again")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(20) == 0


# -- what stands where -------------------------------------------------------------------------------------------------


def drawn(width: int, height: int, engines: int = 64) -> list[str]:
    busy = Busy(engines)
    before = overview_of(busy.with_transfers(100), time.time() - 1)
    now = overview_of(busy.with_transfers(100), time.time())
    out = StringIO()
    Console(file=out, width=width, height=height).print(frame(now, before, Size(width, height)))
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(40, 24), (60, 24), (80, 24), (100, 40), (200, 60)])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    lines = drawn(width, height)
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    assert any("gpu0" in line for line in lines)
    assert any("chatcmpl" in line for line in lines)


def test_rates_are_of_two_looks_and_need_both() -> None:
    text = "\n".join(drawn(160, 0, engines=4))
    assert "tokens/s" in text
    assert re.search(r"stores [\d.]+ \w+/s   retrieves [\d.]+ \w+/s", text)
    out = StringIO()
    Console(file=out, width=160).print(frame(overview_of(Busy(4).snapshot(), time.time()), None, Size(160, 0)))
    assert "/s" not in out.getvalue()
    assert re.search(r"hits \d\d%", out.getvalue())


# -- status and transfers ----------------------------------------------------------------------------------------------


def test_status_begins_with_a_verdict_and_has_one_next_step_a_finding(core: CoreDouble) -> None:
    core.says(
        SnapshotRequest,
        snapshot(
            health=Health.UNHEALTHY, ready=False,
            checks=(core_double.check("pool", ok=False, reason="its header is torn"), core_double.check("loop")),
            engines=(
                core_double.engine("calm", last_heartbeat_at=time.time()),
                core_double.engine("mute", last_heartbeat_at=time.time() - 60),
            ),
        ),
    )  # fmt: skip
    done = kvgate(core, "status")
    lines = done.stdout.splitlines()
    assert done.returncode == 5
    assert lines[0] == "Not serving: its header is torn, and 1 more."
    assert lines[1].split() == ["critical", "pool:", "its", "header", "is", "torn"]
    assert lines[2].strip().startswith("next: kvgate doctor")
    assert sum("next:" in line for line in lines) == 2
    names = [line.split()[0] for line in lines if line.startswith(("calm", "mute"))]
    assert names == ["mute", "calm"], "worst first"


def test_the_story_of_one_request_in_order(core: CoreDouble) -> None:
    now = time.time()
    loaded = transfer(
        4, "r1", outcome=OutcomeKind.LOADED, kind=OperationKind.RETRIEVE,
        settled_at=now - 60, age_seconds=0.25, chunks_done=4,
    )  # fmt: skip
    refused = transfer(6, "r1", outcome=OutcomeKind.REFUSED, reason=Reason.PENDING_OPS, settled_at=now - 30)
    healthy(core, transfers=(transfer(9, "r1", age_seconds=2.0), refused, loaded, transfer(1, "another")))
    told = kvgate(core, "transfers", "r1").stdout.splitlines()
    assert told[0] == "request r1: 3 operations, 1 pending"
    assert "retrieve 4 of engine e1, 4 of 4 chunks, loaded after 250 ms" in told[1]
    assert "store 6 of engine e1, 0 of 4 chunks, refused (pending ops) after 1.0 s" in told[2]
    assert told[3].strip() == "2.0 s ago: store 9 of engine e1, 0 of 4 chunks, waiting for 2.0 s"
    assert len(told) == 4
    assert "nothing is pending for request r7" in kvgate(core, "transfers", "r7").stdout
    assert kvgate(core, "transfers", "r1", "--request", "r1").returncode == 2
