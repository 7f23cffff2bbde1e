"""The loop with a method of its own: the trainer knows neither of the real ones."""

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from stillhouse.config import Divergence, StudentConfig, TrainerConfig
from stillhouse.errors import TrainingError
from stillhouse.training.head.scores import ScoreName, TokenLosses, TokenScores
from stillhouse.training.interruption import Interrupted
from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.loop.method import Batch
from stillhouse.training.loop.trainer import Trainer
from stillhouse.training.losses import cross_entropy
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import read_metrics
from stillhouse.types import JsonObject, Sample

NewStudent = Callable[[], Student]


def samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    result = []
    for number, length in enumerate((5, 17, 9, 30, 6, 12)):
        ids = torch.randint(100, (length,), generator=generator).tolist()
        result.append(Sample(ids, [index % 3 == 1 for index in range(length)], f"prompt{number}"))
    return result


class Imitation:
    """Cross-entropy on the same samples at every step; `before` runs before each batch."""

    name = "imitation"
    headline = ("loss",)
    guarded = "loss"
    facts: dict[str, int] = {"rows": 6}
    temperature = 1.0
    wants: frozenset[ScoreName] = frozenset({"entropy"})
    divergence: tuple[Divergence, ...] = ()
    validation: tuple[Sample, ...] = ()

    def __init__(
        self, batch: list[Sample], num_steps: int = 6, before: Callable[[int], None] = lambda step: None
    ) -> None:
        self._samples = batch
        self.num_steps = num_steps
        self._before = before

    def batch(self, step: int) -> Batch:
        self._before(step)
        return Batch(self._samples, {"size": float(len(self._samples))})

    def partition(self, sample: Sample) -> str:
        return ""

    def reference(self, samples: Sequence[Sample]) -> None:
        return None

    def token_values(self, sample: Sample) -> dict[str, list[float]]:
        return {}

    def loss(self, scores: TokenScores, values: Mapping[str, torch.Tensor]) -> TokenLosses:
        assert scores.entropy_N is not None
        return TokenLosses(
            cross_entropy(scores.logprobs_N),
            means={"entropy": scores.entropy_N},
            maxima={"worst": -scores.logprobs_N.detach()},
        )


@pytest.fixture
def new_student(tiny_model: str, full_student: StudentConfig) -> NewStudent:
    return lambda: load_student(tiny_model, full_student, torch.device("cpu"), seed=0)


def trainer(method: Imitation, student: Student, work_dir: Path, **config: object) -> Trainer:
    settings = TrainerConfig.model_validate({"learning_rate": 0.01, "checkpoint_every_steps": 2, **config})
    work_dir.mkdir(exist_ok=True)
    identity = {"trainer": settings.model_dump(mode="json")}
    return build_trainer(method, student, settings, work_dir=work_dir, identity=identity, peak_tflops=1.0)


def weights(student: Student) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in student.trained_parameters()}


def gradient_step(
    student: Student, batch: list[Sample], work_dir: Path, microbatch_tokens: int
) -> dict[int, torch.Tensor]:
    """What one step adds to the gradient's running mean, which is the gradient up to a factor."""
    done = trainer(Imitation(batch, 1), student, work_dir, microbatch_tokens=microbatch_tokens, max_grad_norm=1e9)
    done.run()
    state = done.weights.state()["optimizer"]["state"]
    return {number: entry["exp_avg"] for number, entry in state.items()}


@pytest.mark.parametrize("microbatch_tokens", [1, 20, 64])
def test_gradient_does_not_depend_on_the_split_into_microbatches(
    new_student: NewStudent, tmp_path: Path, microbatch_tokens: int
):
    whole = gradient_step(new_student(), samples(), tmp_path / "whole", 10_000)
    split = gradient_step(new_student(), samples(), tmp_path / "split", microbatch_tokens)
    for name in whole:
        torch.testing.assert_close(split[name], whole[name], rtol=1e-4, atol=1e-7)


def test_gradient_does_not_depend_on_the_order_of_samples(new_student: NewStudent, tmp_path: Path):
    forward = gradient_step(new_student(), samples(), tmp_path / "a", 40)
    backward = gradient_step(new_student(), samples()[::-1], tmp_path / "b", 40)
    for name in forward:
        torch.testing.assert_close(backward[name], forward[name], rtol=1e-4, atol=1e-7)


def test_loss_is_the_mean_over_the_tokens_of_the_batch_not_the_mean_of_means(new_student: NewStudent, tmp_path: Path):
    student = new_student()
    total, count = 0.0, 0
    for sample in samples():
        with torch.no_grad():
            logprobs = student.causal_lm(input_ids=torch.tensor([sample.token_ids])).logits[0].log_softmax(-1)
        for index, trained in enumerate(sample.loss_mask):
            if trained:
                total -= logprobs[index - 1, sample.token_ids[index]].item()
                count += 1
    trainer(Imitation(samples(), 1), student, tmp_path, microbatch_tokens=20).run()
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert row["metrics"]["imitation/loss"] == pytest.approx(total / count, rel=1e-5)
    assert row["metrics"]["imitation/worst"] >= total / count


def test_target_outside_the_mask_changes_nothing_inside_it_does(new_student: NewStudent, tmp_path: Path):
    def loss_with_last_token(mask_last: bool, token: int) -> float:
        sample = Sample([1, 2, 3, token], [False, True, False, mask_last], "p")
        work_dir = tmp_path / f"{mask_last}-{token}"
        trainer(Imitation([sample], 1), new_student(), work_dir).run()
        return read_metrics(work_dir / "metrics.jsonl")[0]["metrics"]["imitation/loss"]

    assert loss_with_last_token(False, 7) == loss_with_last_token(False, 50)
    assert loss_with_last_token(True, 7) != loss_with_last_token(True, 50)


def test_training_lowers_the_loss(new_student: NewStudent, tmp_path: Path):
    trainer(Imitation(samples(), 30), new_student(), tmp_path, log_every_steps=1).run()
    losses = [row["metrics"]["imitation/loss"] for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert losses[-1] < 0.5 * losses[0]


def test_a_row_over_several_steps_has_the_largest_of_their_maxima(new_student: NewStudent, tmp_path: Path):
    def worst(log_every_steps: int) -> list[float]:
        work_dir = tmp_path / str(log_every_steps)
        settings = {"checkpoint_every_steps": 3, "log_every_steps": log_every_steps}
        trainer(Imitation(samples(), 3), new_student(), work_dir, **settings).run()
        return [row["metrics"]["imitation/worst"] for row in read_metrics(work_dir / "metrics.jsonl")]

    assert worst(3) == [max(worst(1))]


def test_weight_decay_spares_vectors(new_student: NewStudent, tmp_path: Path):
    def trained(weight_decay: float) -> dict[str, torch.Tensor]:
        student = new_student()
        trainer(Imitation(samples(), 1), student, tmp_path / str(weight_decay), weight_decay=weight_decay).run()
        return weights(student)

    plain, decayed = trained(0.0), trained(0.1)
    for name, parameter in plain.items():
        assert torch.equal(decayed[name], parameter) == (parameter.ndim < 2), name


@pytest.mark.parametrize("change", [{"beta1": 0.8}, {"beta2": 0.97}])
def test_the_optimisers_running_means_decay_as_the_config_says(
    new_student: NewStudent, tmp_path: Path, change: dict[str, float]
):
    def state(**config: float) -> dict[str, torch.Tensor]:
        work_dir = tmp_path / "-".join(["work", *config])
        done = trainer(Imitation(samples(), 1), new_student(), work_dir, **{"beta1": 0.5, "beta2": 0.5, **config})
        done.run()
        return done.weights.state()["optimizer"]["state"][0]

    moment = {"beta1": "exp_avg", "beta2": "exp_avg_sq"}
    ((name, beta),) = change.items()
    # The first step's moment is 1 - beta of the gradient, or of its square.
    torch.testing.assert_close(state(**change)[moment[name]] / (1 - beta), state()[moment[name]] / 0.5)


def test_interrupted_training_with_noise_ends_with_the_same_bits(new_student: NewStudent, tmp_path: Path):
    def train(
        student: Student, work_dir: Path, seed: int, before: Callable[[int], None] = lambda step: None
    ) -> Trainer:
        torch.manual_seed(seed)
        student.step.noise_alpha = 5.0
        one = trainer(Imitation(samples(), before=before), student, work_dir, ema_decay=0.9)
        facts.append(one.run())
        return one

    def interrupt_at_step_3(step: int) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    facts: list[JsonObject] = []
    whole, continued = new_student(), new_student()
    first = train(whole, tmp_path / "whole", 0)
    with pytest.raises(Interrupted):
        train(new_student(), tmp_path / "cut", 0, interrupt_at_step_3)
    second = train(continued, tmp_path / "cut", 1)
    assert (facts[1]["resumed_from_step"], facts[1]["steps"]) == (3, 6)
    expected, seen = weights(whole), weights(continued)
    assert all(torch.equal(seen[name], expected[name]) for name in expected)
    with first.weights.averaged(), second.weights.averaged():
        expected, seen = weights(whole), weights(continued)
    assert all(torch.equal(seen[name], expected[name]) for name in expected)


def test_facts_count_the_earlier_attempt_too(new_student: NewStudent, tmp_path: Path):
    def fail_at_step_5(step: int) -> None:
        if step == 5:
            raise RuntimeError("the machine is gone")

    with pytest.raises(RuntimeError):
        trainer(Imitation(samples(), before=fail_at_step_5), new_student(), tmp_path, log_every_steps=1).run()
    facts = trainer(Imitation(samples()), new_student(), tmp_path, log_every_steps=1).run()
    assert facts["resumed_from_step"] == 4
    assert facts["trained_tokens"] == 6 * sum(sum(sample.loss_mask) for sample in samples())
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_loss_that_is_not_finite_names_step_and_prompts_and_keeps_the_checkpoint(
    new_student: NewStudent, tmp_path: Path
):
    student = new_student()

    def poison_at_step_3(step: int) -> None:
        if step == 3:
            with torch.no_grad():
                next(p for _, p in student.trained_parameters()).fill_(float("nan"))

    with pytest.raises(TrainingError, match=r"imitation, step 3: loss nan.*prompts prompt0, prompt1"):
        trainer(Imitation(samples(), before=poison_at_step_3), student, tmp_path).run()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


def test_batch_without_targets_is_an_error(new_student: NewStudent, tmp_path: Path):
    nothing = [Sample([1, 2, 3], [False, False, False], "empty")]
    with pytest.raises(TrainingError, match="no token to train on; prompts empty"):
        trainer(Imitation(nothing), new_student(), tmp_path).run()


def test_checkpoint_of_another_config_is_refused(new_student: NewStudent, tmp_path: Path):
    trainer(Imitation(samples()), new_student(), tmp_path).run()
    with pytest.raises(TrainingError, match=r"trainer\.learning_rate: 0\.01 in the checkpoint, 0\.02 now"):
        trainer(Imitation(samples()), new_student(), tmp_path, learning_rate=0.02).run()


def test_checkpoint_holds_no_pickled_objects(new_student: NewStudent, tmp_path: Path):
    trainer(Imitation(samples(), 2), new_student(), tmp_path).run()
    folder = tmp_path / "checkpoints" / "step-00000002"
    torch.load(folder / "optimizer.pt", weights_only=True)
    assert json.loads((folder / "state.json").read_text())["step"] == 2
