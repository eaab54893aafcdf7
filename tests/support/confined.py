"""A gateway's commands or an engine, confined: another user, other groups, or inside another namespace.

``python -m tests.support.confined [--user UID] [--groups GID,…] kvgate ARGUMENTS…``: a command of kvgate.

``python -m tests.support.confined [--user UID] [--groups GID,…] engine RUN_DIR``: an engine that stores and loads a
prompt when it becomes healthy, or gives up at its first complaint; it prints a line of JSON.

The process begins as whoever starts it, imports all it needs (another user may not be able to read the interpreter's
files), and only then becomes the other.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path


def command(arguments: list[str]) -> Callable[[], None]:
    import gateway.cli.main
    import gateway.cli.operate
    import gateway.cli.serve

    sys.argv[1:] = arguments
    return gateway.cli.main.main


def engine(arguments: list[str]) -> Callable[[], None]:
    from adapter import State
    from tests.support.engine import Engine, blocks, tokens
    from tests.support.poll import until

    def stores_and_loads(engine: Engine) -> bool:
        """Whether bytes that were stored come back into other blocks."""
        engine.store_and_wait("r", tokens(2), blocks(2), seed=5)
        stored = engine.read(blocks(2))
        return engine.load("q", tokens(2), blocks(2, 8)) == set() and engine.read(blocks(2, 8)) == stored

    def run() -> None:
        complaints: list[str] = []
        listener = logging.Handler(logging.WARNING)
        listener.emit = lambda record: complaints.append(record.getMessage())
        logging.getLogger("kvgate.adapter").addHandler(listener)
        with Engine(Path(arguments[0]), name="confined") as engine:
            until(lambda: complaints or engine.is_healthy(), 60, "healthy, or a complaint")
            told = {
                "healthy": not complaints and engine.worker.state is State.HEALTHY,
                "loaded": not complaints and stores_and_loads(engine),
                "found": engine.scheduler.lookup("again", tokens(2), timeout_seconds=5) if complaints else 0,
                "complaints": complaints,
            }
        sys.stdout.write(json.dumps(told) + "\n")

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--user", type=int)
    parser.add_argument("--groups", default="")
    parser.add_argument("what", choices=["kvgate", "engine"])
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    wanted = parser.parse_args()
    run = (engine if wanted.what == "engine" else command)(wanted.rest)
    if wanted.user is not None:
        os.setgroups([int(group) for group in wanted.groups.split(",") if group])
        os.setgid(wanted.user)
        os.setuid(wanted.user)
    run()


if __name__ == "__main__":
    main()
