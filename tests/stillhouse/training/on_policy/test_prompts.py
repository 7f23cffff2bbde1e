from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stillhouse.config import OnPolicyConfig
from stillhouse.errors import ConfigError, InputError
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.training.on_policy.prompts import of_mixture, prompts_of_batch
from stillhouse.types import Prompt, PromptMetadata
from tests.stillhouse.training.sections import on_policy_of

NewMethod = Callable[..., OnPolicy]

MIXTURE = {"a": 2, "b": 0.5}


@pytest.fixture(scope="module")
def by_source(metadata: dict[str, PromptMetadata]) -> dict[str, PromptMetadata]:
    """Metadata of which five prompts are of source `a`, ten of `b` and one of neither."""
    sources = ["a"] * 5 + ["b"] * 10 + ["c"]
    named = zip(metadata.items(), sources, strict=True)
    return {key: replace(entry, metadata={"prompt_source": source}) for (key, entry), source in named}


def config(**settings: Any) -> OnPolicyConfig:
    return on_policy_of({"prompts_per_step": 8, **settings})


def test_each_batch_has_the_number_of_each_source_and_a_source_is_used_up_before_it_repeats(
    prompts: list[Prompt], by_source: dict[str, PromptMetadata]
) -> None:
    mixed = config(mixture=MIXTURE)
    used = of_mixture(prompts, by_source, mixed)
    assert len(used) == 15
    batches = [prompts_of_batch(used, by_source, mixed, index) for index in range(4)]
    sources = [[by_source[prompt.id].metadata["prompt_source"] for prompt in batch] for batch in batches]
    assert [(row.count("a"), row.count("b")) for row in sources] == [(2, 6)] * 4
    # Spread over the batch, so that substeps have their share.
    assert [row[:4].count("a") for row in sources] == [1] * 4
    ids = [[prompt.id for prompt in batch] for batch in batches]
    assert all(len(set(batch)) == 8 for batch in ids)
    first_pass = [
        prompt_id for batch in ids[:2] for prompt_id in batch if by_source[prompt_id].metadata["prompt_source"] == "a"
    ]
    assert len(set(first_pass)) == 4
    assert [prompt.id for prompt in prompts_of_batch(used, by_source, mixed, 2)] == ids[2]
    assert [prompt.id for prompt in prompts_of_batch(used, by_source, config(mixture=MIXTURE, seed=1), 2)] != ids[2]


def test_a_source_with_fewer_prompts_than_a_batch_takes_is_named(
    prompts: list[Prompt], by_source: dict[str, PromptMetadata]
) -> None:
    with pytest.raises(ConfigError, match=r"'c' in a batch = 2: .* 1"):
        of_mixture(prompts, by_source, config(mixture={"c": 2, "b": 0.5}))


def test_too_few_prompts_are_refused(new_method: NewMethod):
    with pytest.raises(ConfigError, match=r"prompts_per_step = 32: .* 16"):
        new_method(prompts_per_step=32)


def test_prompts_without_room_for_an_answer_are_left_out_before_training(
    new_method: NewMethod, prompts: list[Prompt], caplog: pytest.LogCaptureFixture
):
    long = Prompt("long", [{"role": "user", "content": "word " * 2000}])
    method = new_method(rows=[*prompts[:4], long], max_tokens=12)
    assert "1 of 5 prompts leave no room for an answer" in caplog.text
    assert "prompt long" in caplog.text
    assert {sample.prompt_id for sample in method.batch(0).samples} == {prompt.id for prompt in prompts[:4]}


def test_fewer_prompts_with_room_than_a_batch_takes_are_refused_with_the_longest(new_method: NewMethod):
    hinted = {"name": "t", "model": "embedded:teacher", "hint": "word " * 2000}
    causes: list[dict[str, Any]] = [{"teachers": [hinted]}, {"system_prompt": "Count. " * 200}]
    for cause in causes:
        with pytest.raises(InputError, match=r"16 of 16 .*prompts_per_step = 4"):
            new_method(**cause)


def test_prompts_over_the_limit_are_left_out_and_counted(new_method: NewMethod, caplog: pytest.LogCaptureFixture):
    samples = new_method(prompts_per_step=16, max_tokens=1, max_turns=1).batch(0).samples
    sizes = {sample.prompt_id: int(np.argmax(sample.loss_mask)) for sample in samples}
    limit = sorted(sizes.values())[9]
    method = new_method(max_prompt_tokens=limit, num_steps=3, max_tokens=12)
    num_dropped = sum(size > limit for size in sizes.values())
    assert num_dropped
    assert f"{num_dropped} of 16 prompts have more than on_policy.max_prompt_tokens = {limit} tokens" in caplog.text
    assert all(sizes[sample.prompt_id] <= limit for step in range(3) for sample in method.batch(step).samples)
    assert method.facts["dropped_prompts"] == num_dropped
    with pytest.raises(InputError, match=r"max_prompt_tokens = 1 .*prompts_per_step = 4"):
        new_method(max_prompt_tokens=1)
