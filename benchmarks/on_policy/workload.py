"""What both sides distill: a student, a teacher of twice its width, and prompts that say how long their answers are.

Random weights do not end an answer where a trained model would: an end token comes once in some 30,000. So each prompt
begins with the word whose number is the tokens of its completion, and both sides end the completion there, TRL by
forcing the end token, this project by its limit of tokens. Both thus sample log-normally long completions, each prompt
the same number of tokens on either side, and either pays in its own way for their being unequal.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.sft.workload import FIRST_WORD_ID, SHAPES, Shape, word_tokenizer

_SIGMA: Final = 0.6
_LENGTH_PLACE: Final = 3
"""Behind `<|im_start|>`, `user` and a newline."""
_LOGIT_SCALE: Final = 3.0
"""Of the last norm: with it logits differ by some one to two nats, so that teacher and student are worth comparing."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens: medians and bounds."""

    prompt: int = 48
    prompt_bounds: tuple[int, int] = (8, 192)
    """Of the words of the user."""
    completion: int = 96
    completion_bounds: tuple[int, int] = (8, 400)

    @property
    def mean_completion(self) -> int:
        """Tokens of a completion on average, but for the bounds."""
        return round(self.completion * float(np.exp(_SIGMA**2 / 2)))


@dataclass(frozen=True, slots=True)
class Pair:
    """A student and its teacher."""

    student: Shape
    teacher: Shape


def twice_as_wide(shape: Shape) -> Shape:
    """The shape with everything but depth, vocabulary and the size of a head doubled."""
    return replace(
        shape,
        hidden=2 * shape.hidden,
        heads=2 * shape.heads,
        kv_heads=2 * shape.kv_heads,
        intermediate=2 * shape.intermediate,
    )


_LENGTHS: Final = Lengths()
PAIRS: Final = {name: Pair(SHAPES[name], twice_as_wide(SHAPES[name])) for name in ("tiny", "narrow", "small", "middle")}


def write_workload(folder: Path, pair: Pair, num_rows: int, *, equal: bool = False, seed: int = 0) -> None:
    """Writes `folder/student`, `folder/teacher` and `num_rows` prompts to `folder/rows.jsonl`.

    Args:
        folder: to be filled.
        pair: the models, with random weights.
        num_rows: prompts.
        equal: let all completions be as long as a log-normal one is on average.
        seed: of weights and prompts.
    """
    tokenizer = word_tokenizer(pair.student.vocabulary)
    for number, (name, shape) in enumerate((("student", pair.student), ("teacher", pair.teacher))):
        torch.manual_seed(seed + number)
        model = AutoModelForCausalLM.from_config(shape.config(), dtype=torch.float32)
        with torch.no_grad():
            model.base_model.norm.weight.mul_(_LOGIT_SCALE)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for row in prompts(num_rows, pair.student.vocabulary, seed, equal=equal):
            file.write(json.dumps(row) + "\n")


def prompts(
    num_rows: int, vocabulary: int, seed: int, *, equal: bool = False, lengths: Lengths = _LENGTHS
) -> Iterator[dict[str, Any]]:
    """Prompts, each with the length of its completion as its first word."""
    generator = np.random.default_rng(seed)
    words = vocabulary - FIRST_WORD_ID
    frequencies = 1.0 / np.arange(1, words + 1)
    frequencies /= frequencies.sum()
    for number in range(num_rows):
        drawn = _length(generator, lengths.completion, lengths.completion_bounds)
        size = _length(generator, lengths.prompt, lengths.prompt_bounds)
        rest = generator.choice(words, size=size, p=frequencies)
        content = " ".join(f"w{word}" for word in (lengths.mean_completion if equal else drawn, *rest))
        yield {"id": f"row-{number}", "messages": [{"role": "user", "content": content}]}


def wanted_tokens(prompt_ids: Sequence[int]) -> int:
    """How many tokens the completion of a rendered prompt has."""
    return prompt_ids[_LENGTH_PLACE] - FIRST_WORD_ID


def _length(generator: np.random.Generator, median: int, bounds: tuple[int, int]) -> int:
    return int(np.clip(generator.lognormal(np.log(median), _SIGMA), *bounds))
