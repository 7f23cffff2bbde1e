"""Log-probabilities of a teacher with tokens of its own, by the bytes that tokens stand for.

Within a turn student and teacher write the same bytes. The turn falls into the smallest spans at whose ends both have
a token that ends there. In a span the sums of log-probabilities of both are those of one event, its bytes after all
before it, and can be compared (GOLD, https://huggingface.co/spaces/HuggingFaceH4/on-policy-distillation). What the
teacher gives a span is shared out over the student's tokens in it by their bytes: so each span's sum is the teacher's
own, and a student token that is a span by itself has the exact value. rllm (rllm/trainer/distill/alignment.py) shares
each teacher token out evenly over the student tokens that it touches, which has the same sums.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate

from transformers import PreTrainedTokenizerBase

from stillhouse.training.model.token_bytes import token_bytes
from stillhouse.training.on_policy.masks import sampled_runs
from stillhouse.training.on_policy.scored import TeacherView


@dataclass(frozen=True, slots=True)
class ByteAlignment:
    """From the teacher's tokens to the student's.

    Args:
        student_sizes: bytes of each of the student's tokens.
        teacher_sizes: bytes of each of the teacher's tokens.
        ends: the student's tokens that end a turn; each is compared with the one that ends the teacher's turn.
    """

    student_sizes: Sequence[int]
    teacher_sizes: Sequence[int]
    ends: Set[int]

    @classmethod
    def between(
        cls, student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, ends: Set[int]
    ) -> "ByteAlignment":
        """The alignment of two tokenizers' tokens."""
        return cls(text_sizes(student), text_sizes(teacher), ends)

    def align(self, student: TeacherView, teacher: TeacherView, logprobs: Sequence[float]) -> list[float]:
        """The teacher's log-probabilities of the student's sampled tokens, in order.

        Args:
            student: the student's tokens, and which of them it sampled.
            teacher: the same turns in the teacher's tokens, and which of them stand for sampled ones.
            logprobs: of the latter, in order.

        Raises:
            ValueError: the two have another number of turns.
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
    """Ends of the smallest spans with the same bytes in both, as numbers of tokens up to them; the last is all of both.

    Where the sizes do not add up to the same (a tokenizer that changes its text, half a character), everything behind
    the last shared end is one span.
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
    """Bytes that each token writes when it is sampled as text; special tokens write their names."""
    sizes = token_bytes(tokenizer)
    for token_id, token in tokenizer.added_tokens_decoder.items():
        if token_id < len(sizes):
            sizes[token_id] = len(token.content.encode())
    return sizes


def _sizes(known: Sequence[int], tokens: Sequence[int]) -> list[int]:
    # Rows of an embedding beyond the vocabulary can be sampled, and write nothing.
    return [known[token] if token < len(known) else 0 for token in tokens]


def _shares(total: float, sizes: Sequence[int]) -> list[float]:
    whole = sum(sizes)
    return [total * (size / whole) if whole else total / len(sizes) for size in sizes]
