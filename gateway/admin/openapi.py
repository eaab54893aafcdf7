"""The admin API's description: ``python -m gateway.admin.openapi`` prints ``docs/openapi.json``.

Owns: how the description is written to the repository. Must not know: a running daemon. Runs at the command line only;
``make check`` compares its output with the file in the repository.
"""

import asyncio
import json
import sys
from pathlib import Path

from gateway.admin.app import control_routes
from gateway.admin.core import CoreClient
from gateway.admin.events import Feed


async def description() -> str:
    """The description as text. Nothing is asked of the sockets, which do not exist."""
    async with CoreClient(admin_socket=Path("admin.sock"), engine_socket=Path("gateway.sock")) as core:
        return json.dumps(control_routes(core, Feed(core), None).openapi(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(description()))
