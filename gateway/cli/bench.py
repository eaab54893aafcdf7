"""``kvgate bench``: what a pool of some size would have found of your prompts.

Owns: the flags, the table, the exit code. Must not know: how hit rates come about. Runs on the main thread.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from gateway.bench import TraceError, hit_rates, read_trace

_CAPACITIES = (1_000, 5_000, 10_000, 30_000, 100_000)


@click.command()
@click.option("--trace", required=True, metavar="FILE", type=click.Path(path_type=Path), help="JSON lines: hash_ids.")
@click.option(
    "--capacity",
    "capacities",
    metavar="CHUNKS",
    multiple=True,
    type=click.IntRange(min=1),
    default=_CAPACITIES,
    show_default=True,
    help="Chunks that the pool holds; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(trace: Path, capacities: tuple[int, ...], *, as_json: bool) -> None:
    """Show the hit rates of a trace: each eviction policy's, through the gateway's own tables, and the optimum.

    Needs no gateway. A line of the trace is one prompt, an object with hash_ids, one id a chunk in the prompt's order;
    equal ids are equal prefixes. A hit is a chunk that is there with all before it.
    """
    try:
        requests = read_trace(trace)
    except TraceError as error:
        click.echo(f"kvgate: {error}", err=True)
        sys.exit(1)
    num_chunks = sum(len(request.chunks) for request in requests)
    if as_json:
        rates = [asdict(hit_rates(requests, capacity)) for capacity in capacities]
        click.echo(json.dumps({"requests": len(requests), "chunks": num_chunks, "hit_rates": rates}, indent=2))
        return
    click.echo(f"{len(requests):,} requests, {num_chunks:,} chunks; hit chunks / all chunks")
    for i, capacity in enumerate(capacities):
        found = hit_rates(requests, capacity)
        columns = {**found.by_policy, "optimum": found.optimum}
        if i == 0:
            click.echo("capacity".rjust(10) + "".join(name.rjust(10) for name in columns))
        click.echo(f"{capacity:>10,}" + "".join(f"{rate:>10.4f}" for rate in columns.values()))
