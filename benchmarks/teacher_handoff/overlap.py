"""One on-policy batch up to its teacher's hidden states: the teacher after the sampling, or during it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.frame.rounds import Cost, alternate
from benchmarks.on_policy.workload import PAIRS, Pair
from benchmarks.sft.workload import FIRST_WORD_ID, SHAPES
from benchmarks.teacher_handoff.apart import TeacherApart, Work, new_model, new_teacher
from stillhouse.serving.generation import GenerationRequest
from stillhouse.serving.generator import Generator
from stillhouse.training.on_policy.scored import ScoredSample

GROUP_SIZE: Final = 4
PAIRS_HERE: Final = {
    "tiny": PAIRS["tiny"],
    "small": PAIRS["small"],
    "small by large": Pair(SHAPES["small"], SHAPES["large"]),
}
_PROMPT_TOKENS: Final = 48
_SIGMA: Final = 0.6
_TEACHER_SEED: Final = 1

Group = list[ScoredSample]


@dataclass(frozen=True, slots=True)
class Batch:
    """What the student samples: prompts and log-normal lengths of completions, [prompts, group size]."""

    student: PreTrainedModel
    prompts: list[list[int]]
    lengths: np.ndarray

    @classmethod
    def drawn(cls, student: PreTrainedModel, num_groups: int, median: int) -> "Batch":
        """One for the student."""
        chance = np.random.default_rng(0)
        vocabulary = student.config.get_text_config().vocab_size
        prompts = chance.integers(FIRST_WORD_ID, vocabulary, (num_groups, _PROMPT_TOKENS)).tolist()
        lengths = chance.lognormal(np.log(median), _SIGMA, (num_groups, GROUP_SIZE))
        return cls(student, prompts, np.clip(lengths, 2, 4 * median).astype(int))

    def sample(self, on_group: Callable[[Group], object]) -> None:
        """Samples all at once; each group is handed on when its last completion has ended."""
        groups: list[Group] = [[] for _ in self.prompts]
        with closing(Generator(self.student, max_batch=self.lengths.size)) as generator:
            owners = {}
            for number, (prompt, lengths) in enumerate(zip(self.prompts, self.lengths, strict=True)):
                for index, length in enumerate(lengths.tolist()):
                    seed = GROUP_SIZE * number + index
                    owners[generator.submit(GenerationRequest(prompt, length, seed=seed))] = number
            while owners:
                for handle, generation in generator.step():
                    number = owners.pop(handle)
                    prompt, ids = self.prompts[number], generation.completion_ids
                    mask = [False] * len(prompt) + [True] * len(ids)
                    groups[number].append(ScoredSample(prompt + ids, mask, prompt_id=str(number)))
                    if len(groups[number]) == GROUP_SIZE:
                        on_group(groups[number])


def overlap_costs(pair: Pair, num_groups: int, median: int, num_threads: int, num_rounds: int) -> dict[str, list[Cost]]:
    """Costs of sampling alone, by all threads and by one; and of sampling and teacher, in each of three ways.

    One after the other both have all threads; at the same time each has half of them.
    """
    batch = Batch.drawn(new_model(pair.student, torch.float32, seed=0), num_groups, median)
    teacher = new_teacher(new_model(pair.teacher, torch.float32, _TEACHER_SEED))
    half = max(1, num_threads // 2)
    num_rows = int(batch.lengths.sum())
    apart = TeacherApart(pair.teacher, torch.float32, _TEACHER_SEED, num_threads=half, num_rows=num_rows)

    def sampled(threads: int) -> list[Group]:
        torch.set_num_threads(threads)
        groups: list[Group] = []
        batch.sample(groups.append)
        return groups

    def after() -> list[Tensor]:
        return [teacher.reference(group).hidden_NR for group in sampled(num_threads)]

    def in_thread() -> list[Tensor]:
        torch.set_num_threads(half)
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(half,)) as executor:
            futures = []
            batch.sample(lambda group: futures.append(executor.submit(teacher.reference, group)))
            return [future.result().hidden_NR for future in futures]

    def in_process() -> list[Tensor]:
        torch.set_num_threads(half)
        sizes: list[int] = []

        def ask(group: Group) -> None:
            apart.ask(Work("shared memory", group, sum(sizes)))
            sizes.append(sum(sum(sample.loss_mask) for sample in group))

        batch.sample(ask)
        return [apart.receive("shared memory", size, sum(sizes[:place])) for place, size in enumerate(sizes)]

    with closing(apart):
        check_equal(after(), in_process())
        return alternate(
            {
                "sampling": lambda: sampled(num_threads),
                "sampling by half": lambda: sampled(half),
                "after": after,
                "thread": in_thread,
                "process": in_process,
            },
            num_rounds,
        )


def check_equal(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    """Raises RuntimeError if a process of its own computes something else."""
    difference = max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))
    if difference > 1e-3:
        raise RuntimeError(f"hidden states handed over differ by {difference:.2g}; expected at most 1e-3")
