from collections.abc import Callable
from pathlib import Path

from stillhouse.config import DistillConfig
from stillhouse.prompts import parse_prompts
from stillhouse.store.records import read_trajectories
from stillhouse.types import JsonObject

Convert = Callable[..., tuple[DistillConfig, dict[str, JsonObject]]]
SECRET = "tvly-0123456789abcdef"


def test_every_key_of_an_rnow_config_is_written_or_listed(rnow: Convert) -> None:
    config, unmapped = rnow()
    assert (config.sft.enabled, config.on_policy.enabled) == (False, True)
    assert (config.student.model, config.teacher.model) == ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B")
    assert (config.student.lora_rank, config.student.lora_alpha, config.student.max_length) == (16, 32.0, 16384)
    assert (config.on_policy.prompts_per_step, config.on_policy.group_size) == (4, 8)
    assert (config.on_policy.kl_coef, config.on_policy.learning_rate) == (0.1, 5e-5)
    assert (config.on_policy.max_turns, config.rollouts.max_turns, config.on_policy.max_tokens) == (10, 10, 4096)
    assert (config.rollouts.timeout_s, config.tools.timeout_s) == (900.0, 30.0)
    assert config.rollouts.reasoning_effort == "none"
    assert config.tools.mcp[0].url == "http://localhost:8931/mcp"
    assert config.dataset.validation_fraction == 0.2
    assert config.tracking.experiment == "Distilled Agent"
    assert unmapped.keys() >= {
        "trainer.num_epochs",
        "trainer.max_billing",
        "rollout.max_tool_response",
        "evals",
        "data",
    }
    assert (config.on_policy.loss_fn, config.on_policy.adv_estimator) == ("ppo", "grpo")
    assert config.on_policy.reward_coef == 0.0
    assert unmapped["data"]["value"] == "train.jsonl"


def test_epochs_of_on_policy_training_are_steps_over_the_rows_that_are_there(
    tmp_path: Path, write: Callable[..., Path], rnow: Convert
) -> None:
    rows = [{"messages": [{"role": "user", "content": f"What is 2 + {number}?"}]} for number in range(9)]
    write(tmp_path / "train.jsonl", *rows)
    config, unmapped = rnow()
    assert config.on_policy.num_steps == 3 * 3
    assert "trainer.num_epochs" not in unmapped


def test_a_project_of_rnow_comes_with_its_rows_tools_and_rewards(
    tmp_path: Path, write: Callable[..., Path], rnow: Convert
) -> None:
    answered = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]
    write(tmp_path / "train.jsonl", {"messages": answered})
    write(tmp_path / "tools.py", "")
    write(tmp_path / "rewards.py", "")
    config, unmapped = rnow(dataset_type="sft", teacher=None, algorithm=None, rollout=None)
    assert (config.sft.enabled, config.on_policy.enabled) == (True, False)
    assert (config.sft.num_epochs, config.sft.batch_size, config.sft.trainer.checkpoint_every_steps) == (3, 4, 20)
    (prompt,) = parse_prompts(config.prompts).prompts
    assert config.rollouts.trajectories_file is not None
    (trajectory,) = read_trajectories(Path(config.rollouts.trajectories_file))
    assert (trajectory.prompt_id, trajectory.messages) == (prompt.id, answered)
    assert config.tools.file == str(tmp_path / "tools.py")
    assert config.tools.rewards_file == str(tmp_path / "rewards.py")
    assert unmapped.keys() >= {"teacher", "data.group_size"}


def test_a_mode_that_is_not_offered_trains_nothing_and_says_so(rnow: Convert) -> None:
    config, unmapped = rnow(dataset_type="midtrain", teacher=None)
    assert (config.sft.enabled, config.on_policy.enabled) == (False, False)
    assert unmapped["dataset_type"]["value"] == "midtrain"


def test_rewards_alone_train_a_student_that_may_be_held_near_its_base(rnow: Convert) -> None:
    settings = {"loss_fn": "importance_sampling", "adv_estimator": "reinforce", "kl_penalty_coef": 0.01}
    config, unmapped = rnow(dataset_type="rl", teacher=None, algorithm=settings)
    assert (config.sft.enabled, config.on_policy.enabled, config.on_policy.reward_coef) == (False, True, 1.0)
    assert (config.on_policy.loss_fn, config.on_policy.adv_estimator) == ("importance_sampling", "reinforce")
    assert [(one.kind, config.on_policy.kl_coef) for one in config.on_policy.teachers] == [("base", 0.01)]
    assert "names no teacher" in unmapped["teacher"]["reason"]
    no_kl = {"adv_estimator": "gae", "kl_penalty_coef": 0}
    data = {"train_file": "t.jsonl", "batch_size": 4}
    config, unmapped = rnow(dataset_type="rl", teacher=None, algorithm=no_kl, data=data)
    assert (config.on_policy.kl_coef, config.on_policy.teachers, config.on_policy.group_size) == (0.0, (), 4)
    assert "no critic" in unmapped["algorithm.adv_estimator"]["reason"]


def test_a_teacher_that_cannot_score_is_learnt_from_by_what_it_writes(rnow: Convert) -> None:
    model = "anthropic/claude-sonnet-4.5"
    config, unmapped = rnow(teacher={"path": model})
    assert (config.sft.enabled, config.on_policy.enabled, config.teacher.model) == (True, False, model)
    assert (config.sft.batch_size, config.sft.learning_rate) == (4, 5e-5)
    assert "no log-probabilities" in unmapped["teacher.path"]["reason"]


def test_distillation_on_policy_without_a_teacher_is_off_and_says_so(rnow: Convert) -> None:
    config, unmapped = rnow(teacher=None)
    assert (config.sft.enabled, config.on_policy.enabled) == (False, False)
    assert "needs teacher.path" in unmapped["teacher.path"]["reason"]


def test_unknown_keys_and_values_that_would_be_refused_are_listed(rnow: Convert) -> None:
    changes = {
        "surprise": {"deep": 1},
        "model": {"path": ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"], "qlora_rank": 0},
        "data": {"batch_size": "four", "val_split": 1},
    }
    config, unmapped = rnow(**changes)
    assert unmapped["surprise"]["value"] == {"deep": 1}
    assert "has no counterpart" in unmapped["surprise"]["reason"]
    assert "expected at least 1" in unmapped["model.qlora_rank"]["reason"]
    assert "expected a whole number" in unmapped["data.batch_size"]["reason"]
    assert unmapped["data.val_split"]["value"] == 1
    assert unmapped["model.path"]["value"] == ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"]
    assert config.on_policy.kl_coef == 0.1


def test_secrets_are_neither_copied_nor_listed(tmp_path: Path, rnow_body: JsonObject, rnow: Convert) -> None:
    rollout = {**rnow_body["rollout"], "mcp_url": f"https://mcp.example.org/mcp/?apiKey={SECRET}"}
    extra = {"api_key": SECRET, "docker_env": {"TOKEN": SECRET}, "nested": {"list": [{"password": SECRET}]}}
    _, unmapped = rnow(rollout=rollout, **extra)
    assert all(SECRET not in file.read_text() for file in (tmp_path / "out").iterdir())
    assert unmapped["docker_env"]["value"] == {"TOKEN": "(not shown)"}
    assert unmapped["nested"]["value"] == {"list": [{"password": "(not shown)"}]}
    assert "never copied" in unmapped["rollout.mcp_url"]["reason"]


def test_defaults_of_rnow_that_differ_are_written_out(rnow: Convert) -> None:
    config, unmapped = rnow(dataset_type="rl", teacher=None, algorithm=None, rollout=None, data={"batch_size": 4})
    trained = config.on_policy
    assert (trained.loss_fn, trained.kl_coef, trained.adv_estimator, trained.group_size) == ("ppo", 0.01, "grpo", 4)
    assert (trained.max_turns, trained.max_tokens, config.evaluation.max_turns) == (1, 32768, 1)
    config, unmapped = rnow(rollout={"max_turns": 3, "max_context_window": 16000})
    assert (config.on_policy.max_tokens, config.evaluation.max_tokens, config.on_policy.max_turns) == (16000, 16000, 3)
    assert unmapped["rollout.max_context_window"]["is_approximated"]
