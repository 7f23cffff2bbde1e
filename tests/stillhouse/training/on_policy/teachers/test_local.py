from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import compress
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from stillhouse.config import OnPolicyTeacher, StudentConfig
from stillhouse.errors import ConfigError, TrainingError
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.serving.models import load_model
from stillhouse.serving.score import score_tokens
from stillhouse.training.loop.weights import WeightAverage
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.sampling.transformers import sampling_weights
from stillhouse.training.on_policy.teachers.local import HiddenCache, LocalTeacher, load_local_model
from stillhouse.training.on_policy.teachers.packed import ScoringSettings
from stillhouse.training.on_policy.teachers.self_teacher import SelfTeacher
from stillhouse.training.on_policy.teachers.teacher import ExactTeacher
from stillhouse.types import Sample
from tests.stillhouse.training.trainings import disturb

CPU = torch.device("cpu")
LORA = StudentConfig(parameters="lora", lora_rank=4, lora_dropout=0.1, dtype="float32")
FULL = StudentConfig(parameters="full", dtype="float32")


def local(model: PreTrainedModel, *, temperature: float = 1.0, batch_tokens: int = 64, **more: Any) -> LocalTeacher:
    return LocalTeacher(ScoringSettings("near", 1.0, temperature, batch_tokens), model, CPU, **more)


def expected(model: PreTrainedModel, requests: Sequence[Sample], temperature: float = 1.0) -> list[SequenceScores]:
    scores = score_tokens(model, [request.token_ids for request in requests], temperature=temperature)
    return [
        SequenceScores(list(compress(row, request.loss_mask))) for row, request in zip(scores, requests, strict=True)
    ]


def same(seen: Sequence[SequenceScores], known: Sequence[SequenceScores], tolerance: float = 1e-4) -> None:
    for (row, _), (expected_row, _) in zip(seen, known, strict=True):
        assert row == pytest.approx(expected_row, abs=tolerance)


def exact_logprobs(teacher: ExactTeacher, samples: Sequence[Sample]) -> list[float]:
    """Of the sampled tokens, from the whole distributions of a reference."""
    reference = teacher.reference(samples)
    logits = reference.scaling.apply_(reference.head(reference.hidden_NR).float())[:, : reference.vocabulary]
    views = [one.teacher_view or one for one in samples]
    targets = [t for view in views for t, sampled in zip(view.token_ids, view.loss_mask, strict=True) if sampled]
    return logits.log_softmax(-1)[range(len(targets)), targets].tolist()


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return load_model("embedded:teacher", device="cpu")


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_in_packed_rows_are_those_of_each_sequence_alone(
    model: PreTrainedModel, requests: list[Sample], temperature: float
) -> None:
    scores = local(model, temperature=temperature).start(requests).result()
    same(scores, expected(model, requests, temperature))


def test_a_reference_has_the_whole_distribution_at_the_sampled_tokens_of_what_the_teacher_reads(
    model: PreTrainedModel, requests: list[Sample]
) -> None:
    teacher = local(model)
    assert isinstance(teacher, ExactTeacher)
    request = requests[2]
    first = request.loss_mask.index(True)
    view = Sample([9] * 5 + request.token_ids[first:], [False] * 5 + request.loss_mask[first:], "p")
    seen = exact_logprobs(teacher, [requests[1], replace(request, teacher_view=view), requests[3]])
    asked = [requests[1], replace(request, teacher_view=view), requests[3]]
    known = [logprob for row in teacher.start(asked).result() for logprob in row.logprobs]
    assert seen == pytest.approx(known, abs=1e-4)


def test_capped_and_scaled_logits_are_those_of_the_models_own_forward_pass(requests: list[Sample]) -> None:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=640, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, final_logit_softcapping=0.5, attn_logit_softcapping=None,
        query_pre_attn_scalar=16,
    )  # fmt: skip
    gemma = Gemma2ForCausalLM(config).eval().requires_grad_(False)
    scores = local(gemma).start(requests).result()
    for request, (row, _) in zip(requests, scores, strict=True):
        logprobs = gemma(torch.tensor([request.token_ids])).logits[0].float().log_softmax(-1)
        places = [place for place, sampled in enumerate(request.loss_mask) if sampled]
        known = [logprobs[place - 1, request.token_ids[place]].item() for place in places]
        assert row == pytest.approx(known, abs=1e-4)


def test_the_logits_of_a_batch_never_exist() -> None:
    rows, num_scored = 151_936, 600
    config = Qwen3Config(
        vocab_size=rows, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    teacher = local(Qwen3ForCausalLM(config).eval().requires_grad_(False), batch_tokens=1000)
    largest = 0

    class Largest(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            largest = max(largest, result.numel() if isinstance(result, torch.Tensor) else 0)
            return result

    with Largest():
        teacher.start([Sample([7] * (num_scored + 1), [False] + [True] * num_scored, "p")])
    assert largest <= rows * num_scored / 2


def test_a_teacher_of_fewer_tokens_says_which_one_it_does_not_know(model: PreTrainedModel) -> None:
    rows = len(model.get_output_embeddings().weight)
    with pytest.raises(TrainingError, match=f"'near' has {rows} tokens .*token id {rows}:"):
        local(model).start([Sample([1, rows], [False, True], "p")])


@pytest.mark.slow
def test_a_compiled_teacher_gives_the_same_scores(requests: list[Sample]) -> None:
    torch._dynamo.reset()
    model = load_model("embedded:teacher", device="cpu")
    known = expected(model, requests)
    counters.clear()
    teacher = local(model, compiled=True)
    same(teacher.start(requests).result(), known)
    same(teacher.start(requests[:2]).result(), known[:2])
    assert counters["stats"]["unique_graphs"] > 0


def test_four_bits_without_cuda_are_refused() -> None:
    settings = OnPolicyTeacher(name="near", model="embedded:teacher", dtype="4bit")
    with pytest.raises(ConfigError, match=r"'near' with dtype `4bit` .*CUDA"):
        load_local_model("embedded:teacher", settings, CPU, torch.float32)


def changed_student(config: StudentConfig) -> Student:
    """A student that was trained some: its weights are no longer those it started from."""
    return disturb(load_student("embedded:student", config, CPU, seed=0), 0.05)


def own(student: Student, weights: Any) -> SelfTeacher:
    return SelfTeacher(ScoringSettings("own", 1.0, 1.0, 64), student, weights)


def test_the_base_below_an_adapter_is_the_model_without_it_also_while_the_student_trains(
    requests: list[Sample],
) -> None:
    student = changed_student(LORA)
    base = load_model("embedded:student", device="cpu")
    teacher = own(student, student.model.disable_adapter)
    student.model.train()
    before = {name: (p.requires_grad, p.detach().clone()) for name, p in student.model.named_parameters()}
    same(teacher.start(requests).result(), expected(base, requests))
    request = requests[1]
    known = expected(base, [request])[0].logprobs
    assert exact_logprobs(teacher, [request]) == pytest.approx(known, abs=1e-4)
    assert student.model.training
    for name, parameter in student.model.named_parameters():
        assert parameter.requires_grad == before[name][0]
        assert torch.equal(parameter, before[name][1])
    student.model.eval()
    assert expected(student.causal_lm, [request])[0].logprobs != pytest.approx(known, abs=1e-2)


@pytest.mark.parametrize("config", [LORA, FULL], ids=["lora", "full"])
def test_the_mean_scores_with_the_mean_weights_and_leaves_the_students_alone(
    requests: list[Sample], config: StudentConfig
) -> None:
    student = changed_student(config)
    average = WeightAverage(dict(student.trained_parameters()), decay=0.5)
    average.update()
    with torch.no_grad():
        for _, parameter in student.trained_parameters():
            parameter.mul_(1.1)
    average.update()
    teacher = own(student, average.swapped)
    with average.swapped():
        known = expected(student.causal_lm, requests)
    weights = {name: p.detach().clone() for name, p in student.trained_parameters()}
    same(teacher.start(requests).result(), known)
    request = requests[1]
    # Its output layer is still the mean's once the student has its own weights again.
    assert exact_logprobs(teacher, [request]) == pytest.approx(known[1].logprobs, abs=1e-4)
    for name, parameter in student.trained_parameters():
        assert torch.equal(parameter, weights[name])


def test_gradients_of_the_student_go_on_after_its_base_was_asked(requests: list[Sample]) -> None:
    student = changed_student(LORA)
    teacher = own(student, student.model.disable_adapter)
    inputs = torch.tensor([requests[1].token_ids])

    def gradients() -> list[torch.Tensor]:
        student.causal_lm(input_ids=inputs).logits.float().logsumexp(-1).sum().backward()
        return [p.grad.clone() for _, p in student.trained_parameters() if p.grad is not None]

    alone = gradients()
    student.model.zero_grad()
    teacher.reference([requests[1]])
    assert all(torch.equal(one, other) for one, other in zip(alone, gradients(), strict=True))


def test_the_student_is_no_teacher_while_it_samples(requests: list[Sample]) -> None:
    student = changed_student(LORA)
    teacher = own(student, student.model.disable_adapter)
    with sampling_weights(student), pytest.raises(AssertionError, match="own: the student samples"):
        teacher.start(requests)
    teacher.start(requests)


def test_what_is_longer_than_a_teachers_context_is_refused(model: PreTrainedModel) -> None:
    student = changed_student(LORA)
    for name, teacher in {"near": local(model), "own": own(student, nullcontext)}.items():
        places = teacher.max_context or 0
        view = Sample([5] * (places + 1), [False] * places + [True], "p")
        message = f"'{name}' has {places + 1} tokens .*positions for {places}"
        with pytest.raises(TrainingError, match=message):
            teacher.start([Sample([5, 5], [False, True], "p", teacher_view=view)])
        with pytest.raises(TrainingError, match=message):
            teacher.reference([Sample([5, 5], [False, True], "p", teacher_view=view)])


ONE = Sample([3, 1, 4], [False, True, True], "p")
TWO = Sample([3, 1, 4], [False, False, True], "p")


class Computed:
    """Hidden states of another value at each call."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> torch.Tensor:
        self.num_calls += 1
        return torch.full((2, 8), float(self.num_calls))


def first(cache: HiddenCache, views: list[Sample], compute: Computed) -> float:
    return cache.get(views, compute)[0, 0].item()


def test_what_was_computed_for_the_same_tokens_and_masks_is_not_computed_again() -> None:
    cache, compute = HiddenCache(), Computed()
    rows = [[ONE, TWO], [TWO, ONE], [ONE], [TWO]]
    assert [first(cache, views, compute) for views in rows] == [1, 2, 3, 4]
    assert [first(cache, views, compute) for views in rows] == [1, 2, 3, 4]
    assert compute.num_calls == 4


@pytest.mark.parametrize("num_kept", [0, 1])
def test_what_does_not_fit_is_computed_each_time_and_what_is_kept_stays(num_kept: int) -> None:
    cache, compute = HiddenCache(max_bytes=num_kept * 2 * 8 * 4), Computed()
    assert [first(cache, views, compute) for views in ([ONE], [TWO], [ONE], [TWO])] == (
        [1, 2, 1, 3] if num_kept else [1, 2, 3, 4]
    )


def test_the_next_batch_has_all_the_room_again() -> None:
    cache, compute = HiddenCache(max_bytes=2 * 8 * 4), Computed()
    first(cache, [ONE], compute)
    cache.clear()
    assert [first(cache, views, compute) for views in ([TWO], [TWO], [ONE])] == [2, 2, 3]
