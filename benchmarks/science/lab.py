"""What the experiments share: questions, and for each seed a base student with its teachers, made once and kept."""

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from benchmarks.science.exams import Exam
from benchmarks.science.models import write_new_model
from benchmarks.science.tasks.chain import USUAL_CHAINS, Chain, ChainKind, distinct_chains, draw_chains
from benchmarks.science.tasks.rows import PromptFiles, write_questions, write_rows
from benchmarks.science.training import Course, Training, course_of
from stillhouse.config import SftConfig
from stillhouse.config.training import SftSource

CHAIN: Final = "chain"
"""Name of the exam on chains."""
WEAK_WRONG: Final = 0.07
"""The same of the weak teacher, whose chains come out right about eight times in ten."""
_NUM_EXAM: Final = 512
_NUM_PROMPTS: Final = 4096


@dataclass(frozen=True)
class Lab:
    """A folder in which everything is kept, and the scale of the experiments."""

    folder: Path
    quick: bool = False
    """Everything a few steps long, to see that it runs: what comes of it means nothing."""
    chains: ChainKind = USUAL_CHAINS
    """Kind of the chains that prompts ask for."""
    base_wrong: float = 0.4
    """Share of wrong readings in what the base student learns, so that about three chains in ten come out right."""

    def num(self, full: int, quick: int = 2) -> int:
        """A number of steps, rows or questions at this scale."""
        return min(full, quick) if self.quick else full

    def course(self, training: Training, exams: Mapping[str, Exam] | None = None) -> Course:
        """The training's course, with the exam on chains unless others are named."""
        return course_of(training, {CHAIN: self.exam} if exams is None else exams, self.folder / "trainings")

    @cached_property
    def _chains(self) -> list[Chain]:
        return distinct_chains(random.Random(1), self.num(_NUM_EXAM + _NUM_PROMPTS, 64), self.chains)

    @cached_property
    def exam(self) -> Exam:
        """On chains that no prompt asks about."""
        return Exam.of([chain.question() for chain in self._chains[: self.num(_NUM_EXAM, 16)]], self.chains.max_tokens)

    @cached_property
    def prompt_chains(self) -> list[Chain]:
        """What on-policy training samples from."""
        return self._chains[self.num(_NUM_EXAM, 16) :]

    @cached_property
    def prompts(self) -> PromptFiles:
        """The same as files."""
        return write_questions(self.data, [chain.question() for chain in self.prompt_chains])

    @property
    def data(self) -> Path:
        """Folder of prompts and rows."""
        return self.folder / "data"

    def rows(self, count: int, wrong_share: float, seed: int) -> Path:
        """Chains with their answers to fine-tune on."""
        rng = random.Random(f"rows {wrong_share} {seed}")
        chains = itertools.islice(draw_chains(rng, self.chains), self.num(count, 32))
        return write_rows(self.data, [chain.row(rng, wrong_share) for chain in chains])

    def base(self, seed: int) -> Path:
        """A student that knows how to answer and doubts half of the operations: right about three times in ten."""
        start = write_new_model(self.folder / "models" / f"random-{seed}", seed)
        config = self.sft(self.rows(24_000, self.base_wrong, seed), seed, num_epochs=3, learning_rate=4e-3)
        return self._last(start, config)

    def teacher(self, seed: int) -> Path:
        """The base fine-tuned on what is right: it hardly ever errs."""
        config = self.sft(self.rows(16_000, 0.0, seed), seed, num_epochs=1, learning_rate=2e-3)
        return self._last(self.base(seed), config)

    def weak_teacher(self, seed: int) -> Path:
        """The base fine-tuned on rows with few wrong readings: right about eight times in ten."""
        config = self.sft(self.rows(16_000, WEAK_WRONG, seed), seed, num_epochs=1, learning_rate=2e-3)
        return self._last(self.base(seed), config)

    def sft(self, rows: Path, seed: int, *, num_epochs: int, learning_rate: float) -> SftConfig:
        """Fine-tuning on a file of rows, in batches of 128."""
        return SftConfig(
            dataset_weight=0.0,
            sources=(SftSource(path=str(rows.absolute())),),
            num_epochs=self.num(num_epochs, 1),
            batch_size=self.num(128, 16),
            learning_rate=learning_rate,
            schedule="cosine",
            warmup_steps=self.num(20, 0),
            beta2=0.98,
            seed=seed,
        )

    def _last(self, start: Path, config: SftConfig) -> Path:
        """The student that comes of it, measured at its start and end alone."""
        return self.course(Training(start=start, config=config, measure_every=1_000_000)).folder
