"""``kvgate off`` and ``kvgate on``: an operator's lasting switch.

Owns: the options, and what is done when no gateway answers: the markers are written here. Must not know: their names,
how a gateway is reached. Runs on the main thread.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from gateway import switches
from gateway.admin import views
from gateway.cli import show
from gateway.cli.control import Control, ControlError, Unreachable
from gateway.cli.operate import connected, print_json
from gateway.switches import NODE
from gateway.wire.codes import SwitchMode, SwitchScope

_FORBIDDING = [str(mode) for mode in SwitchMode if mode is not SwitchMode.ON]
_WORD = {SwitchScope.MODEL: "model", SwitchScope.ENGINE: "name"}
_MAX_NAMES = 10


def _named(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--reason", default="", help="For the audit log."),
        click.option("--all", "everything", is_flag=True, help="Every engine of the node."),
        click.option("--engine", metavar="NAME", help="The engines of this name."),
        click.option("--model", metavar="NAME", help="Every engine that serves this model."),
    ):
        command = option(command)
    return command


@click.command()
@click.option("--mode", type=click.Choice(_FORBIDDING), default="off", show_default=True, help="no_store: loads go on.")
@_named
@connected
def off(control: Control, *, mode: str, **named: Any) -> None:
    """Forbid stores, loads or both, for good: restarts, drains and resumes do not end it.

    Works while the gateway hangs or is dead. Engines compute what they may not load.
    """
    _set(control, SwitchMode(mode), **named)


@click.command()
@_named
@connected
def on(control: Control, **named: Any) -> None:
    """Take a switch back. Repeating it is harmless; another switch may still forbid something."""
    _set(control, SwitchMode.ON, **named)


def _set(
    control: Control,
    mode: SwitchMode,
    *,
    model: str | None,
    engine: str | None,
    everything: bool,
    reason: str,
    as_json: bool,
) -> None:
    scope, name = _target(model, engine, everything)
    what = "the node" if scope is SwitchScope.NODE else f"the {_WORD[scope]} {name!r}"
    try:
        was_off = mode is SwitchMode.ON and _forbids(control.state().switches, scope, name)
        found = control.switch(scope, name, mode, reason)
    except Unreachable as error:
        if control.run_dir is None:
            raise
        was_off, found = _set_alone(control.run_dir, scope, name, mode, error)
        done = "its switch is taken away" if mode is SwitchMode.ON else "its switch is set"
        click.echo(
            f"kvgate: {error}; {what}: {done} in {control.run_dir}, where every engine sees it within a heartbeat, "
            "and a gateway when it is back. Which engines there are is not known; until then no audit line is written",
            err=True,
        )
    else:
        if mode is not SwitchMode.ON:
            _tell_if_nobody_has(control, scope, name)
    if mode is SwitchMode.ON and not was_off:
        click.echo(f"kvgate: nothing was switched off for {what}", err=True)
    print_json(found) if as_json else show.switches(found)


def _forbids(found: Iterable[views.Switch], scope: SwitchScope, name: str) -> bool:
    return any((one.scope, one.name) == (scope, name) and one.mode is not SwitchMode.ON for one in found)


def _tell_if_nobody_has(control: Control, scope: SwitchScope, name: str) -> None:
    """A name that no engine has may be meant for one that is to come; or it is misspelt, and nothing is off."""
    if scope is SwitchScope.NODE:
        return
    try:
        engines = control.engines().engines
    except ControlError:
        return  # the switch is set: that is what was asked for
    names = sorted({one.model if scope is SwitchScope.MODEL else one.name for one in engines})
    if name not in names:
        known = ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
        click.echo(f"kvgate: no engine has the {_WORD[scope]} {name!r} now; known are: {known or 'none'}", err=True)


def _target(model: str | None, engine: str | None, everything: bool) -> switches.Key:
    given = [
        *([(SwitchScope.MODEL, model)] if model is not None else []),
        *([(SwitchScope.ENGINE, engine)] if engine is not None else []),
        *([(SwitchScope.NODE, NODE)] if everything else []),
    ]
    if len(given) != 1:
        raise click.UsageError("of what? Give one of --model, --engine and --all.")
    try:
        switches.check_name(*given[0])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return given[0]


def _set_alone(
    run_dir: Path, scope: SwitchScope, name: str, mode: SwitchMode, unanswered: Unreachable
) -> tuple[bool, views.Switches]:
    """Put the markers; whether the name was switched off before, and all switches now.

    The node's ``on`` gets a marker too: a setting may say otherwise at the next start.
    """
    needs_marker = mode is not SwitchMode.ON or scope is SwitchScope.NODE
    try:
        before = _read(run_dir)
        switches.put(run_dir, scope, name, mode if needs_marker else None)
        now = _read(run_dir)
    except OSError as error:
        raise ControlError(
            f"nothing was changed: {unanswered}, and {run_dir} cannot be used: {error.strerror}"
        ) from None
    return _forbids(before.switches, scope, name), now


def _read(run_dir: Path) -> views.Switches:
    reading = switches.read(run_dir)
    since = {(marker.scope, marker.name): marker.since_at for marker in reading.markers}
    return views.Switches(
        switches=[
            views.Switch(scope=scope, name=name, mode=mode, since_at=since.get((scope, name), time.time()))
            for (scope, name), mode in reading.modes().items()
        ]
    )


COMMANDS = {command.name: command for command in (off, on)}
