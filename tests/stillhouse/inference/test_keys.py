from typing import Any

import pytest

from stillhouse.config import RolloutsConfig
from stillhouse.inference.keys import KeyForm, request_seed
from stillhouse.store import digest
from stillhouse.tools.calculator import calculator
from stillhouse.types import ToolSchema

SCHEMAS = [calculator.schema]


def rollout_key(
    prompt_id: str, index: int, identity: str, config: RolloutsConfig, schemas: list[ToolSchema], **metadata: Any
) -> str:
    return KeyForm(identity, config, schemas).key(prompt_id, index, **metadata)


KEY = rollout_key("p", 0, "m", RolloutsConfig(temperature=0.7), SCHEMAS)
STRUCTURED = RolloutsConfig(response_schema={"type": "integer"})


def key(config: RolloutsConfig, schemas: list[ToolSchema] = SCHEMAS) -> str:
    return rollout_key("p", 0, "m", config, schemas)


def test_a_key_stays_what_it_was_when_the_code_changes() -> None:
    # Answers already paid for are found by it: if this fails, everybody's journal is lost.
    assert KEY == "59f72a8e041f6dd1be06b4a445303f43674d5a308f3722ffe0f43eb58c617459"


def test_a_key_is_the_digest_of_one_object() -> None:
    config = RolloutsConfig(
        temperature=0.7, extra_body={"top_k": 5}, reasoning_effort="low", closing_answer=False, record_tokens=True
    )
    body = {
        "prompt_id": 'p"\u00e9',
        "prompt_metadata": digest({"a": 1}),
        "sample_index": 12,
        "model": "m",
        "system_prompt": None,
        "temperature": 0.7,
        "top_p": 1.0,
        "max_tokens": 2048,
        "max_turns": 10,
        "timeout_s": None,
        "seed": 0,
        "tools": SCHEMAS,
        "closing_answer": False,
        "reasoning_effort": "low",
        "extra_body": {"top_k": 5},
        "record_tokens": True,
    }
    form = KeyForm("m", config, SCHEMAS)
    assert form.key('p"\u00e9', 12, {"a": 1}) == digest(body)


@pytest.mark.parametrize(("field", "value"), {"num_samples": 9, "max_prompts": 5, "max_rollout_tokens": 1000}.items())
def test_how_much_is_sampled_and_at_what_cost_leaves_rollouts_what_they_are(field: str, value: object) -> None:
    assert key(RolloutsConfig.model_validate({"temperature": 0.7, field: value})) == KEY


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
        {"closing_answer": False},
        {"response_schema": {"type": "integer"}},
        {"reasoning_effort": "low"},
        {"extra_body": {"top_k": 5}},
    ],
)
def test_every_other_setting_of_sampling_is_another_rollout(change: dict[str, object]) -> None:
    assert key(RolloutsConfig.model_validate({"temperature": 0.7, **change})) != KEY


def test_a_setting_enters_only_where_it_changes_what_is_asked() -> None:
    plain = RolloutsConfig()
    assert key(RolloutsConfig(closing_answer=False), []) == key(plain, [])
    assert key(RolloutsConfig(temperature=0.7, max_corrections=3)) == KEY
    assert key(RolloutsConfig(temperature=1)) == key(RolloutsConfig(temperature=1.0))
    assert key(STRUCTURED.model_copy(update={"max_corrections": 3})) != key(STRUCTURED)


def test_what_is_left_to_the_model_is_not_in_the_key_and_a_temperature_alone_has_the_key_it_had_with_top_p_1() -> None:
    keys = [key(RolloutsConfig(temperature=one, top_p=p)) for one in (None, 0.7) for p in (None, 1.0, 0.9)]
    assert keys[3] == keys[4] == KEY
    assert len(set(keys)) == 5


def test_every_setting_is_either_in_the_key_or_known_to_be_left_out() -> None:
    in_key = {
        *("system_prompt", "temperature", "top_p", "max_tokens", "max_turns", "timeout_s", "seed", "record_tokens"),
        *("closing_answer", "response_schema", "max_corrections"),
        *("reasoning_effort", "extra_body", "record_top_k"),
    }
    left_out = {
        *("max_prompts", "num_samples", "trajectories_file"),
        *("max_rollout_tokens", "finish_reasons"),
    }
    assert set(RolloutsConfig.model_fields) == in_key | left_out


def test_model_prompt_sample_tools_metadata_and_what_is_recorded_each_make_another_rollout() -> None:
    config = RolloutsConfig()
    other: ToolSchema = {"type": "function", "function": {**calculator.schema["function"], "description": "Reckons."}}
    keys = {
        KEY,
        rollout_key("q", 0, "m", config, SCHEMAS),
        rollout_key("p", 1, "m", config, SCHEMAS),
        rollout_key("p", 0, "n", config, SCHEMAS),
        rollout_key("p", 0, "m", config, []),
        rollout_key("p", 0, "m", config, [other]),
        rollout_key("p", 0, "m", RolloutsConfig(record_tokens=True), SCHEMAS),
        rollout_key("p", 0, "m", RolloutsConfig(record_top_k=5), SCHEMAS),
        rollout_key("p", 0, "m", RolloutsConfig(record_top_k=20), SCHEMAS),
        rollout_key("p", 0, "m", config, SCHEMAS, metadata={}),
        rollout_key("p", 0, "m", config, SCHEMAS, metadata={"a": 1}),
    }
    assert len(keys) == 11


def test_each_request_has_a_seed_of_its_own_that_any_server_takes() -> None:
    seeds = {request_seed(0, key, turn) for key in ("a", "b") for turn in range(50)}
    assert len(seeds) == 100
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    assert request_seed(0, "a", 0) == request_seed(0, "a", 0) != request_seed(1, "a", 0)
    assert request_seed(None, "a", 0) is None
