"""The operator's commands, as processes, against a core double: output, exit codes, both ways to a gateway."""

import json
import os
import pty
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.admin import views
from gateway.cli.main import cli
from gateway.wire import messages
from gateway.wire.codes import DrainOutcome, ErrorCode, Lifecycle, OutcomeKind
from gateway.wire.messages import Clear, Cleared, Done, Drained, Resume, SnapshotRequest
from tests.support import core_double
from tests.support.admin_process import AdminProcess
from tests.support.core_double import CoreDouble, snapshot, transfer
from tests.support.daemon import COMMAND, REPOSITORY
from tests.support.poll import until

TOKEN = {"KVGATE_ADMIN_TOKEN": "secret"}
SETTINGS = [name for name in os.environ if name.startswith("KVGATE_")]
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")}


@pytest.fixture
def core(tmp_path: Path) -> Iterator[CoreDouble]:
    with CoreDouble(tmp_path) as double:
        yield double


def kvgate(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        cwd=REPOSITORY, env={**ENVIRON, **environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def ask(core: CoreDouble, *words: str) -> subprocess.CompletedProcess[str]:
    """A command by the admin socket."""
    return kvgate(*words, KVGATE_RUN_DIR=str(core.run_dir))


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What stderr says, which is one line and no traceback."""
    assert done.stdout == ""
    assert done.stderr.startswith("kvgate: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def drains(core: CoreDouble, *steps: messages.DrainInfo, asked: messages.DrainInfo | None = None) -> None:
    """A drain that begins as ``asked`` and is seen in these steps, one a snapshot; the last one stays."""
    core.says(
        messages.Drain, Drained(number=0, boot=b"", already=False, drain=asked or core_double.drain(deadline_at=soon()))
    )
    left = list(steps)

    def next_step(_: messages.Request) -> messages.Reply:
        step = left.pop(0) if len(left) > 1 else left[0]
        return snapshot(state=step.state, ready=False, drain=step)

    core.answers[SnapshotRequest] = next_step


def soon() -> float:
    return time.time() + 60


def over(outcome: DrainOutcome = DrainOutcome.COMPLETED, **changes: object) -> messages.DrainInfo:
    return core_double.drain(state=Lifecycle.DRAINED, finished_at=7.0, outcome=outcome, **changes)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_status(core: CoreDouble) -> None:
    done = ask(core, "status")
    assert done.returncode == 0, done.stderr
    assert "ready, healthy" in done.stdout
    assert "e1" in done.stdout
    assert "\x1b" not in done.stdout, "no terminal, no colours"


def test_status_of_a_gateway_that_does_not_serve_exits_5(core: CoreDouble) -> None:
    core.says(SnapshotRequest, snapshot(state=Lifecycle.DRAINED, ready=False, drain=over()))
    for words in (("status",), ("status", "--json")):
        assert ask(core, *words).returncode == 5


def test_a_ready_gateway_s_drain_is_its_last_one(core: CoreDouble) -> None:
    core.says(SnapshotRequest, snapshot(drain=over()))
    assert "drain     none; the last one: completed" in ask(core, "status").stdout


def test_an_engine_that_has_left_is_not_shown_as_ready(core: CoreDouble) -> None:
    drained = core_double.engine("e2", parties=(), state=Lifecycle.DRAINED)
    core.says(SnapshotRequest, snapshot(engines=(core_double.engine(parties=()), drained)))
    states = [line.split()[2] for line in ask(core, "engines").stdout.splitlines()[1:]]
    assert states == ["gone", "drained"], "what an operator asked for stays in sight"


def test_a_terminal_gets_a_drawn_table(core: CoreDouble) -> None:
    own, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "engines", "--run-dir", str(core.run_dir)],
            cwd=REPOSITORY, env={**ENVIRON, "TERM": "xterm"}, stdout=theirs, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0
        assert "┃" in os.read(own, 65536).decode()
    finally:
        os.close(own)
        os.close(theirs)


def test_json_is_the_api_s_document_by_either_way(core: CoreDouble) -> None:
    story = snapshot(drain=core_double.drain(), transfers=(transfer(1), transfer(2, outcome=OutcomeKind.STORED)))
    core.says(SnapshotRequest, story)
    with AdminProcess(core.run_dir) as admin, admin.client() as api:
        for words, path in (
            (("status",), "/v1/state"),
            (("engines",), "/v1/engines"),
            (("engines", "e1"), "/v1/engines/e1"),
            (("transfers", "--state", "pending"), "/v1/transfers?state=pending"),
        ):
            document = api.get(path).json()
            by_wire = ask(core, *words, "--json")
            by_http = kvgate(*words, "--json", "--admin", admin.url)
            assert json.loads(by_wire.stdout) == document
            assert json.loads(by_http.stdout) == document


def test_transfers_of_a_request(core: CoreDouble) -> None:
    core.says(SnapshotRequest, snapshot(transfers=(transfer(1, "r1"), transfer(2, "r2"))))
    shown = ask(core, "transfers", "--request", "r2").stdout
    assert "r2" in shown
    assert "r1" not in shown
    assert ask(core, "transfers", "--request", "r3").stdout == "no operations\n"


def test_settled_operations_say_how_long_ago(core: CoreDouble) -> None:
    settled = transfer(1, outcome=OutcomeKind.STORED, settled_at=time.time() - 7200)
    core.says(SnapshotRequest, snapshot(transfers=(settled,)))
    assert "settled 2 h 0 min ago" in ask(core, "transfers").stdout


def test_an_unknown_engine_is_one_sentence(core: CoreDouble) -> None:
    for words in (("engines", "nobody"), ("drain", "--engine", "nobody"), ("resume", "--engine", "nobody")):
        done = ask(core, *words)
        assert done.returncode == 1
        assert "nobody" in one_sentence(done)


# -- draining ----------------------------------------------------------------------------------------------------------


def test_an_engine_that_is_gone_or_unknown_is_told_by_either_way(core: CoreDouble) -> None:
    gone = core_double.engine("e2", parties=(), last_heartbeat_at=86400.0)
    core.says(SnapshotRequest, snapshot(engines=(core_double.engine(), gone)))
    with AdminProcess(core.run_dir) as admin:
        for way in (("--run-dir", str(core.run_dir)), ("--admin", admin.url)):
            for words in (("drain", "--engine", "e2"), ("resume", "--engine", "e2")):
                done = kvgate(*words, *way)
                assert done.returncode == 1
                assert "engine 'e2' is gone, last heard of at 1970-01-02 00:00:00 UTC" in one_sentence(done)
            unknown = kvgate("transfers", "--engine", "e3", *way)
            assert unknown.returncode == 1
            assert one_sentence(unknown) == "kvgate: there is no engine 'e3'; known are: e1, e2 (gone)\n"
            assert kvgate("transfers", "--engine", "e2", *way).stdout == "no operations\n", "it is known"
    assert core.asked(messages.Drain) == core.asked(Resume) == []


def test_a_drain_is_followed_to_its_end(core: CoreDouble) -> None:
    drains(core, core_double.drain(deadline_at=soon()), core_double.drain(deadline_at=soon()), over(done=6))
    done = ask(core, "drain", "--deadline", "60", "--reason", "kernel update")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("completed in 2.0 s: 6 operations done, 0 cut")
    assert "2 operations and 1 leases left" in done.stderr
    assert "\r" not in done.stderr, "no terminal: plain lines"
    (asked,) = core.asked(messages.Drain)
    assert (asked.deadline_seconds, asked.reason, asked.exit) == (60.0, "kernel update", False)
    assert asked.requested_by.endswith("(kvgate)")
    assert asked.peer.startswith("pid ")


def test_work_that_was_cut_exits_3(core: CoreDouble) -> None:
    drains(core, over(DrainOutcome.FORCED, aborted=2))
    done = ask(core, "drain", "--force", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["aborted"] == 2
    assert core.asked(messages.Drain)[0].deadline_seconds == 0


def test_a_drain_that_was_resumed_exits_1(core: CoreDouble) -> None:
    drains(core, core_double.drain(state=Lifecycle.READY, finished_at=7.0, outcome=DrainOutcome.CANCELLED))
    assert ask(core, "drain").returncode == 1


def test_no_wait_returns_when_the_drain_has_begun(core: CoreDouble) -> None:
    drains(core, core_double.drain(deadline_at=soon()))
    done = ask(core, "drain", "--no-wait", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["state"] == "draining"
    assert core.asked(SnapshotRequest) == []


def test_another_boot_s_drain_is_not_taken_for_ours(core: CoreDouble) -> None:
    drains(core, core_double.drain(id="another", deadline_at=soon()))
    done = ask(core, "drain")
    assert done.returncode == 1
    assert "started anew" in done.stderr


@pytest.mark.parametrize(("deadline_in", "code"), [(60.0, 0), (-1.0, 3)])
def test_a_gateway_that_stops_when_drained_may_not_say_so(tmp_path: Path, deadline_in: float, code: int) -> None:
    """Gone before its deadline it had nothing left to cut; gone at it, it had."""
    with CoreDouble(tmp_path) as core:
        begun = core_double.drain(exit=True, deadline_at=time.time() + deadline_in)
        drains(core, begun, asked=begun)
        command = [*COMMAND, "drain", "--exit", "--timeout", "1", "--run-dir", str(core.run_dir)]
        leaving = subprocess.Popen(command, cwd=REPOSITORY, env=ENVIRON, stdout=subprocess.PIPE, text=True)
        until(lambda: len(core.asked(SnapshotRequest)) > 1, 30, "the command waits")
    shown, _ = leaving.communicate(timeout=60)
    assert leaving.returncode == code
    assert "the gateway has stopped" in shown


def test_a_gateway_that_falls_silent_while_draining_is_unreachable(core: CoreDouble) -> None:
    drains(core, over())

    def falls_silent(_: messages.Request) -> None:
        core.hears_admin = False

    core.answers[SnapshotRequest] = falls_silent
    assert ask(core, "drain", "--timeout", "1").returncode == 4


def test_one_engine_is_drained_and_resumed(core: CoreDouble) -> None:
    core.says(messages.Drain, Drained(number=0, boot=b"", already=False))
    core.says(Resume, Done(number=0, boot=b""))
    states = [Lifecycle.READY, Lifecycle.DRAINING, Lifecycle.DRAINING, Lifecycle.DRAINED]

    def next_step(_: messages.Request) -> messages.Reply:
        state = states.pop(0) if len(states) > 1 else states[0]
        return snapshot(engines=(core_double.engine(state=state),))

    core.answers[SnapshotRequest] = next_step
    done = ask(core, "drain", "--engine", "e1", "--deadline", "5")
    assert done.returncode == 0, done.stderr
    assert "engine e1 is drained" in done.stdout
    assert core.asked(messages.Drain)[0].engine == "e1"
    assert json.loads(ask(core, "resume", "--engine", "e1", "--json").stdout)["name"] == "e1"
    assert core.asked(Resume)[0].engine == "e1"


def test_a_refusal_is_one_sentence_and_exits_1(core: CoreDouble) -> None:
    core.refuses(Resume, ErrorCode.CONFLICT, "the gateway is stopping")
    with AdminProcess(core.run_dir) as admin:
        for done in (ask(core, "resume"), kvgate("resume", "--admin", admin.url)):
            assert done.returncode == 1
            assert one_sentence(done) == "kvgate: the gateway is stopping\n"


def test_clear(core: CoreDouble) -> None:
    core.says(Clear, Cleared(number=0, boot=b"", chunks=3, bytes=3 << 20, held_chunks=1))
    done = ask(core, "clear", "--model", "m", "--dry-run")
    assert done.stdout == "would forget 3 chunks, 3.0 MiB, 1 of them still held by readers\n"
    assert core.asked(Clear)[0].dry_run


# -- the other way -----------------------------------------------------------------------------------------------------


def test_the_token_comes_from_a_file_or_the_environment(core: CoreDouble, tmp_path: Path) -> None:
    core.says(Resume, Done(number=0, boot=b""))
    token_file = tmp_path / "token"
    token_file.write_text("secret\n")
    with AdminProcess(core.run_dir, settings=TOKEN) as admin:
        to = ("--admin", admin.url.removeprefix("http://"))
        refused = kvgate("resume", *to)
        assert refused.returncode == 1
        assert "token" in one_sentence(refused)
        assert kvgate("resume", *to, **TOKEN).returncode == 0
        assert kvgate("resume", *to, "--token-file", str(token_file)).returncode == 0
    assert core.asked(Resume)[0].requested_by.endswith("(kvgate)")


def test_a_probe_listener_is_told_from_a_gateway_that_lacks_something(core: CoreDouble) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        probe = f"127.0.0.1:{taken.getsockname()[1]}"
    with AdminProcess(core.run_dir, "--probe", probe):
        done = kvgate("status", "--admin", probe)
    assert (done.returncode, f"is http://{probe}/ a probe listener" in one_sentence(done)) == (1, True)


def test_waiting_by_the_api(core: CoreDouble) -> None:
    drains(core, core_double.drain(deadline_at=soon()), over(DrainOutcome.DEADLINE_EXCEEDED, aborted=1))
    with AdminProcess(core.run_dir) as admin:
        done = kvgate("drain", "--admin", admin.url, "--json")
    assert done.returncode == 3
    assert views.Drain.model_validate_json(done.stdout).outcome is DrainOutcome.DEADLINE_EXCEEDED


# -- nobody there, nothing meant ---------------------------------------------------------------------------------------


def test_unreachable_exits_4(core: CoreDouble, tmp_path: Path) -> None:
    for done in (kvgate("status", "--run-dir", str(tmp_path / "nowhere")), kvgate("status", "--admin", "127.0.0.1:1")):
        assert done.returncode == 4
        one_sentence(done)
    core.hears_admin = False
    hung = ask(core, "status", "--timeout", "0.3", "--json")
    assert (hung.returncode, hung.stdout) == (4, "")
    with AdminProcess(core.run_dir) as admin:
        assert kvgate("status", "--admin", admin.url).returncode == 4


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("frobnicate",),
        ("drain", "--run-dir", "x", "--deadline", "-1"),
        ("drain", "--run-dir", "x", "--deadline", "nan"),
        ("drain", "--run-dir", "x", "--force", "--deadline", "5"),
        ("drain", "--run-dir", "x", "--engine", "e", "--exit"),
        ("drain", "--run-dir", "x", "--reason", 501 * "x"),
        ("clear", "--run-dir", "x"),
        ("clear", "--run-dir", "x", "--all", "--model", "m"),
        ("status", "--admin", "127.0.0.1:1", "--token-file", "/nonexistent/token"),
        ("serve", "--pool-size", "much"),
        ("serve", "--admin", "0.0.0.0:0"),
        ("serve", "--frobnicate"),
    ],
)
def test_usage_exits_2(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli, words, env=dict.fromkeys(SETTINGS))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "Error: " in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("drain", "--deadline", "abc"), "'--deadline': 'abc', expected a number of seconds from 0 to 86400."),
        (("status", "--timeout", "0"), "'--timeout': '0', expected a number of seconds from 0.1 to 3600."),
        (("top", "--interval", "1s"), "'--interval': '1s', expected a number of seconds from 0.2 to 60."),
    ],
)
def test_wrong_seconds_are_told_with_what_was_expected(words: tuple[str, ...], told: str) -> None:
    done = CliRunner().invoke(cli, [*words, "--run-dir", "x"], env=dict.fromkeys(SETTINGS))
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1] == f"Error: Invalid value for {told}"


def test_a_wrong_value_is_told_with_its_name() -> None:
    done = CliRunner().invoke(cli, ["clear", "--run-dir", "x", "--namespace", "zz"], env=dict.fromkeys(SETTINGS))
    assert "Error: namespace: " in done.stderr


def test_version_and_help() -> None:
    assert json.loads(kvgate("version", "--json").stdout) == {"version": "0.1.0", "protocol": 1, "pool_format": 1}
    assert kvgate("version").stdout.startswith("kvgate 0.1.0")
    assert kvgate("admin", "--help").returncode == 0
    shown = kvgate("--help")
    assert shown.returncode == 0
    for command in cli.list_commands(click.Context(cli)):
        assert f"\n  {command}" in shown.stdout
        if command != "admin":
            assert CliRunner().invoke(cli, [command, "--help"]).exit_code == 0


# -- switches ----------------------------------------------------------------------------------------------------------


def test_a_switch_is_asked_for_with_a_deadline(core: CoreDouble) -> None:
    """Whoever reads it after the command has given up must not act on it: the markers were written instead."""
    core.says(messages.Switch, Done(number=0, boot=b""))
    began = time.monotonic()
    assert ask(core, "off", "--model", "org/m", "--mode", "no_load", "--reason", "why").returncode == 0
    (asked,) = core.asked(messages.Switch)
    assert (asked.scope, asked.name, asked.mode, asked.reason) == ("model", "org/m", "no_load", "why")
    assert began < asked.deadline < time.monotonic() + 10


def test_by_its_admin_api_a_switch_needs_an_answer(core: CoreDouble, tmp_path: Path) -> None:
    done = kvgate("off", "--all", "--admin", "127.0.0.1:9", "--timeout", "0.5", KVGATE_RUN_DIR=str(tmp_path))
    assert done.returncode == 4
    assert list(tmp_path.glob("switch.*")) == []
