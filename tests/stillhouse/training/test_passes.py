"""Passes over more samples than are to be in memory."""

from collections.abc import Mapping, Sequence
from typing import overload

import pytest
import torch

from stillhouse.config import Divergence, StudentConfig, TrainerConfig
from stillhouse.errors import TrainingError
from stillhouse.training.batching.microbatches import num_targets
from stillhouse.training.head.scores import ScoreName, TokenScores
from stillhouse.training.losses import cross_entropy
from stillhouse.training.method import TokenLosses
from stillhouse.training.parallel.ranks import Ranks
from stillhouse.training.passes import Passes
from stillhouse.training.student.load import load_student
from stillhouse.types import Sample


class OnDisk(Sequence[Sample]):
    """Samples that are made when they are asked for, and how many were asked for at most at once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.most = 0

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> Sample: ...
    @overload
    def __getitem__(self, place: slice) -> list[Sample]: ...
    def __getitem__(self, place: int | slice) -> Sample | list[Sample]:
        if isinstance(place, slice):
            places = range(*place.indices(self._count))
            self.most = max(self.most, len(places))
            return [self[one] for one in places]
        if not 0 <= place < self._count:
            raise IndexError(place)
        ids = [(place * 7 + index * 13) % 100 for index in range(3 + place % 3)]
        return Sample(ids, [False, *(index % 2 == place % 2 for index in range(1, len(ids)))], f"prompt{place}")


class Likelihood:
    """Cross-entropy, with a mean, a ratio and a maximum."""

    temperature = 1.0
    wants: frozenset[ScoreName] = frozenset()
    divergence: tuple[Divergence, ...] = ()

    def partition(self, sample: Sample) -> str:
        return ""

    def reference(self, samples: Sequence[Sample]) -> None:
        return None

    def token_values(self, sample: Sample) -> dict[str, list[float]]:
        return {}

    def loss(self, scores: TokenScores, values: Mapping[str, torch.Tensor]) -> TokenLosses:
        losses_N = cross_entropy(scores.logprobs_N)
        nll_N = losses_N.detach()
        return TokenLosses(
            losses_N,
            means={"nll": nll_N},
            ratios={"nll_by_id": (nll_N, scores.targets_N.float())},
            maxima={"worst": nll_N},
        )


@pytest.fixture
def passes(tiny_model: str, full_student: StudentConfig) -> Passes:
    student = load_student(tiny_model, full_student, torch.device("cpu"), seed=0)
    return Passes(student, Ranks.single(torch.device("cpu")), TrainerConfig())


def test_a_measurement_of_many_samples_holds_few_and_says_the_same_as_one_pass(passes: Passes):
    samples = OnDisk(1100)
    figures = passes.measure(samples, Likelihood())
    assert samples.most <= 512
    everything = [samples[place] for place in range(len(samples))]
    whole = passes.backward(everything, Likelihood())
    assert whole.num_targets == num_targets(everything)
    assert figures == pytest.approx(whole.metrics, rel=1e-5)
    assert figures.keys() == {"loss", "nll", "nll_by_id", "worst"}


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_measure_is_an_error(passes: Passes, count: int):
    samples = [Sample([1, 2], [False, False], "empty")] * count
    with pytest.raises(TrainingError, match="no token to train on"):
        passes.measure(samples, Likelihood())
