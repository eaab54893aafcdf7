"""``kvgate purge``: take away what a dead gateway left.

Owns: the question, the answer and the exit code. Must not know: which files, or why not. Runs on the main thread.
"""

import json
import sys

import click

from gateway import purge as leftovers
from gateway.cli import show
from gateway.cli.located import Located, located


@click.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; needs --yes.")
@located
def purge(place: Located, *, yes: bool, as_json: bool) -> None:
    """Remove a dead gateway's pool, files and directories. What was cached is lost.

    Refused while a daemon or an engine holds its lock on the pool.
    """
    if as_json and not yes:
        raise click.UsageError("--json asks nothing: give --yes as well.")
    try:
        found = leftovers.find(place.run_dir, place.admin_dir)
        if not yes:
            for path in found.files:
                click.echo(str(path), err=True)
            question = f"Remove these {len(found.files)} files, {show.size(found.allocated_bytes)} of memory?"
            click.confirm(question, abort=True, err=True)
        removed = leftovers.remove(found)
    except leftovers.PurgeRefusedError as error:
        click.echo(f"kvgate: {error}", err=True)
        sys.exit(1)
    if as_json:
        facts = {"removed": [str(path) for path in removed], "allocated_bytes": found.allocated_bytes}
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(f"removed {len(removed)} files and directories, {show.size(found.allocated_bytes)} of memory")
