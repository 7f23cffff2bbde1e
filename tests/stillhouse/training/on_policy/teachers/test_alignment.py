import math
import random

import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.next_turn import stop_token_ids
from stillhouse.training.on_policy.teachers.alignment import ByteAlignment, shared_ends, text_sizes
from stillhouse.types import Sample

TEXTS = [
    "Ben has 12 eggs. Ben finds 5 more.",
    "naïve café — 東京 😀 done",
    '<tool_call>\n{"name": "calculator"}\n</tool_call>',
    " spaces   and\n\nlines\t",
]


def sampled_alone(ids: list[int]) -> Sample:
    return Sample([1, *ids], [False] + [True] * len(ids), "p")


@pytest.mark.parametrize("text", TEXTS)
def test_a_turns_sum_is_the_teachers_and_so_is_that_of_every_shared_span(
    tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase, text: str
) -> None:
    chance = random.Random(0)
    alignment = ByteAlignment.between(tokenizer, other, stop_token_ids(tokenizer))
    end, other_end = tokenizer.eos_token_id, other.eos_token_id
    student = [*tokenizer(text, add_special_tokens=False)["input_ids"], end]
    teacher = [*other(text, add_special_tokens=False)["input_ids"], other_end]
    logprobs = [-chance.random() for _ in teacher]
    aligned = alignment.align(sampled_alone(student), sampled_alone(teacher), logprobs)
    assert len(aligned) == len(student)
    assert math.fsum(aligned) == pytest.approx(math.fsum(logprobs), abs=1e-12)
    assert aligned[-1] == logprobs[-1]
    sizes = [alignment.student_sizes[token] for token in student[:-1]]
    other_sizes = [alignment.teacher_sizes[token] for token in teacher[:-1]]
    assert sum(sizes) == sum(other_sizes) == len(text.encode())
    ends = list(shared_ends(sizes, other_sizes))
    assert len(ends) > 1
    for here, there in ends:
        assert math.fsum(aligned[:here]) == pytest.approx(math.fsum(logprobs[:there]), abs=1e-12)


def test_equal_tokens_have_the_teachers_own_values(tokenizer: PreTrainedTokenizerBase) -> None:
    alignment = ByteAlignment.between(tokenizer, tokenizer, stop_token_ids(tokenizer))
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        logprobs = [-0.1 * (place + 1) for place in range(len(ids))]
        assert alignment.align(sampled_alone(ids), sampled_alone(ids), logprobs) == logprobs


def test_spans_end_where_both_have_a_token_that_ends() -> None:
    assert list(shared_ends([2, 3, 1], [1, 1, 4])) == [(1, 2), (3, 3)]
    assert list(shared_ends([6], [1, 2, 3])) == [(1, 3)]
    assert list(shared_ends([2, 2], [3, 2])) == [(2, 2)]  # other bytes: one span
    assert list(shared_ends([1, 0, 1], [1, 1])) == [(2, 1), (3, 2)]


def test_a_spans_value_is_shared_out_by_bytes() -> None:
    alignment = ByteAlignment([0] * 5 + [3, 1], [0] * 8 + [4], ends=frozenset())
    assert alignment.align(sampled_alone([5, 6]), sampled_alone([8]), [-4.0]) == [-3.0, -1.0]


def test_turns_are_aligned_one_by_one() -> None:
    alignment = ByteAlignment([0] * 5 + [2, 1], [0] * 8 + [1, 3], ends=frozenset())
    student = Sample([1, 5, 6, 2, 6], [False, True, True, False, True], "p")
    teacher = Sample([1, 9, 3, 3, 8], [False, True, False, False, True], "p")
    assert alignment.align(student, teacher, [-3.0, -0.5]) == [-2.0, -1.0, -0.5]
    with pytest.raises(ValueError, match="zip"):
        alignment.align(student, sampled_alone([9]), [-3.0])


def test_special_tokens_write_their_names(tokenizer: PreTrainedTokenizerBase) -> None:
    assert text_sizes(tokenizer)[tokenizer.eos_token_id] == len(tokenizer.eos_token)
