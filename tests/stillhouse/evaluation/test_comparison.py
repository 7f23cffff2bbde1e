from typing import Any

import orjson
import pytest
from pydantic import TypeAdapter

from stillhouse.evaluation.comparison import (
    MetricComparison,
    Values,
    compare_models,
    line_of,
    prompt_values,
)
from stillhouse.types import PromptMetadata, StopReason, Trajectory, Turn

CALL: Any = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
METADATA = {name: PromptMetadata(name, "5", name[0], "exact", {}) for name in ("a1", "a2", "b1")}
TAGS = {name: metadata.tag for name, metadata in METADATA.items()}


def trajectory(
    prompt: str, answer: str = "5", *, index: int = 0, stop: StopReason = StopReason.ANSWERED, tokens: int = 10
) -> Trajectory:
    messages: list[Any] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "content": answer},
    ]
    turns = [Turn("stop", {"completion_tokens": tokens}, 0.1, "m", num_tool_errors=index) for _ in range(2)]
    turns[1] = Turn("stop", {"completion_tokens": tokens}, 0.1, "m")
    return Trajectory(f"{prompt}/{index}", prompt, index, messages, [], turns, stop, "m")


def test_a_prompts_values_are_the_means_of_its_trajectories() -> None:
    rows = [
        trajectory("a1"),
        trajectory("a1", "6", index=1, tokens=20),
        trajectory("b1", stop=StopReason.LENGTH),
        trajectory("a2", stop=StopReason.ERROR),
    ]
    values = prompt_values(rows, METADATA, {"a1/0": 0.5, "a1/1": 0.25, "b1/0": None})
    assert values == {
        "accuracy": {"a1": 0.5, "b1": 0.0},
        "reward": {"a1": 0.375},
        "mean_completion_tokens": {"a1": 30.0, "b1": 20.0},
        "truncated_share": {"a1": 0.0, "b1": 1.0},
        "valid_tool_call_share": {"a1": 0.5, "b1": 1.0},
    }


def test_every_other_model_is_compared_with_the_reference_over_all_prompts_and_by_tag() -> None:
    models: dict[str, Values] = {
        "base": {"accuracy": {"a1": 1.0, "a2": 0.0, "b1": 1.0}, "truncated_share": {"a1": 1.0, "b1": 1.0}},
        "sft": {"accuracy": {"a1": 1.0, "a2": 1.0, "b1": 0.0}, "truncated_share": {"a1": 0.0, "b1": 1.0}},
        "teacher": {"accuracy": {"a2": 1.0}, "reward": {"a2": 1.0}},
    }
    lines = compare_models(models, "base", TAGS)
    assert [(line.model, line.metric, line.tag, line.difference.difference) for line in lines] == [
        ("sft", "accuracy", None, 0.0),
        ("sft", "accuracy", "a", 0.5),
        ("sft", "accuracy", "b", -1.0),
        ("sft", "truncated_share", None, -0.5),
        ("teacher", "accuracy", None, 1.0),
        ("teacher", "accuracy", "a", 1.0),
    ]
    assert line_of(lines, "teacher", "reward") is None
    assert line_of(lines, "sft", "truncated_share") is lines[3]


def test_fewer_tokens_are_a_gain() -> None:
    reference = {f"p{number}": 100.0 + number for number in range(20)}
    model = {prompt: tokens - 10.0 + int(prompt[1:]) % 3 for prompt, tokens in reference.items()}
    models: dict[str, Values] = {
        "base": {"mean_completion_tokens": reference, "reward": reference},
        "sft": {"mean_completion_tokens": model, "reward": model},
    }
    tokens, reward = compare_models(models, "base", {})
    assert tokens.difference == reward.difference
    gain, low, high = tokens.gain
    assert gain == pytest.approx(-tokens.difference.difference)
    assert 0 < low < gain < high
    assert reward.gain == (reward.difference.difference, reward.difference.low, reward.difference.high)
    assert (tokens.p_better, tokens.p_worse) == (reward.p_worse, reward.p_better)
    assert tokens.p_better < 0.001 < tokens.p_worse
    assert tokens.p == pytest.approx(2 * tokens.p_better)


def test_lines_are_read_back_as_they_were_written() -> None:
    models: dict[str, Values] = {"base": {"accuracy": {"a1": 1.0}}, "sft": {"accuracy": {"a1": 0.0}}}
    lines = compare_models(models, "base", TAGS)
    assert TypeAdapter(list[MetricComparison]).validate_json(orjson.dumps(lines)) == lines
