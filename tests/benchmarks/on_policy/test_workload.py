from typing import Any

import pytest

from benchmarks.on_policy.workload import PAIRS, prompts, wanted_tokens
from benchmarks.sft.workload import word_tokenizer


def completions(num_rows: int, *, equal: bool) -> list[int]:
    tokenizer: Any = word_tokenizer(PAIRS["tiny"].student.vocabulary)
    rows = prompts(num_rows, PAIRS["tiny"].student.vocabulary, seed=0, equal=equal)
    rendered = [
        tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=False) for row in rows
    ]
    return sorted(map(wanted_tokens, rendered))


def test_prompts_ask_for_log_normally_long_completions() -> None:
    lengths = completions(400, equal=False)
    assert lengths[200] == pytest.approx(96, rel=0.1)
    assert lengths[-20] > 5 * lengths[20]
    assert lengths[-1] <= 400


def test_equal_completions_are_as_long_as_unequal_ones_on_average() -> None:
    unequal = completions(400, equal=False)
    assert set(completions(50, equal=True)) == {115}
    assert sum(unequal) / len(unequal) == pytest.approx(115, rel=0.08)
