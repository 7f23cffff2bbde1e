import gc

from stillhouse.processes.gc_tuning import rarely_collected


def test_the_collectors_own_pace_comes_back_with_the_last_block() -> None:
    before = gc.get_threshold()
    with rarely_collected():
        with rarely_collected():
            assert gc.get_threshold()[0] > 10_000
        assert gc.get_threshold()[0] > 10_000
    assert gc.get_threshold() == before
