"""The loop with a method of its own: the trainer knows neither of the real ones."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from stillhouse.config import Divergence, StudentConfig
from stillhouse.errors import ConfigError, TrainingError
from stillhouse.progress.state import Progress
from stillhouse.training.head.scores import TokenLosses, TokenScores
from stillhouse.training.interruption import Interrupted
from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.loop.checkpoint_folder import saved_steps
from stillhouse.training.loop.method import Batch
from stillhouse.training.loop.stopping import WINDOW, Alarms
from stillhouse.training.loop.trainer import Trainer
from stillhouse.training.losses import cross_entropy
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.on_policy.monitoring.alarms import RolloutAlarms
from stillhouse.types import JsonObject, Sample
from tests.stillhouse.training.sections import sft_of
from tests.stillhouse.training.trainings import read_metrics

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
    temperature = divergence_temperature = 1.0
    uses_dropout = True
    wants_entropy = True
    divergence: tuple[Divergence, ...] = ()

    def __init__(
        self,
        batch: list[Sample],
        num_steps: int = 6,
        before: Callable[[int], None] = lambda step: None,
        validation: Sequence[Sample] = (),
    ) -> None:
        self._samples = batch
        self.num_steps = num_steps
        self.validation = validation
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


@pytest.fixture
def student(new_student) -> Student:
    return new_student()


def trainer(
    method: Imitation,
    student: Student,
    work_dir: Path,
    progress: Progress | None = None,
    alarms: Alarms | None = None,
    **config: object,
) -> Trainer:
    settings = sft_of({"learning_rate": 0.01, "checkpoint_every_steps": 2, **config})
    work_dir.mkdir(exist_ok=True)
    identity = {"trainer": settings.identity()}
    parts = {"work_dir": work_dir, "identity": identity, "peak_tflops": 0.1}
    return build_trainer(method, student, settings, progress=progress, alarms=alarms, **parts)


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
def test_gradient_depends_neither_on_the_split_into_microbatches_nor_on_the_order(
    new_student, tmp_path: Path, microbatch_tokens: int
):
    whole = gradient_step(new_student(), samples(), tmp_path / "whole", 10_000)
    split = gradient_step(new_student(), samples()[::-1], tmp_path / "split", microbatch_tokens)
    for name in whole:
        torch.testing.assert_close(split[name], whole[name], rtol=1e-4, atol=1e-7)


def test_loss_is_the_mean_over_the_tokens_of_the_batch_not_the_mean_of_means(new_student, tmp_path: Path):
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


def test_interrupted_training_with_dropout_ends_with_the_same_bits(tiny_model: str, tmp_path: Path):
    adapter = StudentConfig(lora_rank=4, lora_dropout=0.5, dtype="float32")
    students = [load_student(tiny_model, adapter, torch.device("cpu"), seed=0) for _ in range(3)]

    def train(
        student: Student, work_dir: Path, seed: int, before: Callable[[int], None] = lambda step: None
    ) -> Trainer:
        torch.manual_seed(seed)
        one = trainer(Imitation(samples(), before=before), student, work_dir, ema_decay=0.9)
        facts.append(one.run())
        return one

    def interrupt_at_step_3(step: int) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    facts: list[JsonObject] = []
    whole, cut, continued = students
    first = train(whole, tmp_path / "whole", 0)
    with pytest.raises(Interrupted):
        train(cut, tmp_path / "cut", 0, interrupt_at_step_3)
    second = train(continued, tmp_path / "cut", 1)
    assert (facts[1]["resumed_from_step"], facts[1]["steps"]) == (3, 6)
    expected, seen = weights(whole), weights(continued)
    assert all(torch.equal(seen[name], expected[name]) for name in expected)
    with first.weights.averaged(), second.weights.averaged():
        expected, seen = weights(whole), weights(continued)
    assert all(torch.equal(seen[name], expected[name]) for name in expected)


def test_facts_count_the_earlier_attempt_too(new_student, tmp_path: Path):
    def fail_at_step_5(step: int) -> None:
        if step == 5:
            raise RuntimeError("the machine is gone")

    with pytest.raises(RuntimeError):
        trainer(Imitation(samples(), before=fail_at_step_5), new_student(), tmp_path, log_every_steps=1).run()
    facts = trainer(Imitation(samples()), new_student(), tmp_path, log_every_steps=1).run()
    assert facts["resumed_from_step"] == 4
    assert facts["trained_tokens"] == 6 * sum(sum(sample.loss_mask) for sample in samples())
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_loss_that_is_not_finite_names_step_and_prompts_and_keeps_the_checkpoint(new_student, tmp_path: Path):
    student = new_student()

    def poison_at_step_3(step: int) -> None:
        if step == 3:
            with torch.no_grad():
                next(p for _, p in student.trained_parameters()).fill_(float("nan"))

    with pytest.raises(TrainingError, match=r"imitation, step 3: loss nan.*prompt0, prompt1"):
        trainer(Imitation(samples(), before=poison_at_step_3), student, tmp_path).run()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002"]


def test_checkpoint_of_another_config_is_refused(new_student, tmp_path: Path):
    trainer(Imitation(samples()), new_student(), tmp_path).run()
    with pytest.raises(TrainingError, match=r"trainer\.learning_rate: 0\.01.* 0\.02"):
        trainer(Imitation(samples()), new_student(), tmp_path, learning_rate=0.02).run()


def drawn(seed: int) -> list[Sample]:
    """Four samples whose tokens are all learnt but the first."""
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(100, (12,), generator=generator).tolist() for _ in range(4)]
    return [Sample(row, [False] + [True] * 11, f"prompt{number}") for number, row in enumerate(ids)]


def newest_step(work_dir: Path) -> int:
    return saved_steps(work_dir / "checkpoints")[0]


def metrics_by_step(work_dir: Path) -> dict[int, dict[str, float]]:
    """Metrics under their bare names."""
    rows = read_metrics(work_dir / "metrics.jsonl")
    return {row["step"]: {name.partition("/")[2]: value for name, value in row["metrics"].items()} for row in rows}


def test_a_training_that_diverges_stops_and_keeps_the_last_good_checkpoint(student: Student, listener, tmp_path: Path):
    def break_at_step_40(step: int) -> None:
        if step == 40:
            with torch.no_grad():
                for _, parameter in student.trained_parameters():
                    parameter.mul_(-20.0)

    method = Imitation(drawn(0), 100, break_at_step_40)
    with pytest.raises(TrainingError, match=r"step (4|5)\d: .*diverged.*prompt0") as raised:
        trainer(method, student, tmp_path, listener, learning_rate=1e-3, checkpoint_every_steps=3).run()
    assert newest_step(tmp_path) == 39
    assert f"{tmp_path}/checkpoints/step-00000039" in str(raised.value)
    assert listener.updates[-1][1] < 40 + WINDOW


@pytest.mark.parametrize("ema_decay", [None, 0.5])
def test_the_best_weights_are_kept_though_later_ones_have_other_checkpoints(
    student: Student, tmp_path: Path, ema_decay: float | None
):
    weights_at: dict[int, dict[str, torch.Tensor]] = {}

    def remember(step: int) -> None:
        with training.weights.averaged():
            weights_at[step] = weights(student)

    # What it learns by heart makes other text ever less likely.
    method = Imitation(drawn(0), 30, remember, drawn(1))
    settings = {"keep": "best", "validate_every_steps": 2, "ema_decay": ema_decay}
    training = trainer(method, student, tmp_path, learning_rate=0.03, checkpoint_every_steps=3, **settings)
    facts = training.run()
    rows = metrics_by_step(tmp_path)
    losses = {step: row["validation_loss"] for step, row in rows.items() if step > 0 and "validation_loss" in row}
    best = min(losses, key=losses.__getitem__)
    assert (facts["best_step"], facts["steps"]) == (best, 30)
    assert best < 30
    with training.weights.averaged():
        kept = weights(student)
    assert all(torch.equal(kept[name], weights_at[best][name]) for name in kept)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


class Timid(Imitation):
    """Minimises p(token) instead, as a loss may whose lowest value is no merit; watched by its likelihood."""

    guarded = "nll"

    def loss(self, scores: TokenScores, values: Mapping[str, torch.Tensor]) -> TokenLosses:
        return TokenLosses(scores.logprobs_N.exp(), means={"nll": -scores.logprobs_N.detach()})


def test_the_best_validation_is_that_of_the_metric_the_method_is_watched_by(student: Student, tmp_path: Path):
    method = Timid(drawn(0), 9, validation=drawn(0))
    facts = trainer(method, student, tmp_path, learning_rate=0.03, checkpoint_every_steps=3, keep="best").run()
    rows = metrics_by_step(tmp_path)
    assert rows[3]["validation_loss"] > rows[9]["validation_loss"]
    assert rows[3]["validation_nll"] < rows[9]["validation_nll"]
    assert facts["best_step"] == 3


class Rambler(Imitation):
    """What it samples is always cut off."""

    def batch(self, step: int) -> Batch:
        return Batch(drawn(step), {"truncated_share": 1.0})


def test_an_alarm_stops_a_training_that_can_then_be_continued_as_if_it_had_not(new_student, tmp_path: Path):
    def trained(work_dir: Path, *, stops: bool) -> dict[str, torch.Tensor]:
        student, settings = new_student(), {"checkpoint_every_steps": 6, "log_every_steps": 4}
        trainer(Rambler([], 14), student, work_dir, alarms=RolloutAlarms(stops=stops), **settings).run()
        return weights(student)

    expected = trained(tmp_path / "whole", stops=False)
    with pytest.raises(TrainingError, match="step 10: truncation: truncated_share is 1 "):
        trained(tmp_path / "stopped", stops=True)
    assert newest_step(tmp_path / "stopped") == 10
    seen = trained(tmp_path / "stopped", stops=False)
    assert all(torch.equal(expected[name], value) for name, value in seen.items())
    rows = metrics_by_step(tmp_path / "stopped")
    assert set(rows) == {4, 6, 8, 10, 12, 14}
    assert [step for step, metrics in rows.items() if "alarm/truncation" in metrics] == [10, 12, 14]


def test_an_alarm_at_the_last_step_does_not_take_the_student_away(student: Student, tmp_path: Path):
    alarms = RolloutAlarms(stops=True)
    facts = trainer(Rambler([], 10), student, tmp_path, alarms=alarms).run()
    assert alarms.reason_to_stop is not None
    assert facts["steps"] == 10


def test_training_ends_when_patience_runs_out_and_is_shown_as_done(student: Student, listener, tmp_path: Path):
    method = Imitation(drawn(0), 60, validation=drawn(1))
    settings = {"learning_rate": 0.03, "early_stopping_patience": 3, "validate_every_steps": 1}
    facts = trainer(method, student, tmp_path, listener, **settings).run()
    assert facts["steps"] < 60
    losses = [row["validation_loss"] for step, row in metrics_by_step(tmp_path).items() if step > 0]
    assert min(losses) == losses[-4]
    stage, done, total, shown = listener.updates[-1]
    assert (stage, done, total) == ("imitation", facts["steps"], facts["steps"])
    assert set(shown) - {"checkpoint"} == {"loss", "learning_rate", "tokens_per_s"}


@pytest.mark.parametrize("setting", [{"keep": "best"}, {"early_stopping_patience": 2}])
def test_what_goes_by_the_validation_loss_needs_one(student: Student, tmp_path: Path, setting: dict[str, object]):
    with pytest.raises(ConfigError, match="validate"):
        trainer(Imitation(drawn(0)), student, tmp_path, **setting)


def test_a_row_says_how_fast_how_full_and_how_long_to_go(student: Student, listener, tmp_path: Path):
    method = Imitation(drawn(0), 4, validation=drawn(1))
    settings = {"checkpoint_every_steps": 3, "log_every_steps": 2, "packing": False}
    trainer(method, student, tmp_path, listener, **settings).run()
    rows = metrics_by_step(tmp_path)
    assert set(rows) == {0, 2, 3, 4}
    assert rows[2].keys() == {
        *("loss", "entropy", "worst", "size", "grad_norm", "learning_rate", "padding_share", "supervised_share"),
        *("tokens_per_s", "mfu", "step_s", "data_s", "train_s", "eta_s", "peak_memory_gib"),
    }
    assert rows[2]["supervised_share"] == 1.0
    assert 0.0 < rows[2]["mfu"] < 1.0
    assert rows[0].keys() == {"validation_loss", "validation_entropy", "validation_worst", "peak_memory_gib"}
    figures = [(done, total) for _, done, total, facts in listener.updates if "doing" not in facts]
    assert figures == [(step, 4) for step in range(5)]


def test_a_compiled_training_sets_the_compiler_for_its_passes_alone(student: Student, tmp_path: Path):
    before = torch._dynamo.config.get_hash()
    made = trainer(Imitation(samples(), 1), student, tmp_path, compile="on")
    with made.passes.compiling():
        assert torch._dynamo.config.recompile_limit > 8
    assert torch._dynamo.config.get_hash() == before
