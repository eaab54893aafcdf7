"""``kvgate top``: the operator's page in a terminal.

Owns: what stands where on the screen, and the rhythm. Must not know: how a gateway is reached, what is good or bad of
it (the verdict comes with the overview). Runs on the main thread.

A gateway that falls silent while it is watched is no reason to end: that is when one watches. The last values stay,
marked as old, until it answers or Ctrl-C.
"""

import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.admin.overview import EngineRow, Overview
from gateway.admin.verdict import Severity
from gateway.admin.views import Transfer
from gateway.cli.control import Control, ControlError
from gateway.cli.operate import NOT_READY, connected, print_json
from gateway.cli.show import drain_line, duration, size
from gateway.cli.values import Seconds

_STYLES = {Severity.GOOD: "green", Severity.NOTICE: "blue", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
_MAX_FINDINGS = 3
#: Lines that are neither engines nor operations: head, verdict, figures, two heads of tables, empty lines.
_OTHER_LINES = 11
#: All figures in a line.
_FIGURES_WIDTH = 100
#: Where nobody says how wide the output is.
_FILE_WIDTH = 120


class Size(NamedTuple):
    """Columns and rows of a screen; ``height`` 0: as many as there is to show."""

    width: int
    height: int


@click.command()
@click.option("--once", is_flag=True, help="Show it once; so it is where the output is no terminal.")
@click.option("--interval", type=Seconds(0.2, 60), default=1.0, show_default=True, help="Seconds between two looks.")
@connected
def top(control: Control, *, once: bool, interval: float, as_json: bool) -> None:
    """Watch the gateway: verdict, engines worst first, operations, pool and what it saves, until Ctrl-C.

    With --json, a document a line. Shown once, it exits 5 when the gateway does not serve.
    """
    first = control.overview()
    if once or not (as_json or sys.stdout.isatty()):
        if as_json:
            print_json(first)
        else:
            console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
            console.print(frame(first, None, Size(console.width, 0)))
        if not first.ready:
            sys.exit(NOT_READY)
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _print_lines(control, first, interval) if as_json else _watch(control, first, interval)
    except KeyboardInterrupt:
        pass  # the usual way to end it
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our lines has left: nothing more is to be said


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _print_lines(control: Control, first: Overview, interval: float) -> None:
    overview = first
    while True:
        sys.stdout.write(overview.model_dump_json() + "\n")
        sys.stdout.flush()
        time.sleep(interval)
        overview = control.overview()


def _watch(control: Control, first: Overview, interval: float) -> None:
    before, now = None, first
    with Live(screen=True, auto_refresh=False) as live:
        lost = ""
        while True:
            console = live.console
            live.update(frame(now, before, Size(console.width, console.height), lost), refresh=True)
            time.sleep(interval)
            try:
                now, before, lost = control.overview(), now, ""
            except ControlError as error:
                lost = str(error)


def frame(now: Overview, before: Overview | None, screen: Size, lost: str = "") -> RenderableType:
    """One screen.

    Args:
        now: what is shown.
        before: an earlier look of the same gateway, for rates; None: there are none.
        screen: what has room.
        lost: why ``now`` is old; empty: it is not.
    """
    folded = (
        len(now.verdict.line) + _FIGURES_WIDTH
    ) // screen.width  # lines that the verdict and the figures fold into
    room = max(5, screen.height - _OTHER_LINES - folded - 2 * min(_MAX_FINDINGS, len(now.verdict.findings)))
    num_engines = len(now.engines) if not screen.height else min(len(now.engines), max(3, room * 2 // 3))
    num_transfers = min(len(now.transfers), 20 if not screen.height else max(2, room - num_engines))
    return Group(
        *_head(now, lost),
        *_findings(now),
        Text(),
        *_figures(now, before, screen.width),
        Text(),
        _engines(now, now.engines[:num_engines], screen.width),
        *_more(len(now.engines) - num_engines, "engine"),
        Text(),
        _transfers(now, now.transfers[:num_transfers], screen.width),
    )


def _head(now: Overview, lost: str) -> Iterator[Text]:
    clock = time.strftime("%H:%M:%S", time.localtime(now.at))
    yield Text.assemble(
        ("kvgate ", "bold"),
        f"{now.state}, {now.health}, up {duration(max(0.0, now.at - now.started_at))}  ",
        (f"{now.run_dir}  {clock}", "dim"),
        no_wrap=True,
        overflow="ellipsis",
    )
    if lost:
        yield Text(f"NOT LIVE, values of {clock}: {lost}", _STYLES[Severity.CRITICAL])
    yield Text(now.verdict.line, "dim" if lost else f"bold {_STYLES[now.verdict.severity]}")


def _findings(now: Overview) -> Iterator[Text]:
    for finding in now.verdict.findings[:_MAX_FINDINGS]:
        yield Text.assemble((finding.name, _STYLES[finding.severity]), f"  {finding.detail}")
        yield Text(f"  next: {finding.next_step}", "dim")
    yield from _more(len(now.verdict.findings) - _MAX_FINDINGS, "finding")
    if now.drain is not None and now.drain.finished_at is None:
        yield Text(drain_line(now.drain))


def _figures(now: Overview, before: Overview | None, width: int) -> Iterator[Text]:
    pool = now.pool
    used = (pool.pool_bytes - pool.free_bytes) / pool.pool_bytes if pool.pool_bytes else 0.0
    totals = now.totals
    hits = f"{totals.hit_tokens / totals.lookup_tokens:.0%}" if totals.lookup_tokens else "none looked up"
    figures = [
        ("pool", f"{used:.0%} of {size(pool.pool_bytes)}"),
        ("pending", str(now.pending)),
        ("hits", hits),
        ("saved", f"{totals.loaded_tokens:,} tokens"),
    ]
    if before is not None and before.boot_id == now.boot_id and now.at > before.at:
        seconds = now.at - before.at

        def rate(name: str) -> float:
            return max(0.0, float(getattr(totals, name) - getattr(before.totals, name)) / seconds)

        looked_up = rate("lookup_tokens")
        figures[2] = ("hits", f"{rate('hit_tokens') / looked_up:.0%} now" if looked_up else "none looked up now")
        figures[3] = ("saved", f"{rate('loaded_tokens'):,.0f} tokens/s")
        figures += [(f"{kind}s", f"{size(rate(f'{kind}d_bytes'))}/s") for kind in ("store", "retrieve")]
    filled = round(used * (bar := max(10, min(40, width // 3))))
    yield Text.assemble(("█" * filled, "blue"), ("░" * (bar - filled), "dim"), "  pool in use", no_wrap=True)
    yield Text("   ").join(Text.assemble((f"{name} ", "dim"), value) for name, value in figures)


def _engines(now: Overview, rows: list[EngineRow], width: int) -> RenderableType:
    if not rows:
        return Text("no engine is here", "dim")
    is_wide = width >= 90
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    table.add_column("engine", ratio=3, no_wrap=True)
    table.add_column("state", ratio=4 if is_wide else 3, no_wrap=True)
    for name in ("stores", "retrieves", "events"):
        table.add_column(name if width >= 60 else name[:5], justify="right", no_wrap=True)
    if is_wide:
        table.add_column("oldest", justify="right", no_wrap=True)
        table.add_column("model", ratio=2, no_wrap=True)
    for row in rows:
        oldest = duration(max(0.0, now.at - row.oldest_pending_at)) if row.oldest_pending_at else "-"
        state = "removed" if row.fenced else str(row.state)
        table.add_row(
            Text(row.name),
            Text(f"{state}, {row.trouble}" if row.trouble else state, _STYLES[row.severity]),
            *(str(number) for number in (row.pending_stores, row.pending_retrieves, row.retained_events)),
            *((oldest, Text(row.model)) if is_wide else ()),
        )
    return table


def _transfers(now: Overview, rows: list[Transfer], width: int) -> RenderableType:
    if not rows:
        return Text("no operation is pending, and none was settled lately", "dim")
    is_wide = width >= 90
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    table.add_column("request", ratio=3, no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("outcome", ratio=2, no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    if is_wide:
        table.add_column("chunks", justify="right", no_wrap=True)
        table.add_column("ended", justify="right", no_wrap=True)
        table.add_column("engine", ratio=2, no_wrap=True)
    for row in rows:
        reason = f" ({row.reason})" if row.reason else ""
        ended = f"{duration(max(0.0, now.at - row.settled_at))} ago" if row.settled_at else "pending"
        more = (f"{row.chunks_done}/{row.chunks}", ended, Text(row.engine)) if is_wide else ()
        outcome = Text(f"{row.outcome or row.phase}{reason}")
        table.add_row(Text(row.request_id), str(row.kind), outcome, duration(row.age_seconds), *more)
    return table


def _more(number: int, noun: str) -> Iterator[Text]:
    if number > 0:
        yield Text(f"and {number} more {noun}{'' if number == 1 else 's'}", "dim")
