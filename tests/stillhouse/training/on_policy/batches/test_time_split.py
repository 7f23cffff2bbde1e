from stillhouse.training.on_policy.batches.time_split import TimeSplit


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_work_of_a_kind_adds_up() -> None:
    clock = Clock()
    split = TimeSplit(clock)
    clock.now += 1.0  # nobody's
    with split.of("sample"):
        clock.now += 2.0
    with split.of("score"):
        clock.now += 4.0
    with split.of("sample"):
        clock.now += 8.0
    clock.now += 32.0  # nobody's
    with split.of("reward"):
        clock.now += 64.0
    expected = {"sample_s": 10.0, "score_s": 4.0, "reward_s": 64.0, "sync_s": 0.0}
    assert split.metrics() == {**expected, "trainer_wait_s": 78.0}
