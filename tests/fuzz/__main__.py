"""Fuzz under a coverage-guided fuzzer: ``make fuzz``, or ``python -m tests.fuzz --seconds 60 --only service``.

Each target runs in a process of its own (the fuzzer ends its process). What it finds on the way and covers something
new goes to ``--keep``; an input that breaks a promise is written there as ``crash-…``, shown, and is the exit status 1:
put it into ``tests/fuzz/corpus/TARGET/`` with the mend, where the tests run it for ever.
"""

import argparse
import subprocess
import sys
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
NAMES = ("wire_request", "wire_reply", "service", "pool")
MAX_INPUT_BYTES = 4096


def main() -> int:
    """The number of targets that broke, as far as an exit status goes: 0 or 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--only", choices=NAMES, help="one target instead of all")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="folder of what it finds")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        _fuzz(options.only, options.keep, options.seconds)
    broken = []
    for name in [options.only] if options.only else NAMES:
        found = options.keep / name
        found.mkdir(parents=True, exist_ok=True)
        print(
            f"-- {name}: {options.seconds} s, {len(list((CORPUS / name).iterdir()))} inputs to begin with", flush=True
        )
        command = [sys.executable, "-m", "tests.fuzz", "--inside", f"--only={name}"]
        command += [f"--seconds={options.seconds}", f"--keep={found}"]
        if subprocess.run(command, check=False).returncode:
            broken.append(name)
    print(f"broken: {', '.join(broken)}" if broken else "nothing broke")
    return bool(broken)


def _fuzz(name: str, found: Path, seconds: int) -> None:
    """Run one target until its time is over; does not return."""
    import atheris

    with atheris.instrument_imports(include=["gateway"]):  # our own branches guide it, not those of what we use
        from tests.fuzz.targets import TARGETS
    atheris.Setup(
        [
            sys.argv[0],
            str(found),
            str(CORPUS / name),
            f"-max_total_time={seconds}",
            f"-max_len={MAX_INPUT_BYTES}",
            f"-artifact_prefix={found}/",
            "-timeout=10",
            "-print_final_stats=1",
            "-verbosity=0",
        ],
        TARGETS[name],
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
