import json
import logging
import re
from collections.abc import Iterable

import pytest

from stillhouse.config import OnPolicyConfig
from stillhouse.training.loop.stopping import Alarms
from stillhouse.training.on_policy.monitoring.alarms import WINDOW, RolloutAlarms, alarms_of


def feed(alarms: Alarms, figure: str, values: Iterable[float]) -> int | None:
    """The place of the value at which an alarm first asked to stop."""
    stopped = None
    for place, value in enumerate(values):
        alarms.observe({figure: value})
        if stopped is None and alarms.reason_to_stop is not None:
            stopped = place
    return stopped


@pytest.mark.parametrize(
    ("figure", "start", "allowed", "bad", "reason"),
    [
        ("mean_completion_tokens", 100.0, 295.0, 320.0, "length explosion: mean_completion_tokens is"),
        ("entropy", 0.8, 0.045, 0.03, "entropy collapse: entropy is"),
        ("truncated_share", 0.1, 0.5, 0.6, "truncation: truncated_share is"),
        ("teacher_kl", 0.5, 0.9, 1.2, "kl rising: teacher_kl is"),
    ],
)
def test_each_trouble_is_noticed_beyond_its_limit_and_not_before(
    figure: str, start: float, allowed: float, bad: float, reason: str
) -> None:
    alarms = RolloutAlarms(stops=True)
    assert feed(alarms, figure, [start] * WINDOW + [allowed] * 3 * WINDOW) is None
    assert feed(alarms, figure, [bad] * WINDOW) is not None
    full = rf"{reason}.* was {start:.4g} over the first.*on_policy\.watch = warn trains on regardless"
    assert re.fullmatch(full, alarms.reason_to_stop or "", re.DOTALL)
    feed(alarms, figure, [start] * WINDOW)
    assert alarms.reason_to_stop is None


def test_a_kl_that_is_nearly_nothing_may_be_many_times_its_lowest() -> None:
    alarms = RolloutAlarms(stops=True)
    assert feed(alarms, "teacher_kl", [0.5] * WINDOW + [0.005] * WINDOW + [0.1] * 3 * WINDOW) is None
    assert feed(alarms, "teacher_kl", [0.3] * WINDOW) is not None


@pytest.mark.parametrize(
    ("figure", "values"), [("teacher_kl", [0.1] * 3 + [14.0] * WINDOW), ("truncated_share", [1.0] * 2 * WINDOW)]
)
def test_the_first_window_is_the_start_and_is_judged_when_it_ends(figure: str, values: list[float]) -> None:
    assert feed(RolloutAlarms(stops=True), figure, values) == WINDOW - 1


def test_a_warning_is_given_once_and_the_metric_says_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    alarms = RolloutAlarms(stops=False)
    with caplog.at_level(logging.WARNING):
        marks = [alarms.observe({"truncated_share": 1.0 if step < 20 else 0.0}) for step in range(40)]
    assert alarms.reason_to_stop is None
    assert len(caplog.records) == 1
    assert marks[WINDOW - 2] == {}
    assert marks[WINDOW - 1] == marks[19] == {"alarm/truncation": 1.0}
    assert marks[39] == {"alarm/truncation": 0.0}


@pytest.mark.parametrize("killed_at", [3, 12, 25])
def test_alarms_that_are_continued_say_what_uninterrupted_ones_say(killed_at: int) -> None:
    values = [100.0 + 10.0 * step + 1 / 3 for step in range(60)]
    uninterrupted, killed, continued = (RolloutAlarms(stops=True) for _ in range(3))

    def observed(alarms: Alarms, values: Iterable[float]) -> list[tuple[dict[str, float], str | None]]:
        return [(alarms.observe({"mean_completion_tokens": value}), alarms.reason_to_stop) for value in values]

    expected = observed(uninterrupted, values)
    observed(killed, values[:killed_at])
    continued.restore(json.loads(json.dumps(killed.state())))
    assert observed(continued, values[killed_at:]) == expected[killed_at:]
    assert expected[-1][1] is not None


def test_alarms_switched_off_notice_nothing_and_begin_anew_when_switched_on() -> None:
    off, on = (alarms_of(OnPolicyConfig(watch=watch)) for watch in ("off", "stop"))
    assert feed(off, "truncated_share", [1.0] * 3 * WINDOW) is None
    on.restore(off.state())
    assert feed(on, "truncated_share", [1.0] * WINDOW) == WINDOW - 1
