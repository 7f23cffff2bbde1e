from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from stillhouse.config import OnPolicyConfig, RuntimeConfig, StudentConfig, ToolsConfig
from stillhouse.errors import ConfigError, TrainingError
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.assembly import build_trainer
from stillhouse.training.on_policy.method import OnPolicy, ScoredSample
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.on_policy.teacher import check_vocabularies, load_teacher
from stillhouse.training.student.load import load_student
from stillhouse.types import Prompt, PromptMetadata

NewMethod = Callable[..., OnPolicy]


@pytest.fixture
def new_method(
    prompts: list[Prompt],
    metadata: dict[str, PromptMetadata],
    full_student: StudentConfig,
    calculator: ToolsConfig,
    runtime: RuntimeConfig,
) -> NewMethod:
    def make(
        *,
        answers: dict[str, PromptMetadata] = metadata,
        teacher: str = "embedded:teacher",
        system_prompt: str | None = None,
        student: StudentConfig = full_student,
        **settings: object,
    ) -> OnPolicy:
        config = OnPolicyConfig.model_validate(
            {"prompts_per_step": 4, "num_steps": 2, "max_tokens": 64, "max_turns": 5, **settings}
        )
        trained = load_student("embedded:student", student, torch.device("cpu"), seed=0)
        scorer = load_teacher(teacher, trained.tokenizer, config, runtime, "float32")
        sampler = Sampler(trained.tokenizer, Toolbox.from_config(calculator), config, 512, system_prompt)
        return OnPolicy(trained, scorer, prompts, answers, sampler, config)

    return make


def train(method: OnPolicy, work_dir: Path) -> dict[str, torch.Tensor]:
    work_dir.mkdir()
    config = method._config
    build_trainer(method, method._student, config, work_dir=work_dir, identity={}, peak_tflops=1.0).run()
    return {name: parameter.detach().clone() for name, parameter in method._student.trained_parameters()}


def test_batch_has_group_size_trajectories_of_distinct_prompts(new_method: NewMethod):
    batch = new_method(group_size=2, temperature=2.0, max_tokens=16).batch(0)
    ids = [sample.prompt_id for sample in batch.samples]
    assert len(ids) == 8
    assert len(set(ids)) == 4
    assert batch.samples[0].token_ids != batch.samples[1].token_ids


def test_teacher_equal_to_student_finds_no_kl_and_gives_no_gradient(new_method: NewMethod, tmp_path: Path):
    method = new_method(teacher="embedded:student", num_steps=1, learning_rate=1e-3)
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    trainer = build_trainer(method, method._student, method._config, work_dir=work_dir, identity={}, peak_tflops=1.0)
    final = trainer.run()["final"]
    assert abs(final["on_policy/teacher_kl"]) < 1e-5
    assert final["on_policy/grad_norm"] < 1e-3


@pytest.mark.parametrize(
    ("parameters", "dtype", "tolerance"),
    [("full", "float32", 1e-4), ("lora", "float32", 1e-4), ("full", "bfloat16", 0.3), ("lora", "bfloat16", 0.3)],
)
def test_sampler_and_trainer_agree_on_log_probs(
    new_method: NewMethod, tmp_path: Path, parameters: str, dtype: str, tolerance: float
):
    method = new_method(student=StudentConfig(parameters=parameters, dtype=dtype), num_steps=2, learning_rate=1e-3)
    work_dir = tmp_path / "work"
    work_dir.mkdir()
    trainer = build_trainer(method, method._student, method._config, work_dir=work_dir, identity={}, peak_tflops=1.0)
    final = trainer.run()["final"]
    assert final["on_policy/log_ratio_abs_max"] < tolerance
    assert abs(final["on_policy/log_ratio_mean"]) < tolerance / 30


def test_rewards_change_nothing_bit_for_bit(new_method: NewMethod, metadata: dict[str, PromptMetadata], tmp_path: Path):
    wrong = {key: replace(entry, expected_answer="-1") for key, entry in metadata.items()}
    settings = {"learning_rate": 1e-3, "num_steps": 2}
    with_rewards = train(new_method(**settings), tmp_path / "right")
    without = train(new_method(answers=wrong, **settings), tmp_path / "wrong")
    assert all(torch.equal(with_rewards[name], without[name]) for name in with_rewards)


def test_metrics_count_shares_over_the_batch(new_method: NewMethod, metadata: dict[str, PromptMetadata]):
    method = new_method(prompts_per_step=8)
    batch = method.batch(0)
    num_sampled = sum(sum(sample.loss_mask) for sample in batch.samples)
    assert batch.num_sampled_tokens == num_sampled
    assert batch.metrics["mean_completion_tokens"] == num_sampled / 8
    assert batch.metrics["masked_share"] == pytest.approx(
        1 - num_sampled / sum(len(sample.token_ids) for sample in batch.samples)
    )
    assert batch.metrics["reward"] in {count / 8 for count in range(9)}
    assert 0.0 <= batch.metrics["valid_tool_call_share"] <= 1.0


def test_shares_without_a_denominator_are_left_out(new_method: NewMethod):
    metrics = new_method(answers={}, max_tokens=2).batch(0).metrics
    assert "reward" not in metrics
    assert "valid_tool_call_share" not in metrics
    assert metrics["truncated_share"] == 1.0


def test_teacher_scores_the_sampled_sequence_at_the_sampling_temperature(new_method: NewMethod):
    method = new_method(temperature=0.8)
    for sample in method.batch(0).samples:
        assert isinstance(sample, ScoredSample)
        logits = method._teacher.model(input_ids=torch.tensor([sample.token_ids])).logits[0]
        logprobs = (logits / 0.8).log_softmax(-1)
        expected = [0.0] + [logprobs[i, token].item() for i, token in enumerate(sample.token_ids[1:])]
        assert sample.teacher_logprobs == pytest.approx(expected, abs=1e-4)


def test_prompt_that_fills_the_context_is_counted_and_not_trained_on(new_method: NewMethod):
    method = new_method(system_prompt="Count. " * 200)
    batch = method.batch(0)
    assert not batch.samples
    assert batch.metrics["truncated_share"] == 1.0


def test_system_prompt_stands_before_the_prompt(new_method: NewMethod):
    method = new_method(system_prompt="Be brief.", max_tokens=2)
    text = method._student.tokenizer.decode(method.batch(0).samples[0].token_ids)
    assert "Be brief." in text


def test_too_few_prompts_are_refused(new_method: NewMethod):
    with pytest.raises(ConfigError, match=r"prompts_per_step = 32: expected at most .* 16"):
        new_method(prompts_per_step=32)


def test_teacher_of_another_vocabulary_is_refused_with_the_tokens_that_differ():
    student = AutoTokenizer.from_pretrained(_embedded("student"))
    teacher = AutoTokenizer.from_pretrained(_embedded("teacher"))
    check_vocabularies("embedded:teacher", teacher, student)
    teacher.add_tokens(["<extra>"])
    with pytest.raises(TrainingError, match=r"1 tokens differ \('<extra>' is None for the student"):
        check_vocabularies("embedded:teacher", teacher, student)


def _embedded(name: str) -> str:
    from stillhouse.chat.refs import resolve_model

    return resolve_model(f"embedded:{name}")
