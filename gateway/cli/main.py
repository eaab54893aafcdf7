"""``kvgate``: the command line's root.

Owns: the list of commands and where each is. Must not know: what they do. Runs on the main thread.

A command's module is imported when the command is asked for: ``kvgate serve`` becomes the core process, which must not
carry what only the other commands need.
"""

import json
import os
import sys

import click

from gateway import __version__

_HELP = {"help_option_names": ["-h", "--help"]}


class _Commands(click.Group):
    """Commands by name, imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Every command, in the order of the help page."""
        return [
            *("serve", "status", "top", "engines", "drain", "resume", "off", "on", "transfers", "clear"),
            *("doctor", "bundle", "purge", "bench", "admin", "version"),
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        if cmd_name in ("admin", "version"):
            return {"admin": admin, "version": version}[cmd_name]
        return _imported(cmd_name)


def _imported(name: str) -> click.Command:
    """A command from its module. See the module's docstring for why the imports stand here."""
    match name:
        case "serve":
            from gateway.cli.serve import serve  # noqa: PLC0415

            return serve
        case "top":
            from gateway.cli.top import top  # noqa: PLC0415

            return top
        case "off" | "on":
            from gateway.cli.switch import COMMANDS as SWITCHES  # noqa: PLC0415

            return SWITCHES[name]
        case "doctor":
            from gateway.cli.doctor import doctor  # noqa: PLC0415

            return doctor
        case "bundle":
            from gateway.cli.bundle import bundle  # noqa: PLC0415

            return bundle
        case "bench":
            from gateway.cli.bench import bench  # noqa: PLC0415

            return bench
        case "purge":
            from gateway.cli.purge import purge  # noqa: PLC0415

            return purge
        case _:
            from gateway.cli.operate import COMMANDS  # noqa: PLC0415

            return COMMANDS[name]


@click.command(cls=_Commands, context_settings=_HELP)
@click.version_option(__version__, prog_name="kvgate")
def cli() -> None:
    """An observable KV-cache gateway for LLM engines.

    Exit codes: 0 done, 1 failed, 2 usage, 3 work was cut, 4 unreachable, 5 not ready.
    """


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def admin(arguments: tuple[str, ...]) -> None:
    """Serve the admin API alone, for a gateway that runs already."""
    os.execv(sys.executable, [sys.executable, "-m", "gateway.admin", *arguments])  # noqa: S606 - no shell is wanted


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(*, as_json: bool) -> None:
    """Show the version of kvgate, of its wire protocol and of its pool format."""
    from gateway.wire.messages import POOL_FORMAT, PROTOCOL_VERSION  # noqa: PLC0415 - see the module's docstring

    if as_json:
        facts = {"version": __version__, "protocol": PROTOCOL_VERSION, "pool_format": POOL_FORMAT}
        click.echo(json.dumps(facts))
    else:
        click.echo(f"kvgate {__version__} (protocol {PROTOCOL_VERSION}, pool format {POOL_FORMAT})")


def main() -> None:
    """Entry point of the ``kvgate`` script."""
    cli(prog_name="kvgate")
