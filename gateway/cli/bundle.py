"""``kvgate bundle``: all that a helper would ask for, in one file.

Owns: which parts there are, the bound on its time, and how the file is written. Must not know: how parts are found out.
Runs on the main thread.

It is meant for the worst moment: a part that cannot be had is named in the manifest, with the reason, and the others
are there. Nothing in it is a secret: settings name the token's file as set or not, and tokens of prompts, keys and
cached bytes never leave the engines and the pool. Names of models, engines and requests are in it.
"""

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import click
from pydantic import BaseModel

from gateway import __version__
from gateway.admin import views
from gateway.cli import show
from gateway.cli.located import Located, located
from gateway.client import GatewayClient, GatewayError
from gateway.config import as_mapping
from gateway.doctor import answers, facts
from gateway.doctor.finding import Finding, Verdict, as_document
from gateway.doctor.gateway_side import examine
from gateway.run_dir import ADMIN_FACTS, ADMIN_SETTINGS, ADMIN_SOCKET
from gateway.wire.messages import SnapshotReply, SnapshotRequest

#: For one snapshot; only asked for where the core has just answered a check.
_SNAPSHOT_SECONDS = 2.0

#: Parts that only a gateway can tell.
_ASKED = frozenset({"state.json", "engines.json", "cache.json", "transfers.json"})

Part = Callable[[], object]


class _Missing(Exception):  # noqa: N818 - reads as what happened
    """A part cannot be had; the message says why."""


@click.command()
@click.option("--out", metavar="FILE.tar.gz", help="Where to write. Default: kvgate-bundle-TIME.tar.gz, here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@located
def bundle(place: Located, *, out: str | None, as_json: bool) -> None:
    """Gather state, checks, settings, transfers, metrics, locks and memory in one file, for whoever helps.

    Takes some seconds at most, with the gateway dead or hung too. It holds no token, no prompt and no cached bytes; it
    does hold names of models, engines and requests.
    """
    began = time.time()
    name = time.strftime("kvgate-bundle-%Y%m%dT%H%M%SZ", time.gmtime(began))
    path = Path(out or f"{name}.tar.gz").absolute()
    files, missing = _gather(_parts(place))
    manifest = {
        "made_at": began,
        "took_seconds": round(time.time() - began, 3),
        "version": __version__,
        "host": platform.node(),
        "run_dir": str(place.run_dir),
        "parts": sorted(files),
        "missing": missing,
    }
    files["manifest.json"] = _as_json(manifest)
    try:
        size = _write(path, name, files)
    except OSError as error:
        click.echo(f"kvgate: cannot write {path}: {error}", err=True)
        sys.exit(1)
    if as_json:
        click.echo(json.dumps({"path": str(path), "bytes": size, **manifest}, indent=2))
        return
    _tell_what_is_missing(missing)
    click.echo(f"{path} ({show.size(size)})")


def _tell_what_is_missing(missing: dict[str, str]) -> None:
    """What there is comes from files and this machine; what is not there only a gateway could have told."""
    for part, reason in missing.items():
        click.echo(f"without {part}: {reason}", err=True)
    if missing.keys() & _ASKED:
        click.echo("the gateway did not answer: what is there was read from its files and from this machine", err=True)


def _parts(place: Located) -> dict[str, Part]:
    """What each file of the bundle holds; a text, or a document."""
    findings = examine(place.settings, place.complaint)
    snapshot: list[SnapshotReply] = []

    def of_snapshot(read: Callable[[SnapshotReply], BaseModel]) -> Part:
        def part() -> object:
            if not snapshot:
                _require(findings, "admin_socket")
                snapshot.append(_snapshot(place.admin_dir / ADMIN_SOCKET))
            return read(snapshot[0]).model_dump(mode="json")

        return part

    return {
        "doctor.json": lambda: as_document(findings),
        "versions.json": facts.versions,
        "settings.json": lambda: facts.redacted(_in_force(place.admin_dir / ADMIN_SETTINGS)),
        "settings-here.json": lambda: facts.redacted(as_mapping(place.settings)),
        "locks.json": lambda: facts.locks(place.run_dir),
        "allocation.json": lambda: facts.allocation(place.run_dir, place.admin_dir),
        "process.json": lambda: facts.process(place.run_dir),
        "state.json": of_snapshot(views.state_of),
        "engines.json": of_snapshot(views.engines_of),
        "cache.json": of_snapshot(views.cache_of),
        "transfers.json": of_snapshot(views.transfers_of),
        "metrics.txt": lambda: _metrics(findings, place.admin_dir / ADMIN_FACTS),
    }


def _gather(parts: dict[str, Part]) -> tuple[dict[str, bytes], dict[str, str]]:
    """The parts that can be had, and why the others cannot."""
    files: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    for name, part in parts.items():
        try:
            found = part()
        except Exception as error:  # noqa: BLE001 - whatever is broken here, the other parts are needed all the more
            missing[name] = str(error) or type(error).__name__
        else:
            files[name] = found if isinstance(found, bytes) else _as_json(found)
    return files, missing


def _require(findings: list[Finding], name: str) -> None:
    """Ask only those who have just answered: each silent one costs its whole timeout."""
    for finding in findings:
        if finding.name == name and finding.verdict in (Verdict.FAILED, Verdict.SKIPPED):
            raise _Missing(finding.detail)


def _snapshot(path: Path) -> SnapshotReply:
    with GatewayClient(path, timeout_seconds=_SNAPSHOT_SECONDS, software=f"kvgate-bundle/{__version__}") as client:
        reply = client.request(SnapshotRequest(number=0, transfers=True))
    if not isinstance(reply, SnapshotReply):
        raise GatewayError(f"the gateway answered SNAPSHOT with {type(reply).__name__}")
    return reply


def _metrics(findings: list[Finding], admin_file: Path) -> bytes:
    """What Prometheus would get: with a hung core too, since the admin process answers."""
    url = answers.admin_url(admin_file)
    if url is None:
        raise _Missing(f"{admin_file} does not say where the admin API listens")
    if any(finding.name == "admin_api" and finding.verdict is Verdict.SKIPPED for finding in findings):
        raise _Missing("the admin API was not looked at")
    return answers.http_get(url, "/metrics")[1]


def _in_force(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text("utf-8"))
    return found


def _as_json(document: object) -> bytes:
    return (json.dumps(document, indent=2, default=str) + "\n").encode()


def _write(path: Path, folder: str, files: dict[str, bytes]) -> int:
    """Write the file, whole or not at all, readable by its owner alone; returns its size."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            for name, content in sorted(files.items()):
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(content))
        size = fresh.stat().st_size
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    return size
