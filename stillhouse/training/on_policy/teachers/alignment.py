"""Aligns the log-probabilities of a teacher of another vocabulary with the student's tokens, by their bytes.

Within a turn student and teacher write the same bytes. The turn is split at every byte where a token of both ends. The
log-probability of such a span is of one event, its bytes given all bytes before it, and can be compared (GOLD,
https://huggingface.co/spaces/HuggingFaceH4/on-policy-distillation). The teacher's log-probability of a span is divided
among the student's tokens in it in proportion to their bytes: each span keeps its sum, and a student token that is a
span by itself has the exact value. rllm (rllm/trainer/distill/alignment.py) divides each teacher token evenly among the
student tokens that it overlaps, with the same sums.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate

from transformers import PreTrainedTokenizerBase

from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.training.model.token_bytes import token_bytes
from stillhouse.training.trajectories import sampled_runs
from stillhouse.types import Sample


@dataclass(frozen=True, slots=True)
class ByteAlignment:
    """Maps log-probabilities of the teacher's tokens to the student's."""

    student_sizes: Sequence[int]
    """Bytes of each of the student's tokens."""
    teacher_sizes: Sequence[int]
    ends: Set[int]
    """The student's end-of-turn tokens; each is compared with the teacher's end of turn."""

    @classmethod
    def between(
        cls, student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, ends: Set[int]
    ) -> "ByteAlignment":
        """Return the alignment of two tokenizers' tokens."""
        return cls(text_sizes(student), text_sizes(teacher), ends)

    def scores(self, request: Sample, scores: SequenceScores) -> SequenceScores:
        """See `Alignment`; a request without a view has the teacher's tokens."""
        if request.teacher_view is None:
            return scores
        return SequenceScores(self.align(request, request.teacher_view, scores.logprobs))

    def align(self, student: Sample, teacher: Sample, logprobs: Sequence[float]) -> list[float]:
        """Return the teacher's log-probabilities of the student's sampled tokens, from those of its own, in order.

        Raises ValueError if the numbers of turns differ.
        """
        remaining = iter(logprobs)
        aligned: list[float] = []
        for student_run, teacher_run in zip(sampled_runs(student), sampled_runs(teacher), strict=True):
            aligned += self._align_turn(student_run, teacher_run, [next(remaining) for _ in teacher_run])
        return aligned

    def _align_turn(self, student: Sequence[int], teacher: Sequence[int], logprobs: Sequence[float]) -> list[float]:
        if student[-1] in self.ends and len(student) > 1 and len(teacher) > 1:
            return [*self._align_turn(student[:-1], teacher[:-1], logprobs[:-1]), logprobs[-1]]
        student_sizes = _sizes(self.student_sizes, student)
        teacher_sizes = _sizes(self.teacher_sizes, teacher)
        aligned: list[float] = []
        first_student = first_teacher = 0
        for end_student, end_teacher in shared_ends(student_sizes, teacher_sizes):
            total = sum(logprobs[first_teacher:end_teacher])
            aligned += _shares(total, student_sizes[first_student:end_student])
            first_student, first_teacher = end_student, end_teacher
        return aligned


def shared_ends(sizes: Sequence[int], others: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ends of the smallest spans that hold the same bytes in both, as token counts; the last covers all.

    If the total sizes differ (a tokenizer that normalises text, part of a character), the turn is one span.
    """
    ends = {end: place for place, end in enumerate(accumulate(sizes), start=1)}
    other_ends = {end: place for place, end in enumerate(accumulate(others), start=1)}
    last = (len(sizes), len(others))
    is_same_text = sum(sizes) == sum(others)
    for end in sorted(ends.keys() & other_ends.keys()) if is_same_text else ():
        if (ends[end], other_ends[end]) != last:
            yield ends[end], other_ends[end]
    yield last


def text_sizes(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the bytes of each token's text; for special tokens, of their names."""
    sizes = token_bytes(tokenizer)
    for token_id, token in tokenizer.added_tokens_decoder.items():
        if token_id < len(sizes):
            sizes[token_id] = len(token.content.encode())
    return sizes


def _sizes(all_sizes: Sequence[int], tokens: Sequence[int]) -> list[int]:
    # Embedding rows beyond the vocabulary can be sampled and have no text.
    return [all_sizes[token] if token < len(all_sizes) else 0 for token in tokens]


def _shares(total: float, sizes: Sequence[int]) -> list[float]:
    num_bytes = sum(sizes)
    return [total * (size / num_bytes) if num_bytes else total / len(sizes) for size in sizes]
