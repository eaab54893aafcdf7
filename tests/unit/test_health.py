from gateway.health import HealthChecks
from gateway.wire.codes import Health


def two_checks() -> HealthChecks:
    checks = HealthChecks()
    checks.add("loop", is_critical=True, max_age_seconds=5.0, now=100.0)
    checks.add("admin", is_critical=False, max_age_seconds=10.0, now=100.0)
    return checks


def test_checks_hold_until_they_first_fail() -> None:
    assert two_checks().health(100.0) == (Health.HEALTHY, "")


def test_a_failed_critical_check_makes_unhealthy_and_any_other_degraded() -> None:
    checks = two_checks()

    checks.ran("admin", "it exited with 1", 101.0)
    assert checks.health(101.0) == (Health.DEGRADED, "it exited with 1")
    checks.ran("loop", "it turned over", 101.0)
    assert checks.health(101.0) == (Health.UNHEALTHY, "it turned over")
    checks.ran("loop", "", 102.0)
    checks.ran("admin", "", 102.0)
    assert checks.health(102.0) == (Health.HEALTHY, "")


def test_a_check_that_does_not_run_any_more_fails_by_its_age() -> None:
    checks = two_checks()

    assert checks.health(105.0)[0] is Health.HEALTHY
    health, reason = checks.health(105.1)
    assert health is Health.UNHEALTHY
    assert "loop has not run for 5.1 s" in reason


def test_time_in_which_the_process_did_not_run_is_no_age() -> None:
    checks = two_checks()

    checks.skip(60.0)

    assert checks.health(163.0)[0] is Health.HEALTHY
    assert checks.health(165.1)[0] is Health.UNHEALTHY
    assert checks.age_seconds("loop", 163.0) == 3.0


def test_readings_show_every_check() -> None:
    checks = two_checks()
    checks.ran("admin", "it exited with 1", 102.0)

    loop, admin = checks.readings(103.0)

    assert (loop.name, loop.ok, loop.critical, loop.age_seconds, loop.reason) == ("loop", True, True, 3.0, "")
    assert (admin.name, admin.ok, admin.critical) == ("admin", False, False)
    assert (admin.age_seconds, admin.reason) == (1.0, "it exited with 1")
