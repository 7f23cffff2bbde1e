import pytest

from benchmarks.sft.settings import BEST, NAMES, trl_settings


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("packed", "defaults")])
def test_settings_share_out_the_rows_of_a_step(name: str) -> None:
    settings = trl_settings(name, 8)
    assert settings["per_device_train_batch_size"] * settings.get("gradient_accumulation_steps", 1) == 8


def test_packed_bins_hold_about_the_tokens_of_as_many_rows() -> None:
    assert trl_settings("packed", 8)["gradient_accumulation_steps"] == 2
    assert trl_settings("packed", 32)["gradient_accumulation_steps"] == 9


def test_the_best_settings_are_among_those_tried() -> None:
    assert set(BEST) <= set(NAMES)
