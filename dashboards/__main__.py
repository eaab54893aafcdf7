"""Writes what is generated: ``python -m dashboards``, or with ``--check`` compares it with what is there.

Owns: which file comes from what. Must not know: what stands in them. Runs at the command line only: ``make fix`` and
``make check``.
"""

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from dashboards import cache, grafana, latency, overview, rules, transfers

FOLDER = Path(__file__).parent
BOARDS = (overview.BOARD, transfers.BOARD, cache.BOARD, latency.BOARD)


def files() -> Iterator[tuple[Path, str]]:
    """Every generated file with its text.

    Raises:
        UnknownNameError: a query uses a name that does not exist.
    """
    yield FOLDER / "rules" / "kvgate.yml", rules.render()
    families = rules.families()
    for board in BOARDS:
        yield FOLDER / "grafana" / "dashboards" / f"{board.uid}.json", grafana.render(board, families)


def main(arguments: list[str]) -> int:
    """1: ``--check`` found a difference, which it has shown."""
    differs = False
    for path, text in files():
        if arguments == ["--check"]:
            there = path.read_text(encoding="utf-8") if path.exists() else ""
            name = str(path.relative_to(FOLDER.parent))
            lines = list(difflib.unified_diff(there.splitlines(), text.splitlines(), name, "generated", lineterm=""))
            differs |= bool(lines)
            sys.stdout.writelines(f"{line}\n" for line in lines)
        else:
            path.write_text(text, encoding="utf-8")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
