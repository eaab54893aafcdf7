"""The other end of ``tests.engine.engine``: a process that does what it is told, a line of JSON at a time.

Each line on its standard input names a method of one object and its arguments; each is answered with one line on its
standard output. What vLLM itself has to say goes to standard error.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol


class Told(Protocol):
    """What does what it is told."""

    def close(self) -> None:
        """There is nothing more to do."""


def serve(make: Callable[[dict[str, Any]], Told]) -> None:
    """Make the object from the settings on the command line, and do what it is told until the input ends.

    The input also ends when whoever wrote to it is gone, however it went.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer
    told = make(json.loads(sys.argv[1]))
    print(json.dumps({"answer": "ready"}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            reply = {"answer": getattr(told, command.pop("do"))(**command)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=answers, flush=True)
    told.close()
