import json
import logging
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
    ("figure", "start", "allowed", "bad", "said"),
    [
        ("mean_completion_tokens", 100.0, 295.0, 320.0, "length explosion: mean_completion_tokens is"),
        ("entropy", 0.8, 0.045, 0.03, "entropy collapse: entropy is"),
        ("truncated_share", 0.1, 0.5, 0.6, "truncation: truncated_share is"),
        ("teacher_kl", 0.5, 0.9, 1.2, "kl rising: teacher_kl is"),
    ],
)
def test_each_trouble_is_noticed_beyond_its_limit_and_not_before(
    figure: str, start: float, allowed: float, bad: float, said: str
) -> None:
    alarms = RolloutAlarms(stops=True)
    assert feed(alarms, figure, [start] * WINDOW + [allowed] * 3 * WINDOW) is None
    stopped = feed(alarms, figure, [bad] * WINDOW)
    assert stopped is not None
    assert alarms.reason_to_stop is not None
    assert alarms.reason_to_stop.startswith(said)
    assert f"was {start:.4g} over the first" in alarms.reason_to_stop
    assert alarms.reason_to_stop.endswith("on_policy.watch = warn trains on regardless")
    feed(alarms, figure, [start] * WINDOW)
    assert alarms.reason_to_stop is None


def test_a_kl_that_is_nearly_nothing_may_be_many_times_its_lowest() -> None:
    alarms = RolloutAlarms(stops=True)
    assert feed(alarms, "teacher_kl", [0.5] * WINDOW + [0.005] * WINDOW + [0.1] * 3 * WINDOW) is None
    assert feed(alarms, "teacher_kl", [0.3] * WINDOW) is not None


def test_a_kl_that_rises_at_once_is_compared_with_the_first_few() -> None:
    assert feed(RolloutAlarms(stops=True), "teacher_kl", [0.1] * 3 + [14.0] * WINDOW) == WINDOW - 1


def test_nothing_is_judged_before_there_is_a_start() -> None:
    alarms = RolloutAlarms(stops=True)
    assert feed(alarms, "truncated_share", [1.0] * (WINDOW - 1)) is None
    assert feed(alarms, "truncated_share", [1.0]) == 0


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
    whole, killed, continued = (RolloutAlarms(stops=True) for _ in range(3))
    expected = [(whole.observe({"mean_completion_tokens": value}), whole.reason_to_stop) for value in values]
    feed(killed, "mean_completion_tokens", values[:killed_at])
    continued.restore(json.loads(json.dumps(killed.state())))
    rest = [
        (continued.observe({"mean_completion_tokens": value}), continued.reason_to_stop) for value in values[killed_at:]
    ]
    assert rest == expected[killed_at:]
    assert rest[-1][1] is not None


def test_alarms_switched_on_in_a_training_that_had_none_begin_anew() -> None:
    alarms = alarms_of(OnPolicyConfig(watch="stop"))
    alarms.restore(alarms_of(OnPolicyConfig(watch="off")).state())
    assert feed(alarms, "truncated_share", [1.0] * WINDOW) == WINDOW - 1


def test_switched_off_nothing_is_seen() -> None:
    alarms = alarms_of(OnPolicyConfig(watch="off"))
    assert isinstance(alarms, Alarms)
    assert feed(alarms, "truncated_share", [1.0] * 3 * WINDOW) is None
