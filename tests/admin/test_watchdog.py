"""When a silent core is hung: the count alone, with the clock passed in."""

from gateway.admin.watchdog import BEAT_SECONDS, MAX_LATE_SECONDS, SilenceCount, Verdict

LIMIT = 5.0


def test_a_core_that_answers_is_never_hung() -> None:
    count = SilenceCount(LIMIT, now=0.0)
    assert {count.beat(now * BEAT_SECONDS, answered=True) for now in range(1, 100)} == {Verdict.FINE}


def test_a_core_silent_for_the_limit_is_hung_and_not_before() -> None:
    count = SilenceCount(LIMIT, now=0.0)
    verdicts = [count.beat(float(now), answered=False) for now in range(1, 6)]
    assert verdicts == [Verdict.SILENT] * 4 + [Verdict.HUNG]
    assert count.silent_seconds(5.0) == 5.0


def test_one_answer_begins_the_count_anew() -> None:
    count = SilenceCount(LIMIT, now=0.0)
    for now in range(1, 5):
        count.beat(float(now), answered=False)
    assert count.beat(5.0, answered=True) is Verdict.FINE
    assert [count.beat(float(now), answered=False) for now in range(6, 11)][-2:] == [Verdict.SILENT, Verdict.HUNG]


def test_a_late_beat_says_nothing_about_the_core() -> None:
    count = SilenceCount(LIMIT, now=0.0)
    count.beat(1.0, answered=False)
    assert count.beat(1.0 + 3600.0, answered=False) is Verdict.STARTED_AGAIN
    assert count.silent_seconds(3601.0) == 0.0
    assert count.beat(3602.0, answered=False) is Verdict.SILENT


def test_a_beat_late_by_no_more_than_allowed_counts() -> None:
    count = SilenceCount(LIMIT, now=0.0)
    assert count.beat(BEAT_SECONDS + MAX_LATE_SECONDS, answered=False) is Verdict.SILENT
    assert count.silent_seconds(2.0) == 2.0
