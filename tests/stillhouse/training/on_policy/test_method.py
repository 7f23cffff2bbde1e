import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stillhouse.config import StudentConfig
from stillhouse.errors import ConfigError, InputError
from stillhouse.progress.state import Fact, NoProgress
from stillhouse.serving.models import load_model
from stillhouse.training.on_policy.batches.credit import teacher_shares
from stillhouse.training.on_policy.method import OnPolicy
from stillhouse.training.on_policy.teachers.local import LocalTeacher
from stillhouse.types import PromptMetadata
from tests.stillhouse.training.trainings import final_of, trainer_of

NewMethod = Callable[..., OnPolicy]

_SHORT = {"max_tokens": 12, "max_turns": 2, "learning_rate": 1e-3}
"""Of little use to learn from, but quickly sampled."""
_TWO_TEACHERS = [
    {"name": "one", "model": "embedded:teacher", "routes": ["0"]},
    {"name": "two", "model": "embedded:student", "routes": ["1"], "kl_coef": 0.5},
]
"""Of the prompts of two sources."""


def train(method: OnPolicy) -> dict[str, torch.Tensor]:
    trainer_of(method).run()
    return {name: parameter.detach().clone() for name, parameter in method.student.trained_parameters()}


def same_bits(weights: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(weights[name], other[name]) for name in weights)


@pytest.mark.parametrize(
    ("parameters", "dtype", "tolerance"),
    [("full", "float32", 1e-4), ("lora", "float32", 1e-4), ("full", "bfloat16", 0.3), ("lora", "bfloat16", 0.3)],
)
def test_sampler_and_trainer_agree_on_log_probs(new_method: NewMethod, parameters: str, dtype: str, tolerance: float):
    method = new_method(student=StudentConfig(parameters=parameters, dtype=dtype), **_SHORT)
    final = final_of(method)
    assert final["on_policy/log_ratio_abs_max"] < tolerance
    assert abs(final["on_policy/log_ratio_mean"]) < tolerance / 30


def test_a_mixture_of_experts_is_sampled_as_it_is_trained(new_method: NewMethod, mixture_model: str):
    final = final_of(new_method(student_ref=mixture_model, **_SHORT))
    assert final["on_policy/log_ratio_abs_max"] < 1e-4


def test_a_model_with_dropout_is_trained_as_it_samples(new_method: NewMethod):
    method = new_method(student=StudentConfig(parameters="lora", dtype="float32", lora_dropout=0.3), **_SHORT)
    for module in method.student.causal_lm.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3
    final = final_of(method)
    assert final["on_policy/log_ratio_abs_max"] < 1e-4


def test_a_step_says_when_it_samples_and_when_it_trains(new_method: NewMethod):
    class Doings(NoProgress):
        seen: list[str] = []

        def update(self, stage: str, done: int, total: int | None, **facts: Fact) -> None:
            self.seen.append(f"{done}/{total} {facts['doing']}")

    new_method(progress=Doings(), num_steps=2).batch(1)
    assert Doings.seen == ["1/2 sampling and scoring", "1/2 training"]


@pytest.mark.parametrize("divergence", [[], [{"kind": "reverse_kl"}]], ids=["sampled", "exact"])
def test_scaled_and_capped_students_and_teachers_of_the_same_weights_do_not_differ(
    new_method: NewMethod, scaled_model: str, divergence: list[dict[str, str]]
):
    settings = _SHORT | {"num_steps": 1, "learning_rate": 1e-6, "divergence": divergence}
    method = new_method(student_ref=scaled_model, teacher=scaled_model, **settings)
    final = final_of(method)
    assert final["on_policy/log_ratio_abs_max"] < 1e-4
    assert abs(final["on_policy/teacher_kl"]) < 1e-5


def test_a_training_that_samples_itself_has_nothing_sampled_meanwhile(new_method: NewMethod):
    with pytest.raises(ConfigError, match=r"max_staleness = 1.*engine_url"):
        new_method(max_staleness=1, **_SHORT)


def test_a_batch_of_rollouts_serves_its_substeps_and_passes(new_method: NewMethod):
    method = new_method(num_substeps=2, num_passes=2, num_steps=8, loss_fn="ppo", **_SHORT)
    batches = [method.batch(step) for step in range(5)]
    ids = [[sample.prompt_id for sample in batch.samples] for batch in batches]
    assert ids[0] == ids[2]
    assert ids[1] == ids[3]
    assert not set(ids[0]) & set(ids[1])
    assert ids[4] != ids[0]
    assert [batch.num_sampled_tokens > 0 for batch in batches] == [True, False, False, False, True]
    assert [batch.metrics["staleness"] for batch in batches] == [0.0, 1.0, 2.0, 3.0, 0.0]


def test_the_teacher_reads_a_batch_once_however_often_it_is_trained_on_with_the_same_bits(new_method: NewMethod):
    settings = {**_SHORT, "num_passes": 3, "num_steps": 6, "divergence": [{"kind": "reverse_kl"}]}
    trained, num_read = [], []
    for keeps in (True, False):
        method = new_method(**settings)
        teacher = method.teachers.by_name["teacher"]
        assert isinstance(teacher, LocalTeacher)
        if not keeps:
            teacher._cache = None
        reads: list[object] = []
        teacher._packed._backbone.register_forward_hook(lambda *args, reads=reads: reads.append(args))
        trained.append(train(method))
        num_read.append(len(reads))
    assert same_bits(*trained)
    assert num_read[0] * 3 == num_read[1]


def failing_after(update: Callable[[float], None], num_steps: int) -> Callable[[float], None]:
    steps = itertools.count(1)

    def fail(learning_rate: float) -> None:
        if next(steps) == num_steps:
            raise RuntimeError("the machine is gone")
        update(learning_rate)

    return fail


@pytest.mark.parametrize(
    "settings",
    [
        {"num_substeps": 2, "num_passes": 2, "correction": "truncate", "loss_fn": "ppo"},
        {"divergence": [{"kind": "jsd"}], "ema_decay": 0.5, "teachers": [{"name": "mean", "kind": "ema"}]},
        {"mixture": {"0": 1, "1": 0.5}},
        {"route_by": "prompt_source", "teachers": _TWO_TEACHERS, "balance": "teachers"},
    ],
    ids=["substeps", "ema", "mixture", "balance"],
)
def test_broken_off_training_continues_with_its_rollouts_to_the_same_bits(
    new_method: NewMethod, metadata: dict[str, PromptMetadata], tmp_path: Path, settings: dict[str, Any]
):
    answers = _of_two_sources(metadata)
    settings = {**_SHORT, "num_steps": 6, "checkpoint_every_steps": 2, "answers": answers, **settings}
    uninterrupted = train(new_method(**settings))
    folder = tmp_path / "broken"
    folder.mkdir()
    first = new_method(folder=folder, **settings)
    trainer = trainer_of(first)
    trainer.weights.update = failing_after(trainer.weights.update, 5)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the machine is gone"):
        trainer.run()
    sampled = {path: path.stat().st_mtime_ns for path in (folder / "rollouts").iterdir()}
    assert sampled
    assert same_bits(train(new_method(folder=folder, **settings)), uninterrupted)
    assert all(path.stat().st_mtime_ns == when for path, when in sampled.items() if path.exists())


def _of_two_sources(metadata: dict[str, PromptMetadata]) -> dict[str, PromptMetadata]:
    numbered = enumerate(metadata.items())
    return {key: replace(entry, metadata={"prompt_source": str(number % 2)}) for number, (key, entry) in numbered}


def test_each_prompt_is_scored_by_the_teacher_of_its_route(new_method: NewMethod, metadata: dict[str, PromptMetadata]):
    tags = {key: replace(entry, tag=("a%", "b")[number % 2]) for number, (key, entry) in enumerate(metadata.items())}
    teachers = [
        {"name": "one", "model": "embedded:teacher", "routes": ["a%"], "kl_coef": 0.5},
        {"name": "two", "model": "embedded:student", "routes": ["b"]},
    ]
    method = new_method(answers=tags, teachers=teachers, prompts_per_step=8, num_steps=1)
    table = method.table(0)
    for tag, *found in zip(table.tag, table.teacher, table.kl_coef, strict=True):
        assert found == {"a%": ["one", 0.5], "b": ["two", 1.0]}[str(tag)]
    final = final_of(method)
    assert abs(final["on_policy/teacher_kl/two"]) < 0.1 < final["on_policy/teacher_kl/one"]
    assert final["on_policy/teacher_kl_by_tag/a%"] == final["on_policy/teacher_kl/one"]
    assert final["on_policy/teacher_kl_by_tag/b"] == final["on_policy/teacher_kl/two"]
    assert {"on_policy/reward_by_tag/a%", "on_policy/reward_by_tag/b"} <= final.keys()
    with pytest.raises(InputError, match="'b'"):
        new_method(answers=tags, teachers=teachers[:1])


@pytest.mark.parametrize("divergence", [[], [{"kind": "reverse_kl"}]], ids=["sampled", "exact"])
def test_teachers_of_few_tokens_have_an_equal_share_of_each_substep_in_whatever_microbatches(
    new_method: NewMethod, metadata: dict[str, PromptMetadata], divergence: list[dict[str, str]]
):
    settings = _SHORT | {
        "answers": _of_two_sources(metadata),
        "route_by": "prompt_source",
        "teachers": _TWO_TEACHERS,
        "mixture": {"0": 6, "1": 2},
        "prompts_per_step": 8,
        "num_substeps": 2,
        "divergence": divergence,
    }
    shares = new_method(**settings).batch(0).metrics
    assert shares["teacher_share/one"] + shares["teacher_share/two"] == pytest.approx(1.0)
    assert shares["teacher_share/two"] < 0.45
    finals = []
    for microbatch_tokens in (1, 100_000):
        method = new_method(balance="teachers", microbatch_tokens=microbatch_tokens, **settings)
        for step in (0, 1):
            table = method.table(step)
            shares = teacher_shares(table, table.weight, np.flatnonzero(table.part == step))
            assert shares == pytest.approx({"one": 0.5, "two": 0.5})
        finals.append(final_of(method))
    assert finals[0]["on_policy/teacher_share/two"] == pytest.approx(0.5)
    for name in ("loss", "grad_norm"):
        assert finals[0][f"on_policy/{name}"] == pytest.approx(finals[1][f"on_policy/{name}"], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("divergence", [[], [{"kind": "reverse_kl"}]], ids=["sampled", "exact"])
def test_a_prompt_without_a_teacher_is_trained_on_its_reward_alone(
    new_method: NewMethod, metadata: dict[str, PromptMetadata], divergence: list[dict[str, str]]
):
    tags = {key: replace(entry, tag="ab"[number % 2]) for number, (key, entry) in enumerate(metadata.items())}
    teacher = {"name": "one", "model": "embedded:teacher", "routes": ["a"]}
    method = new_method(
        answers=tags,
        teachers=[teacher],
        unrouted="no_kl",
        reward_coef=1.0,
        group_size=2,
        divergence=divergence,
        num_steps=1,
    )
    keys = [method.partition(sample) for sample in method.batch(0).samples]
    of_teacher = [name or "" for name in method.table(0).teacher]
    assert keys == (of_teacher if divergence else [""] * len(of_teacher)), "one teacher is compared in a microbatch"
    final = final_of(method)
    assert final["on_policy/teacher_kl"] == pytest.approx(final["on_policy/teacher_kl/one"])


def test_teacher_scores_the_sampled_tokens_at_the_sampling_temperature(new_method: NewMethod):
    model = load_model("embedded:teacher", device="cpu")
    table = new_method(temperature=0.8).table(0)
    for row in table.rows():
        ids = torch.tensor(row.token_ids).long()
        logprobs = (model(input_ids=ids[None]).logits[0, :-1] / 0.8).log_softmax(-1)
        expected = logprobs.gather(1, ids[1:, None]).squeeze(1).numpy() * row.loss_mask[1:]
        assert table.teacher_logprobs[row.tokens][1:] == pytest.approx(expected, abs=1e-4)


def test_system_prompt_stands_before_the_prompt(new_method: NewMethod):
    method = new_method(system_prompt="Be brief.", max_tokens=2)
    text = method.student.tokenizer.decode(method.batch(0).samples[0].token_ids)
    assert "Be brief." in text


def test_a_batch_that_is_lost_halfway_is_sampled_again_and_trained_to_its_end(new_method: NewMethod, tmp_path: Path):
    settings = {**_SHORT, "num_passes": 2, "loss_fn": "ppo", "correction": "truncate"}
    killed = new_method(folder=tmp_path, **settings)
    killed.batch(0)
    for path in (tmp_path / "rollouts").iterdir():
        path.unlink()
    table = new_method(folder=tmp_path, **settings).table(1)
    assert table.old_logprobs is not None
    assert np.isfinite(table.old_logprobs).all()
