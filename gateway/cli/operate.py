"""The operator's commands: status, engines, drain, resume, transfers, clear.

Owns: options, exit codes, and waiting for a drain. Must not know: how a gateway is reached, how documents look. Runs on
the main thread.
"""

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import BaseModel, ValidationError

from gateway.admin import views
from gateway.admin.overview import Overview
from gateway.cli import show
from gateway.cli.control import Control, ControlError, Refused, Unreachable, WireControl
from gateway.cli.values import Seconds
from gateway.wire.codes import DrainOutcome, Lifecycle

WORK_WAS_CUT = 3
NOT_READY = 5

_TOKEN_VARIABLE = "KVGATE_ADMIN_TOKEN"  # noqa: S105 - the variable's name
_STEP_SECONDS = 1.0  # of waiting, between two lines of progress
_SLACK_SECONDS = 10.0  # past its deadline a drain ends at once: longer than that is a failure

_NOTHING_REMAINS = views.RemainingWork(operations=0, leases=0, dirty=0)

Body = TypeVar("Body", bound=BaseModel)
Command = Callable[..., None]


def connected(command: Command) -> Command:
    """Give a command the options that name a gateway; it is called with ``control`` and ``as_json``."""

    @functools.wraps(command)
    def wrapped(
        *,
        run_dir: str | None,
        admin_dir: str | None,
        admin: str | None,
        token_file: str | None,
        timeout: float,
        **rest: Any,
    ) -> None:
        control = _connect(run_dir, admin_dir, admin, token_file, timeout)
        try:
            command(control, **rest)
        except ControlError as error:
            click.echo(f"kvgate: {error}" + (f"; {error.next_step}" if error.next_step else ""), err=True)
            sys.exit(error.exit_code)
        finally:
            control.close()

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the admin API's document."),
        click.option(
            "--timeout",
            type=Seconds(0.1, 3600),
            default=5.0,
            show_default=True,
            help="Seconds to wait for an answer.",
        ),
        click.option(
            "--token-file", envvar="KVGATE_ADMIN_TOKEN_FILE", help=f"Token for --admin; else {_TOKEN_VARIABLE}."
        ),
        click.option("--admin", metavar="URL", help="Reach it by its admin API; an engine's too (or unix:PATH)."),
        click.option(
            "--admin-dir", envvar="KVGATE_ADMIN_DIR", help="Directory of its admin socket, if not RUN_DIR.admin."
        ),
        click.option("--run-dir", envvar="KVGATE_RUN_DIR", help="Directory of the gateway (or KVGATE_RUN_DIR)."),
    ):
        wrapped = option(wrapped)
    return wrapped


def _connect(
    run_dir: str | None, admin_dir: str | None, admin: str | None, token_file: str | None, timeout: float
) -> Control:
    if admin is not None:
        from gateway.cli.http import UNIX, HttpControl  # noqa: PLC0415 - only this way pays for it

        is_whole = "://" in admin or admin.startswith(UNIX)
        return HttpControl(admin if is_whole else f"http://{admin}", _token(token_file), timeout)
    if not run_dir and not admin_dir:
        raise click.UsageError("which gateway? Give --run-dir, KVGATE_RUN_DIR, or --admin URL.")
    beside = f"{str(run_dir).rstrip('/')}.admin"
    return WireControl(Path(admin_dir or beside), timeout, Path(run_dir) if run_dir else None)


def _token(token_file: str | None) -> str:
    if token_file is None:
        return os.environ.get(_TOKEN_VARIABLE, "").strip()
    try:
        return Path(token_file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the token file {token_file} cannot be read: {error}") from None


def _body(kind: type[Body], **values: object) -> Body:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        reasons = (
            ": ".join((*map(str, found["loc"]), str(found["msg"]).removeprefix("Value error, ")))
            for found in error.errors()
        )
        raise click.UsageError("; ".join(reasons)) from None


def print_json(document: BaseModel) -> None:
    """A document as the admin API gives it, for people to read and programs to parse."""
    click.echo(document.model_dump_json(indent=2))


@click.command()
@connected
def status(control: Control, *, as_json: bool) -> None:
    """Show whether all is well, what to do next, state, pool and engines. Exits 5 when the gateway does not serve."""
    state: views.GatewayState | Overview
    if as_json:
        state = control.state()
        print_json(state)
    else:
        state = control.overview()
        show.status(state)
    if not state.ready:
        sys.exit(NOT_READY)


@click.command()
@click.argument("name", required=False)
@connected
def engines(control: Control, *, name: str | None, as_json: bool) -> None:
    """Show every engine and what it has pending, or the one named."""
    found = control.engines() if name is None else views.Engines(engines=[control.engine(name)])
    if as_json:
        print_json(found if name is None else found.engines[0])
    else:
        show.engines(found)


@click.command()
@click.option("--engine", metavar="NAME", help="Drain this engine alone.")
@click.option("--deadline", type=Seconds(0, views.MAX_DEADLINE_SECONDS), help="Seconds after which work is cut.")
@click.option("--force", is_flag=True, help="Cut work now: --deadline 0.")
@click.option("--reason", default="", help="For the audit log and for whoever looks later.")
@click.option("--exit", "and_exit", is_flag=True, help="Stop the gateway when it is drained, and wait until it has.")
@click.option("--no-wait", is_flag=True, help="Return when the drain has begun.")
@connected
def drain(
    control: Control,
    *,
    engine: str | None,
    deadline: float | None,
    force: bool,
    reason: str,
    and_exit: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Take no new work, and wait until what is under way has ended. Exits 3 when work was cut.

    Repeating it is harmless: it joins the drain under way.
    """
    if force and deadline:
        raise click.UsageError("--force is --deadline 0; give one of them.")
    seconds = 0.0 if force else deadline
    if engine is not None:
        if and_exit:
            raise click.UsageError("--exit stops the gateway; it does not go with --engine.")
        _drain_engine(
            control, engine, _body(views.EngineDrainBody, deadline_seconds=seconds, reason=reason), no_wait, as_json
        )
        return
    begun = control.drain(_body(views.DrainBody, deadline_seconds=seconds, reason=reason, exit=and_exit))
    ended = begun if no_wait else _wait_for_drain(control, begun)
    if not no_wait and ended.exit and ended.outcome is not DrainOutcome.CANCELLED:
        _wait_until_gone(control)
    if as_json:
        print_json(ended)
    else:
        click.echo(show.drain_line(ended))
    if not no_wait and ended.outcome is DrainOutcome.CANCELLED:
        sys.exit(1)
    if not no_wait and _was_cut(ended):
        sys.exit(WORK_WAS_CUT)


def _wait_for_drain(control: Control, begun: views.Drain) -> views.Drain:
    """Follow this drain to its end; a gateway that leaves when drained may be gone before it says so."""
    with _progress() as tell:
        last = begun
        while last.finished_at is None:
            tell(show.drain_line(last))
            is_late = time.time() > last.deadline_at + _SLACK_SECONDS
            try:
                found = control.last_drain(_STEP_SECONDS)
            except Unreachable:
                if not last.exit or is_late:
                    raise
                if control.is_gone():
                    return last.model_copy(update={"state": Lifecycle.STOPPED})
                continue
            if found is None or found.id != begun.id:
                raise ControlError("the gateway knows nothing of this drain any more: it was started anew")
            last = found
            if last.finished_at is None and is_late:
                raise ControlError("the drain has not ended though its deadline is over")
        return last


def _wait_until_gone(control: Control) -> None:
    """A drained gateway that leaves still lets go of its pool: what comes next may want it at once."""
    give_up = time.monotonic() + _SLACK_SECONDS
    while not control.is_gone():
        if time.monotonic() > give_up:
            raise ControlError(f"the gateway is drained, and its process has not ended after {_SLACK_SECONDS:g} s")
        time.sleep(_STEP_SECONDS / 20)


def _was_cut(ended: views.Drain) -> bool:
    """Whether work was cut. A gateway that stopped before it said so left at its deadline only if work remained."""
    if ended.finished_at is not None:
        return ended.aborted > 0
    return time.time() >= ended.deadline_at and ended.remaining != _NOTHING_REMAINS


def _drain_engine(control: Control, name: str, body: views.EngineDrainBody, no_wait: bool, as_json: bool) -> None:
    engine = control.drain_engine(name, body)
    with _progress() as tell:
        while not no_wait and engine.state is views.EngineState.DRAINING:
            tell(show.engine_line(engine))
            time.sleep(_STEP_SECONDS / 5)
            engine = control.engine(name)
    print_json(engine) if as_json else click.echo(show.engine_line(engine))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """One line on stderr: written over on a terminal, else written anew whenever it changed."""
    on_terminal = sys.stderr.isatty()
    last = ""

    def tell(line: str) -> None:
        nonlocal last
        if on_terminal:
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
        elif line != last:
            click.echo(line, err=True)
        last = line

    try:
        yield tell
    finally:
        if on_terminal and last:
            click.echo("\r\x1b[K", nl=False, err=True)


@click.command()
@click.option("--engine", metavar="NAME", help="Take work from this engine again.")
@click.option("--reason", default="", help="For the audit log.")
@connected
def resume(control: Control, *, engine: str | None, reason: str, as_json: bool) -> None:
    """Take new work again. Repeating it is harmless."""
    if engine is not None:
        found = control.resume_engine(engine, reason)
        print_json(found) if as_json else click.echo(show.engine_line(found))
        return
    state = control.resume(reason)
    print_json(state) if as_json else click.echo(f"the gateway is {state.state}")


@click.command()
@click.argument("request_id", required=False)
@click.option("--engine", metavar="NAME", help="Of this engine.")
@click.option("--request", metavar="ID", help="Of this request, in the table.")
@click.option("--state", type=click.Choice([str(state) for state in views.TransferState]), help="Of this kind only.")
@connected
def transfers(
    control: Control,
    *,
    request_id: str | None,
    engine: str | None,
    request: str | None,
    state: str | None,
    as_json: bool,
) -> None:
    """Show pending stores and retrieves with their age, and those settled lately.

    With REQUEST_ID, tell the story of that request: what was done for it, in order, and how each ended.
    """
    if request_id is not None and request is not None:
        raise click.UsageError("give the request once, as REQUEST_ID or as --request.")
    found = control.transfers(engine, request_id or request, None if state is None else views.TransferState(state))
    if engine is not None and not found.transfers:
        _refuse_unknown(control, engine)
    if as_json:
        print_json(found)
    elif request_id is not None:
        show.story(request_id, found)
    else:
        show.transfers(found)


def _refuse_unknown(control: Control, engine: str) -> None:
    """An engine that nobody knows has no operations either: that is no answer to a misspelt name."""
    known = {row.name: row.state for row in control.overview().engines}
    if engine not in known:
        raise Refused(views.no_engine(engine, known))


@click.command()
@click.option("--model", default="", help="Forget what is kept for this model.")
@click.option("--namespace", default="", help="Forget this namespace (32 hexadecimal digits).")
@click.option("--all", "everything", is_flag=True, help="Forget everything.")
@click.option("--reason", default="", help="For the audit log.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@connected
def clear(
    control: Control, *, model: str, namespace: str, everything: bool, reason: str, dry_run: bool, as_json: bool
) -> None:
    """Forget cached chunks. What readers still hold is freed when they are done."""
    body = _body(views.ClearBody, model=model, namespace=namespace, all=everything, reason=reason, dry_run=dry_run)
    result = control.clear(body)
    print_json(result) if as_json else show.cleared(result)


COMMANDS = {command.name: command for command in (status, engines, drain, resume, transfers, clear)}
