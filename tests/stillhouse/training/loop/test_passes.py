"""Passes over more samples than are to be in memory."""

from collections.abc import Mapping, Sequence
from typing import overload

import pytest
import torch
from transformers import PreTrainedModel

from stillhouse.config import Divergence, StudentConfig, TrainerConfig
from stillhouse.errors import TrainingError
from stillhouse.training.head.scores import Reference, TokenLosses, TokenScores
from stillhouse.training.loop.passes import Passes
from stillhouse.training.losses import cross_entropy
from stillhouse.training.model.load import load_student
from stillhouse.training.model.microbatches import collate, num_targets
from stillhouse.training.model.student import Student
from stillhouse.training.ranks import Ranks
from stillhouse.types import Sample


class OnDisk(Sequence[Sample]):
    """Samples that are made when they are groups for, and how many were groups for at most at once."""

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

    temperature = divergence_temperature = 1.0
    uses_dropout = True
    wants_entropy = False
    divergence: tuple[Divergence, ...] = ()

    def partition(self, sample: Sample) -> str:
        return ""

    def reference(self, samples: Sequence[Sample]) -> Reference | None:
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


class Compared(Likelihood):
    uses_dropout = False


@pytest.mark.parametrize("parameters", ["full", "lora"])
def test_dropout_is_off_where_the_students_probabilities_are_compared(tiny_model: str, parameters: str):
    config = StudentConfig.model_validate({"parameters": parameters, "dtype": "float32", "lora_dropout": 0.5})
    student = load_student(tiny_model, config, torch.device("cpu"), seed=0)
    for module in student.causal_lm.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    if parameters == "lora":
        with torch.no_grad():
            for name, weight in student.trained_parameters():
                weight.add_(0.3 if "lora_B" in name else 0.0)
    passes, samples = Passes(student, Ranks.single(torch.device("cpu")), TrainerConfig()), list(OnDisk(9))
    sampled_with = passes.measure(samples, Compared())["loss"]
    assert passes.backward(samples, Compared()).loss == pytest.approx(sampled_with, rel=1e-6)
    # Of a seed of its own: a draw of what other tests left behind came within 1e-5.
    torch.manual_seed(0)
    assert passes.backward(samples, Likelihood()).loss != pytest.approx(sampled_with, rel=1e-5)


def test_dropout_of_the_model_and_of_its_adapter_is_known_by_name(tiny_model: str):
    config = StudentConfig.model_validate({"parameters": "lora", "dtype": "float32", "lora_dropout": 0.25})
    student = load_student(tiny_model, config, torch.device("cpu"), seed=0)
    student.causal_lm.config.attention_dropout = 0.5
    student.causal_lm.config.summary_first_dropout = student.causal_lm.config.classifier_dropout = 0.1
    assert student.dropout_rates() == {"attention_dropout": 0.5, "lora_dropout": 0.25}


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_to_measure_is_an_error(passes: Passes, count: int):
    samples = [Sample([1, 2], [False, False], "empty")] * count
    with pytest.raises(TrainingError, match="no token"):
        passes.measure(samples, Likelihood())


class Following(Likelihood):
    """The mean of exact KLs from the teacher of each sample: for prompts of even numbers `teacher`, else itself."""

    divergence = (Divergence(kind="forward_kl"),)

    def __init__(self, student: Student, teacher: PreTrainedModel) -> None:
        self._teachers = {"0": teacher, "1": student.causal_lm}
        self.groups: list[list[str]] = []

    def partition(self, sample: Sample) -> str:
        return str(int(sample.prompt_id[-1]) % 2)

    def reference(self, samples: Sequence[Sample]) -> Reference:
        assert not torch.is_grad_enabled()
        self.groups.append([sample.prompt_id for sample in samples])
        (teacher,) = {self._teachers[self.partition(sample)] for sample in samples}
        hidden = [
            teacher.base_model(input_ids=torch.tensor([sample.token_ids])).last_hidden_state[
                0, [place - 1 for place, is_target in enumerate(sample.loss_mask) if is_target]
            ]
            for sample in samples
        ]
        return Reference(torch.cat(hidden), teacher.get_output_embeddings(), teacher.config.vocab_size)

    def loss(self, scores: TokenScores, values: Mapping[str, torch.Tensor]) -> TokenLosses:
        assert scores.divergence_N is not None
        return TokenLosses(scores.divergence_N)


@pytest.mark.parametrize(("microbatch_tokens", "packing"), [(1, True), (9, False), (1000, True)])
def test_each_microbatch_is_compared_with_the_teacher_of_its_partition(
    tiny_model: str, full_student: StudentConfig, microbatch_tokens: int, packing: bool
):
    student, other = (load_student(tiny_model, full_student, torch.device("cpu"), seed=0) for _ in range(2))
    teacher = other.causal_lm
    with torch.no_grad():
        teacher.lm_head.weight *= 30.0
    samples = list(OnDisk(7))
    config = TrainerConfig(microbatch_tokens=microbatch_tokens, packing=packing)
    method = Following(student, teacher)
    seen = Passes(student, Ranks.single(torch.device("cpu")), config).backward(samples, method)
    kls = [
        (theirs.exp() * (theirs - ours)).sum(-1)[0, :-1][torch.tensor(sample.loss_mask[1:])]
        for sample in samples
        if method.partition(sample) == "0"
        for ours, theirs in [
            [
                model(input_ids=torch.tensor([sample.token_ids])).logits.log_softmax(-1)
                for model in (student.causal_lm, teacher)
            ]
        ]
    ]
    expected = torch.cat(kls).sum() / num_targets(samples)
    assert expected > 0.01
    assert seen.loss == pytest.approx(expected.item(), rel=1e-4)
    trained = [p for _, p in student.trained_parameters()]
    for p, wanted in zip(trained, torch.autograd.grad(expected, trained), strict=True):
        torch.testing.assert_close(p.grad, wanted, rtol=1e-3, atol=1e-6)
    assert sorted(name for group in method.groups for name in group) == sorted(sample.prompt_id for sample in samples)


@pytest.mark.gpu
def test_the_host_waits_for_the_gpu_only_once_a_batch_is_through(tiny_model: str, full_student: StudentConfig):
    cuda = torch.device("cuda")
    student = load_student(tiny_model, full_student, cuda, seed=0)
    passes = Passes(student, Ranks.single(cuda), TrainerConfig(microbatch_tokens=64))
    samples = list(OnDisk(100))
    passes.backward(samples, Likelihood())  # what is set up once may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        microbatch = collate(samples[20:40], lambda _: {}, cuda, packing=passes.packing)
        with student.precision():
            student.step(microbatch, Likelihood(), 1.0).loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(
        microbatch.inputs_BT, collate(samples[20:40], lambda _: {}, cuda, packing=passes.packing).inputs_BT
    )
