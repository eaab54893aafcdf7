"""Documents as people read them.

Owns: wording, units and tables. Must not know: where documents come from. Pure but for writing to stdout.
"""

import sys
import time
from collections.abc import Iterable, Sequence

import click

from gateway.admin import views
from gateway.admin.overview import EngineRow, Overview
from gateway.wire.codes import Lifecycle


def status(overview: Overview) -> None:
    """The verdict, what to do next, and the gateway at a glance; engines worst first."""
    click.echo(overview.verdict.line)
    for finding in overview.verdict.findings:
        click.echo(f"  {finding.severity:<8} {finding.name}: {finding.detail}")
        click.echo(f"  {'':<8} next: {finding.next_step}")
    failing = [check.name for check in overview.checks if not check.ok]
    rows = [
        ("state", f"{overview.state}, {overview.health}" + ("" if overview.ready else ", not ready")),
        ("run dir", overview.run_dir),
        ("boot", f"{overview.boot_id}, version {overview.version}, up {duration(overview.at - overview.started_at)}"),
        ("pool", _pool_line(overview.pool)),
        ("drain", _drain_row(overview)),
        ("checks", "all hold" if not failing else f"failing: {', '.join(failing)}"),
    ]
    if overview.switches:
        rows.append(("switches", "; ".join(f"{s.scope} {s.name} {s.mode}" for s in overview.switches)))
    if overview.state is Lifecycle.STARTING:
        rows.insert(1, ("progress", f"{overview.start_progress:.0%} of the pool reserved"))
    click.echo()
    for name, text in rows:
        click.echo(f"{name:<9} {text}")
    click.echo()
    _engine_table(overview.engines)


def engines(found: views.Engines) -> None:
    """All engines in a table."""
    _engine_table(
        views.EngineSummary.model_validate({**engine.model_dump(), "parties": len(engine.parties)})
        for engine in found.engines
    )


def engine_line(engine: views.Engine) -> str:
    """What one engine still has to do."""
    return (
        f"engine {engine.name} is {engine.state}: {engine.pending_stores} pending stores, "
        f"{engine.pending_retrieves} pending retrieves, {engine.retained_events} retained events"
    )


def drain_line(drain: views.Drain) -> str:
    """A drain in a line."""
    if drain.state is Lifecycle.STOPPED:
        counts = f"{drain.done} operations were done, {drain.remaining.operations} left"
        return f"the gateway has stopped; when last seen {counts}"
    if drain.finished_at is None:
        left = max(0.0, drain.deadline_at - time.time())
        remaining = drain.remaining
        return (
            f"draining: {remaining.operations} operations and {remaining.leases} leases left, "
            f"{drain.done} done, {duration(left)} to the deadline"
        )
    took = duration(drain.finished_at - drain.requested_at)
    reason = f" ({drain.reason})" if drain.reason else ""
    return f"{drain.outcome} in {took}: {drain.done} operations done, {drain.aborted} cut{reason}"


def transfers(found: views.Transfers) -> None:
    """Operations in a table."""
    now = time.time()
    table(
        ("engine", "operation", "request", "kind", "phase", "age", "chunks", "outcome"),
        [
            (
                t.engine,
                str(t.number),
                t.request_id,
                t.kind,
                t.phase if t.settled_at is None else f"{t.phase} {duration(max(0.0, now - t.settled_at))} ago",
                duration(t.age_seconds),
                f"{t.chunks_done}/{t.chunks}",
                "" if t.outcome is None else t.outcome + (f" ({t.reason})" if t.reason else ""),
            )
            for t in found.transfers
        ],
        nothing="no operations",
    )


def story(request_id: str, found: views.Transfers) -> None:
    """What was done for one request, in order."""
    now = time.time()
    told = sorted(found.transfers, key=lambda one: -_begun(one, now))
    if not told:
        click.echo(f"nothing is pending for request {request_id}, and nothing of it was settled lately")
        return
    pending = sum(one.state is views.TransferState.PENDING for one in told)
    many = "1 operation" if len(told) == 1 else f"{len(told)} operations"
    click.echo(f"request {request_id}: {many}, {f'{pending} pending' if pending else 'all settled'}")
    for one in told:
        click.echo(
            f"  {duration(_begun(one, now))} ago: {one.kind} {one.number} of engine {one.engine}, "
            f"{one.chunks_done} of {one.chunks} chunks, {_end(one)}"
        )


def _begun(one: views.Transfer, now: float) -> float:
    """How long ago an operation was submitted, in seconds."""
    return one.age_seconds + (max(0.0, now - one.settled_at) if one.settled_at else 0.0)


def _end(one: views.Transfer) -> str:
    if one.outcome is None:
        return f"{one.phase} for {duration(one.age_seconds)}"
    reason = f" ({one.reason.replace('_', ' ')})" if one.reason else ""
    return f"{one.outcome}{reason} after {duration(one.age_seconds)}"


def switches(found: views.Switches) -> None:
    """Every switch that is set."""
    now = time.time()
    table(
        ("scope", "name", "mode", "since"),
        [
            (s.scope, s.name, s.mode, "the setting" if s.since_at is None else f"{duration(now - s.since_at)} ago")
            for s in found.switches
        ],
        nothing="all is on",
    )


def cleared(result: views.ClearResult) -> None:
    """What a clear took."""
    verb = "would forget" if result.dry_run else "forgot"
    held = f", {result.held_chunks} of them still held by readers" if result.held_chunks else ""
    click.echo(f"{verb} {result.chunks} chunks, {size(result.bytes)}{held}")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], nothing: str) -> None:
    """Rows under their columns; drawn on a terminal, aligned by spaces elsewhere."""
    if not rows:
        click.echo(nothing)
        return
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - only a terminal pays for it
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        drawn = Table(*columns)
        for row in rows:
            drawn.add_row(*(Text(cell) for cell in row))
        Console().print(drawn)
        return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def size(number: float) -> str:
    """Bytes in the largest unit that leaves a number of at least 1."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _drain_row(state: Overview) -> str:
    if state.drain is None:
        return "none"
    line = drain_line(state.drain)
    return f"none; the last one: {line}" if state.state is Lifecycle.READY else line


def _pool_line(pool: views.Pool) -> str:
    if not pool.pool_bytes:
        return "the gateway's to tell, not this engine's"
    return (
        f"{size(pool.pool_bytes)}: {size(pool.ready_bytes)} in {pool.ready} chunks, "
        f"{size(pool.writing_bytes)} being written, {size(pool.quarantined_bytes)} quarantined, "
        f"{size(pool.free_bytes)} free"
    )


def _engine_table(found: Iterable[views.EngineSummary | EngineRow]) -> None:
    table(
        ("engine", "model", "state", "parties", "pending stores", "pending retrieves", "retained events"),
        [
            (
                e.name,
                e.model,
                "fenced" if e.fenced else e.state,
                str(e.parties),
                str(e.pending_stores),
                str(e.pending_retrieves),
                str(e.retained_events),
            )
            for e in found
        ],
        nothing="no engines",
    )
