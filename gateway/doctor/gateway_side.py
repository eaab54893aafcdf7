"""All checks of one gateway, as its operator runs them beside it.

Owns: which checks, in which order, and what each needs of the others. Must not know: how findings are shown. Nothing is
changed; it takes a few seconds at most, whether the daemon lives, hangs or is dead. Runs on the caller's thread.
"""

from pathlib import Path

from gateway.config import GatewayConfig
from gateway.doctor import answers, places
from gateway.doctor import pool as pool_checks
from gateway.doctor.finding import Finding, Verdict, failed, ok, skipped, warning
from gateway.pool.format import PoolFormatError
from gateway.run_dir import ADMIN_FACTS, ADMIN_SOCKET, POOL, SOCKET

_OF_RUN_DIR = ("file_system", "space", "memory_limit", "pool", "locks")


def examine(settings: GatewayConfig, complaint: str = "") -> list[Finding]:
    """Every check.

    Args:
        settings: name the directories, and say what a start would want.
        complaint: why the settings of this environment are refused, where they are; ``settings`` are defaults then.
    """
    run_dir, admin_dir = directories(settings)
    pool = run_dir / POOL
    start = f"start the gateway: kvgate serve --run-dir {run_dir}"
    again = f"{start}, and the settings it had: with another pool_size the cache is lost"
    usable = places.check_run_dir(run_dir, start)
    found = [
        _check_settings(settings, complaint),
        usable,
        _check_admin_dir(admin_dir, usable),
        places.check_socket_paths(run_dir / SOCKET, admin_dir / ADMIN_SOCKET),
    ]
    if usable.verdict is not Verdict.FAILED:
        found += [
            places.check_file_system(run_dir),
            places.check_space(run_dir, pool, settings.pool_size),
            places.check_memory_limits(pool, settings.pool_size),
            pool_checks.check_pool(pool),
            pool_checks.check_locks(pool, again),
        ]
    else:
        found += [skipped(name, f"{run_dir} cannot be used") for name in _OF_RUN_DIR]
    is_there = bool(pool_checks.is_daemon_there(pool))
    found += answers.check_engine_socket(run_dir / SOCKET, is_daemon_there=is_there, pool_id=pool_id(pool))
    found.append(answers.check_operator_socket(admin_dir / ADMIN_SOCKET, is_daemon_there=is_there))
    found.append(answers.check_admin_api(admin_dir / ADMIN_FACTS, settings.admin, is_daemon_there=is_there))
    if settings.probe:
        found.append(answers.check_probe(settings.probe, is_daemon_there=is_there))
    return found


def directories(settings: GatewayConfig) -> tuple[Path, Path]:
    """The run directory and the admin directory that the settings name."""
    run_dir = Path(settings.run_dir).absolute()
    return run_dir, Path(settings.admin_dir).absolute() if settings.admin_dir else Path(f"{run_dir}.admin")


def pool_id(pool: Path) -> bytes | None:
    """The id of the pool file; None: it cannot be read."""
    try:
        return pool_checks.read_page(pool).pool_id
    except (OSError, PoolFormatError):
        return None


def _check_admin_dir(admin_dir: Path, run_dir: Finding) -> Finding:
    if run_dir.verdict is Verdict.FAILED and not admin_dir.exists():
        return skipped("admin_dir", "there is no gateway yet")
    return places.check_admin_dir(admin_dir)


def _check_settings(settings: GatewayConfig, complaint: str) -> Finding:
    if complaint:
        return failed("settings", complaint, "correct it: kvgate serve would refuse it as well")
    if settings.unknown_variables:
        names = ", ".join(settings.unknown_variables)
        return warning("settings", f"nobody reads {names}", "correct the name, or unset the variable")
    return ok("settings", "flags, environment and file can be read; as this command sees them")
