"""``kvgate doctor``: everything that can be checked about a gateway from beside it.

Owns: the command and its exit code. Must not know: what is checked. Runs on the main thread.
"""

import json
import sys

import click

from gateway.cli.located import Located, located
from gateway.doctor.finding import as_document, as_text, has_failed
from gateway.doctor.gateway_side import examine


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@located
def doctor(place: Located, *, as_json: bool) -> None:
    """Check directories, room, locks, sockets, ports, versions and clocks. Exits 1 when a check failed.

    It changes nothing, and works with the gateway dead or hung. Inside an engine's container there is
    ``python -m adapter.doctor``.
    """
    findings = examine(place.settings, place.complaint)
    click.echo(json.dumps(as_document(findings), indent=2) if as_json else as_text(findings))
    sys.exit(1 if has_failed(findings) else 0)
