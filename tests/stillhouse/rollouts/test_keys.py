import pytest

from stillhouse.config import RolloutsConfig
from stillhouse.rollouts.keys import request_seed, rollout_key
from stillhouse.tools.calculator import calculator
from stillhouse.types import ToolSchema

SCHEMAS = [calculator.schema]
KEY = rollout_key("p", 0, "m", RolloutsConfig(), SCHEMAS)


def test_a_key_stays_what_it_was_when_the_code_changes() -> None:
    # Answers already paid for are found by it: if this fails, everybody's journal is lost.
    assert KEY == "59f72a8e041f6dd1be06b4a445303f43674d5a308f3722ffe0f43eb58c617459"


def test_more_samples_and_another_failure_budget_are_the_same_rollouts() -> None:
    assert rollout_key("p", 0, "m", RolloutsConfig(num_samples=9, failure_budget=0.5), SCHEMAS) == KEY


@pytest.mark.parametrize(
    "change",
    [
        {"system_prompt": "Be brief."},
        {"temperature": 0.1},
        {"top_p": 0.9},
        {"max_tokens": 7},
        {"max_turns": 3},
        {"timeout_s": 9.0},
        {"seed": 1},
        {"seed": None},
    ],
)
def test_every_other_setting_of_sampling_is_another_rollout(change: dict[str, object]) -> None:
    assert rollout_key("p", 0, "m", RolloutsConfig(**change), SCHEMAS) != KEY  # type: ignore[arg-type]


def test_every_setting_is_either_in_the_key_or_known_to_be_left_out() -> None:
    in_key = {"system_prompt", "temperature", "top_p", "max_tokens", "max_turns", "timeout_s", "seed"}
    assert set(RolloutsConfig.model_fields) == in_key | {"max_prompts", "num_samples", "failure_budget"}


def test_model_prompt_sample_tools_and_recorded_tokens_each_make_another_rollout() -> None:
    config = RolloutsConfig()
    other: ToolSchema = {"type": "function", "function": {**calculator.schema["function"], "description": "Reckons."}}
    keys = {
        KEY,
        rollout_key("q", 0, "m", config, SCHEMAS),
        rollout_key("p", 1, "m", config, SCHEMAS),
        rollout_key("p", 0, "n", config, SCHEMAS),
        rollout_key("p", 0, "m", config, []),
        rollout_key("p", 0, "m", config, [other]),
        rollout_key("p", 0, "m", config, SCHEMAS, record_tokens=True),
    }
    assert len(keys) == 7


def test_whole_numbers_in_a_config_are_the_same_temperature() -> None:
    one, two = RolloutsConfig(temperature=1), RolloutsConfig(temperature=1.0)
    assert rollout_key("p", 0, "m", one, []) == rollout_key("p", 0, "m", two, [])


def test_each_request_has_a_seed_of_its_own_that_any_server_takes() -> None:
    seeds = {request_seed(0, key, turn) for key in ("a", "b") for turn in range(50)}
    assert len(seeds) == 100
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    assert request_seed(0, "a", 0) == request_seed(0, "a", 0) != request_seed(1, "a", 0)
    assert request_seed(None, "a", 0) is None
