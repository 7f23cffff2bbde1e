from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import OnPolicyConfig
from stillhouse.errors import ConfigError
from stillhouse.store.records import write_jsonl
from stillhouse.training.on_policy.prompts import of_mixture, prompts_of_batch, read_student_prompts
from stillhouse.types import Prompt, PromptMetadata

MIXTURE = [{"source": "a", "num_prompts": 2}, {"source": "b", "weight": 1.0}]


@pytest.fixture(scope="module")
def by_source(metadata: dict[str, PromptMetadata]) -> dict[str, PromptMetadata]:
    """Metadata of which five prompts are of source `a`, ten of `b` and one of neither."""
    sources = ["a"] * 5 + ["b"] * 10 + ["c"]
    named = zip(metadata.items(), sources, strict=True)
    return {key: replace(entry, metadata={"prompt_source": source}) for (key, entry), source in named}


def config(**settings: Any) -> OnPolicyConfig:
    return OnPolicyConfig.model_validate({"prompts_per_step": 8, **settings})


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
    mixture = [{"source": "c", "num_prompts": 2}, {"source": "b", "weight": 1}]
    with pytest.raises(ConfigError, match=r"prompts of 'c' in a batch = 2: expected at most .* training prompts, 1"):
        of_mixture(prompts, by_source, config(mixture=mixture))


def test_a_prefix_stands_before_the_prompt_and_after_its_system_message(tmp_path: Path) -> None:
    question = {"role": "user", "content": "1 + 2?"}
    system = {"role": "system", "content": "Count."}
    write_jsonl(tmp_path / "prompts.jsonl", [Prompt("plain", [question]), Prompt("system", [system, question])])
    shown = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    plain, with_system = read_student_prompts(tmp_path / "prompts.jsonl", config(conversation_prefix=shown))
    assert (plain.id, plain.messages) == ("plain", [*shown, question])
    assert with_system.messages == [system, *shown, question]
