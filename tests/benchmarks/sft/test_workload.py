from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.sft.workload import MAX_TOKENS, MEAN_TOKENS, SHAPES, conversations, word_tokenizer

Rendered = dict[str, list[int]]


@pytest.fixture(scope="module")
def rendered() -> Sequence[Rendered]:
    tokenizer: Any = word_tokenizer(SHAPES["narrow"].vocabulary)
    return [
        tokenizer.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=True)
        for row in conversations(400, SHAPES["narrow"].vocabulary, seed=0)
    ]


def test_conversations_differ_in_length_and_about_half_is_the_assistants(rendered: Sequence[Rendered]) -> None:
    lengths = sorted(len(row["input_ids"]) for row in rendered)
    assert sum(lengths) / len(lengths) == pytest.approx(MEAN_TOKENS, rel=0.05)
    assert lengths[-1] <= MAX_TOKENS
    assert lengths[-40] > 4 * lengths[40]
    learnt = sum(sum(row["assistant_masks"]) for row in rendered)
    assert 0.4 < learnt / sum(lengths) < 0.55


def test_a_seed_gives_the_same_conversations() -> None:
    first, again, other = (list(conversations(3, 512, seed)) for seed in (1, 1, 2))
    assert first == again != other
