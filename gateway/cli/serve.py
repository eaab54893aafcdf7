"""``kvgate serve``: this process becomes the core.

Owns: the flags. Must not know: what the settings do. Runs on the main thread, which the daemon then takes over.
"""

import os
import sys

import click

from gateway.config import ConfigError, load
from gateway.daemon import run


@click.command()
@click.option(
    "--run-dir", metavar="DIR", help="Directory shared with engines, on tmpfs. Default: a new one in /dev/shm."
)
@click.option("--admin-dir", metavar="DIR", help="Directory of the admin socket. Default: RUN_DIR.admin.")
@click.option("--pool-size", metavar="SIZE", help="Bytes of the pool, for instance 4GiB.")
@click.option("--eviction-policy", metavar="lfu|lru", help="What goes first when the pool is full. Default: lfu.")
@click.option("--admin", metavar="HOST:PORT", help="Where the admin API listens. Default: 127.0.0.1:9480.")
@click.option("--probe", metavar="HOST:PORT", help="A second listener with /livez, /readyz and /metrics only.")
@click.option("--config", metavar="FILE", envvar="KVGATE_CONFIG", help="A TOML file of settings.")
def serve(config: str | None, **flags: str | None) -> None:
    """Run the gateway: the core process and its admin process.

    Every setting can also be given as a KVGATE_ variable or in the TOML file; a flag beats the variable, the variable
    beats the file. One line of JSON on stdout says when it is ready; logs go to stderr.
    """
    try:
        settings = load(flags, os.environ, config)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    sys.exit(run(settings))
