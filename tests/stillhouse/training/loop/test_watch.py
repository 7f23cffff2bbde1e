"""What is seen of a real training, and what ends it before its last step."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from stillhouse.config import Divergence, StudentConfig, TrainerConfig
from stillhouse.errors import ConfigError, TrainingError
from stillhouse.progress.state import Fact
from stillhouse.training.head.scores import ScoreName, TokenLosses, TokenScores
from stillhouse.training.loop.assembly import build_trainer
from stillhouse.training.loop.checkpoint import load_newest_checkpoint
from stillhouse.training.loop.method import Batch
from stillhouse.training.loop.stopping import WINDOW
from stillhouse.training.loop.trainer import Trainer
from stillhouse.training.losses import cross_entropy
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import read_metrics
from stillhouse.training.on_policy.monitoring.alarms import RolloutAlarms
from stillhouse.types import Sample

IDENTITY = {"method": "parrot"}


def samples(seed: int, count: int = 4) -> list[Sample]:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(100, (12,), generator=generator).tolist() for _ in range(count)]
    return [Sample(ids, [False] + [True] * 11, f"prompt{number}") for number, ids in enumerate(drawn)]


class Parrot:
    """Cross-entropy on the same samples at every step; `before` runs before each batch."""

    name = "parrot"
    headline = ("loss",)
    guarded = "loss"
    facts: dict[str, int] = {}
    temperature = 1.0
    wants: frozenset[ScoreName] = frozenset()
    divergence: tuple[Divergence, ...] = ()

    def __init__(
        self, num_steps: int, validation: list[Sample], before: Callable[[int], None] = lambda step: None
    ) -> None:
        self.num_steps = num_steps
        self.validation = validation
        self._before = before

    def batch(self, step: int) -> Batch:
        self._before(step)
        return Batch(samples(0))

    def partition(self, sample: Sample) -> str:
        return ""

    def reference(self, samples: Sequence[Sample]) -> None:
        return None

    def token_values(self, sample: Sample) -> dict[str, list[float]]:
        return {}

    def loss(self, scores: TokenScores, values: Mapping[str, torch.Tensor]) -> TokenLosses:
        return TokenLosses(cross_entropy(scores.logprobs_N))


class Screen:
    """Remembers what is shown."""

    def __init__(self) -> None:
        self.updates: list[tuple[str, int, int | None, dict[str, Fact]]] = []

    def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
        self.updates.append((stage, done, total, facts))


@pytest.fixture
def student(tiny_model: str, full_student: StudentConfig) -> Student:
    return load_student(tiny_model, full_student, torch.device("cpu"), seed=0)


@pytest.fixture
def screen() -> Screen:
    return Screen()


def trainer(method: Parrot, student: Student, work_dir: Path, screen: Screen, **config: object) -> Trainer:
    settings = TrainerConfig.model_validate({"learning_rate": 0.03, "checkpoint_every_steps": 3, **config})
    return build_trainer(
        method, student, settings, work_dir=work_dir, identity=IDENTITY, progress=screen, peak_tflops=0.1
    )


def weights(student: Student) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in student.trained_parameters()}


def break_student(student: Student) -> None:
    with torch.no_grad():
        for _, parameter in student.trained_parameters():
            parameter.mul_(-20.0)


def test_a_training_that_diverges_stops_and_keeps_the_last_good_checkpoint(
    student: Student, screen: Screen, tmp_path: Path
):
    def break_at_step_40(step: int) -> None:
        if step == 40:
            break_student(student)

    with pytest.raises(
        TrainingError, match=r"parrot, step (4|5)\d: training has diverged.*prompts are prompt0"
    ) as raised:
        trainer(Parrot(100, [], break_at_step_40), student, tmp_path, screen, learning_rate=1e-3).run()
    newest = load_newest_checkpoint(tmp_path / "checkpoints", IDENTITY)
    assert newest is not None
    assert newest.step == 39
    assert f"{tmp_path}/checkpoints/step-00000039" in str(raised.value)
    assert screen.updates[-1][1] < 40 + WINDOW


@pytest.mark.parametrize("ema_decay", [None, 0.5])
def test_the_best_weights_are_kept_though_later_ones_have_other_checkpoints(
    student: Student, screen: Screen, tmp_path: Path, ema_decay: float | None
):
    at: dict[int, dict[str, torch.Tensor]] = {}

    def remember(step: int) -> None:
        with one.weights.averaged():
            at[step] = weights(student)

    # What it learns by heart makes other text ever less likely.
    method = Parrot(30, samples(1), remember)
    settings = {"keep": "best", "keep_checkpoints": 1, "validate_every_steps": 2, "ema_decay": ema_decay}
    one = trainer(method, student, tmp_path, screen, **settings)
    facts = one.run()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    losses = {row["step"]: row["metrics"].get("parrot/validation_loss") for row in rows if row["step"] > 0}
    best = min((step for step in losses if losses[step] is not None), key=lambda step: losses[step])
    assert facts["best_step"] == best
    assert facts["steps"] == 30
    assert best < 30
    with one.weights.averaged():
        kept = weights(student)
    assert all(torch.equal(kept[name], at[best][name]) for name in kept)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


class Timid(Parrot):
    """Minimises p(token) instead, as a loss may whose lowest value is no merit; watched by its likelihood."""

    name = "timid"
    guarded = "nll"

    def loss(self, scores: TokenScores, values: Mapping[str, torch.Tensor]) -> TokenLosses:
        return TokenLosses(scores.logprobs_N.exp(), means={"nll": -scores.logprobs_N.detach()})


def test_the_best_validation_is_that_of_the_metric_the_method_is_watched_by(
    student: Student, screen: Screen, tmp_path: Path
):
    facts = trainer(Timid(9, samples(0)), student, tmp_path, screen, keep="best").run()
    rows = {row["step"]: row["metrics"] for row in read_metrics(tmp_path / "metrics.jsonl")}
    assert rows[3]["timid/validation_loss"] > rows[9]["timid/validation_loss"]
    assert rows[3]["timid/validation_nll"] < rows[9]["timid/validation_nll"]
    assert facts["best_step"] == 3


class Rambler(Parrot):
    """What it samples is always cut off."""

    def batch(self, step: int) -> Batch:
        return Batch(samples(step), {"truncated_share": 1.0})


def test_an_alarm_stops_a_training_that_can_then_be_continued_as_if_it_had_not(student: Student, tmp_path: Path):
    before = weights(student)

    def train(work_dir: Path, *, stops: bool) -> None:
        student.model.load_state_dict(before, strict=False)
        config = TrainerConfig(checkpoint_every_steps=6, log_every_steps=4)
        alarms = RolloutAlarms(stops=stops)
        build_trainer(
            Rambler(14, []), student, config, work_dir=work_dir, identity=IDENTITY, alarms=alarms, peak_tflops=0.1
        ).run()

    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    train(tmp_path / "whole", stops=False)
    expected = weights(student)
    with pytest.raises(TrainingError, match=r"parrot, step 10: truncation: truncated_share is 1 .*watch = warn"):
        train(tmp_path / "stopped", stops=True)
    newest = load_newest_checkpoint(tmp_path / "stopped" / "checkpoints", IDENTITY)
    assert newest is not None
    assert newest.step == 10
    train(tmp_path / "stopped", stops=False)
    assert all(torch.equal(expected[name], value) for name, value in weights(student).items())
    rows = {row["step"]: row["metrics"] for row in read_metrics(tmp_path / "stopped" / "metrics.jsonl")}
    assert set(rows) == {4, 6, 8, 10, 12, 14}
    assert [step for step, metrics in rows.items() if "parrot/alarm/truncation" in metrics] == [10, 12, 14]


def test_an_alarm_at_the_last_step_does_not_take_the_student_away(student: Student, tmp_path: Path):
    config = TrainerConfig()
    alarms = RolloutAlarms(stops=True)
    facts = build_trainer(
        Rambler(10, []), student, config, work_dir=tmp_path, identity=IDENTITY, alarms=alarms, peak_tflops=0.1
    ).run()
    assert alarms.reason_to_stop is not None
    assert facts["steps"] == 10


def test_training_ends_when_patience_runs_out_and_is_shown_as_done(student: Student, screen: Screen, tmp_path: Path):
    method = Parrot(60, samples(1))
    facts = trainer(method, student, tmp_path, screen, early_stopping_patience=3, validate_every_steps=1).run()
    assert facts["steps"] < 60
    rows = read_metrics(tmp_path / "metrics.jsonl")
    losses = [row["metrics"]["parrot/validation_loss"] for row in rows if row["step"] > 0]
    assert min(losses) == losses[-4]
    stage, done, total, shown = screen.updates[-1]
    assert (stage, done, total) == ("parrot", facts["steps"], facts["steps"])
    assert set(shown) == {"loss", "learning_rate", "tokens_per_s"}


@pytest.mark.parametrize("setting", [{"keep": "best"}, {"early_stopping_patience": 2}])
def test_what_goes_by_the_validation_loss_needs_one(
    student: Student, screen: Screen, tmp_path: Path, setting: dict[str, object]
):
    with pytest.raises(ConfigError, match="no validation rows"):
        trainer(Parrot(10, []), student, tmp_path, screen, **setting)


def test_a_row_says_how_fast_how_full_and_how_long_to_go(student: Student, screen: Screen, tmp_path: Path):
    trainer(Parrot(4, samples(1)), student, tmp_path, screen, log_every_steps=2, packing=False).run()
    rows = {row["step"]: row["metrics"] for row in read_metrics(tmp_path / "metrics.jsonl")}
    assert set(rows) == {0, 2, 3, 4}
    assert {name.partition("/")[2] for name in rows[2]} == {
        "loss",
        "grad_norm",
        "learning_rate",
        "tokens_per_s",
        "mfu",
        "padding_share",
        "supervised_share",
        "step_s",
        "data_s",
        "train_s",
        "peak_memory_gib",
        "eta_s",
    }
    assert rows[2]["parrot/supervised_share"] == 1.0
    assert 0.0 < rows[2]["parrot/mfu"] < 1.0
    assert rows[0].keys() == {"parrot/validation_loss", "parrot/peak_memory_gib"}
    assert [(done, total) for _, done, total, _ in screen.updates] == [(step, 4) for step in range(5)]
