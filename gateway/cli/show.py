"""Documents as people read them.

Owns: wording, units and tables. Must not know: where documents come from. Pure but for writing to stdout.
"""

import sys
import time
from collections.abc import Iterable, Sequence

import click

from gateway.admin import views
from gateway.wire.codes import Lifecycle


def status(state: views.GatewayState) -> None:
    """The gateway at a glance."""
    failing = [f"{check.name}: {check.reason or 'failed'}" for check in state.checks if not check.ok]
    rows = [
        ("state", f"{state.state}, {state.health}" + ("" if state.ready else ", not ready")),
        ("run dir", state.run_dir),
        ("boot", f"{state.boot_id}, version {state.version}, up {duration(time.time() - state.started_at)}"),
        ("pool", _pool_line(state.pool)),
        ("drain", _drain_row(state)),
        ("checks", "all hold" if not failing else "; ".join(failing)),
    ]
    if state.state is Lifecycle.STARTING:
        rows.insert(1, ("progress", f"{state.start_progress:.0%} of the pool reserved"))
    for name, text in rows:
        click.echo(f"{name:<9} {text}")
    click.echo()
    _engine_table(state.engines)


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
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _drain_row(state: views.GatewayState) -> str:
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


def _engine_table(found: Iterable[views.EngineSummary]) -> None:
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
