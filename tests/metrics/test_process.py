"""Reading /proc."""

import os
from pathlib import Path

from gateway.metrics.process import read_process, stuck_where

GONE = 2**22 + 1  # above any pid_max


def test_reads_this_process() -> None:
    stats = read_process(os.getpid())
    assert stats is not None
    assert stats.resident_bytes > 1 << 20
    assert stats.threads >= 1
    assert stats.open_fds >= 1
    assert stats.cpu_seconds > 0


def test_a_process_that_is_gone_is_none() -> None:
    assert read_process(GONE) is None
    assert stuck_where(GONE) == "gone"


def test_a_command_with_spaces_and_parentheses_does_not_shift_fields(tmp_path: Path) -> None:
    directory = tmp_path / "7"
    (directory / "fd").mkdir(parents=True)
    (directory / "fd" / "0").touch()
    ticks = os.sysconf("SC_CLK_TCK")
    fields = ["S", *(["0"] * 10), str(ticks), str(2 * ticks), *(["0"] * 4), "5", "0", "0", "0", "3", *(["0"] * 20)]
    (directory / "stat").write_text(f"7 (a ) (b) {' '.join(fields)}\n")
    stats = read_process(7, tmp_path)
    assert stats is not None
    assert stats.cpu_seconds == 3.0
    assert stats.threads == 5
    assert stats.resident_bytes == 3 * os.sysconf("SC_PAGE_SIZE")
    assert stats.open_fds == 1


def test_where_a_process_is_stuck_names_state_and_kernel_function(tmp_path: Path) -> None:
    directory = tmp_path / "7"
    directory.mkdir()
    (directory / "status").write_text("Name:\tx\nState:\tD (disk sleep)\n")
    (directory / "wchan").write_text("io_schedule")
    assert stuck_where(7, tmp_path) == "D (disk sleep) in io_schedule"
    (directory / "wchan").write_text("0")
    assert stuck_where(7, tmp_path) == "D (disk sleep)"
