import pytest

from benchmarks.on_policy.settings import BEST, NAMES, trl_settings


@pytest.mark.parametrize("name", NAMES)
def test_settings_share_out_the_rows_of_a_step(name: str) -> None:
    settings = trl_settings(name, 16)
    assert settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] == 16


def test_the_best_settings_are_among_those_tried() -> None:
    assert set(BEST) <= set(NAMES)
