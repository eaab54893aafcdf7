"""How often what has not fired is asked: soon at first, ever more rarely, many together."""

import pytest

from gateway.device.patience import LONGEST_PAUSE_SECONDS, LONGEST_REST_SECONDS, REST_FACTOR, Patience


def asks(patience: Patience[str], seconds: float, began: float = 100.0) -> list[float]:
    """When somebody is asked, in so many seconds of a thread that sleeps as it is told."""
    now, times = began, []
    while now < began + seconds:
        if patience.take_due(now):
            times.append(now - began)
        pause = patience.pause(now)
        assert pause is not None
        now += max(pause, 1e-6)
    return times


@pytest.mark.parametrize("fires_after", [0.0005, 0.005, 0.05, 0.5, 5.0])
def test_what_fires_is_seen_soon_measured_by_how_long_it_took(fires_after: float) -> None:
    patience: Patience[str] = Patience()
    patience.begin("event", 100.0)

    seen = next(at for at in asks(patience, 2 * fires_after + 1) if at >= fires_after)

    assert seen - fires_after <= max(0.0003, min(0.06 * fires_after, LONGEST_PAUSE_SECONDS))


def test_a_hundred_that_do_not_fire_are_asked_together_and_rarely() -> None:
    patience: Patience[str] = Patience()
    for i in range(100):
        patience.begin(f"event-{i}", 100.0 - i / 10000)

    times = asks(patience, 10.0)

    assert len([at for at in times if at > 2.0]) <= 1.1 * 8.0 / (LONGEST_PAUSE_SECONDS / 2)


def test_what_is_new_is_asked_at_once_and_what_is_over_never() -> None:
    patience: Patience[str] = Patience()
    assert patience.pause(0.0) is None
    patience.begin("old", 0.0)
    assert patience.take_due(50.0) == ["old"]
    patience.begin("new", 50.01)
    assert patience.pause(50.01) == 0.0
    assert patience.take_due(50.01) == ["new"]
    patience.end("old")
    patience.end("old")
    assert patience.take_due(99.0) == ["new"]
    assert len(patience) == 1


def test_who_asks_rests_several_times_longer_than_it_asked() -> None:
    patience: Patience[str] = Patience()
    patience.begin("event", 0.0)
    patience.take_due(0.0)
    patience.asked(0.002)
    assert patience.pause(0.002) == pytest.approx(0.002 * REST_FACTOR)
    patience.take_due(1.0)
    patience.asked(3.0)
    assert patience.pause(3.0) == pytest.approx(LONGEST_REST_SECONDS)
