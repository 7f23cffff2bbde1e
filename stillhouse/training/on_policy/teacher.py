"""The teacher of on-policy distillation: a local model that scores the tokens the student sampled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import OnPolicyConfig, RuntimeConfig
from stillhouse.errors import TrainingError
from stillhouse.serving.models import load_model
from stillhouse.serving.score import score_tokens

_SHOWN_TOKENS = 5


@dataclass(frozen=True, slots=True)
class Teacher:
    """A frozen model that shares the student's vocabulary."""

    model: PreTrainedModel
    config: OnPolicyConfig

    def score(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        """The teacher's log-probability of each token after those before it, at the sampling temperature; 0.0 first."""
        return score_tokens(
            self.model,
            list(sequences),
            temperature=self.config.temperature,
            microbatch_tokens=self.config.microbatch_tokens,
        )


def load_teacher(
    ref: str,
    student_tokenizer: PreTrainedTokenizerBase,
    config: OnPolicyConfig,
    runtime: RuntimeConfig,
    dtype: Literal["float32", "bfloat16"],
) -> Teacher:
    """The teacher, checked against the student's vocabulary before anything is sampled.

    Raises:
        TrainingError: the vocabularies differ, so that an id means two different tokens.
        ConfigError: the model cannot be loaded.
    """
    check_vocabularies(ref, load_tokenizer(ref), student_tokenizer)
    return Teacher(load_model(ref, device=runtime.device, dtype=dtype), config)


def check_vocabularies(teacher_ref: str, teacher: PreTrainedTokenizerBase, student: PreTrainedTokenizerBase) -> None:
    """Raises TrainingError, with examples, unless every token has the same id for teacher and student."""
    teacher_ids, student_ids = teacher.get_vocab(), student.get_vocab()
    differing = sorted(
        token for token in teacher_ids.keys() | student_ids.keys() if teacher_ids.get(token) != student_ids.get(token)
    )
    if differing:
        shown = ", ".join(
            f"{token!r} is {student_ids.get(token)} for the student and {teacher_ids.get(token)} for the teacher"
            for token in differing[:_SHOWN_TOKENS]
        )
        raise TrainingError(
            f"teacher {teacher_ref!r} does not share the student's vocabulary: {len(differing)} tokens differ "
            f"({shown}). On-policy distillation compares probabilities of the same token ids. Choose a "
            "teacher of the student's family, or use SFT, which needs text only"
        )
