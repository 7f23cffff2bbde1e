import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stillhouse.config import DistillConfig, load_config
from stillhouse.convert import convert
from stillhouse.errors import ConfigError, InputError
from stillhouse.prompts import load_prompts
from stillhouse.store.records import read_jsonl, read_trajectories
from stillhouse.types import JsonObject

Write = Callable[..., Path]
RNOW: JsonObject = {
    "project_name": "Distilled Agent",
    "project_id": "",
    "dataset_type": "distill",
    "data": {"train_file": "train.jsonl", "batch_size": 4, "group_size": 8, "val_split": 0.2},
    "model": {"path": "Qwen/Qwen3-8B", "qlora_rank": 16, "name": None},
    "teacher": {"path": "Qwen/Qwen3-32B", "agentic": True},
    "algorithm": {"loss_fn": "ppo", "adv_estimator": "grpo", "kl_penalty_coef": 0.1},
    "rollout": {
        "max_turns": 10,
        "max_tokens": 4096,
        "max_context_window": 16384,
        "termination_policy": "last_tool",
        "reasoning_mode": "disabled",
        "mcp_url": "localhost:8931",
        "tool_timeout": 30,
        "rollout_timeout": 900,
        "max_tool_response": 500,
    },
    "trainer": {"num_epochs": 3, "learning_rate": 5e-5, "save_step": 20, "max_billing": 10.0},
    "evals": [{"eval_id": "e1", "step": 10}],
}
ROLL = """
exp_name: "qwen3-8B-opd"
seed: 42
output_dir: ./output/
system_envs:
  HF_TOKEN: very-private
track_with: wandb
tracker_kwargs:
  api_key: dce12064d30900b2cc538f73e82997de5aafbb96
  project: opd
max_steps: 1024
save_steps: 100
rollout_batch_size: 32
prompt_length: 2048
response_length: 4096
sequence_length: 6144
num_return_sequences_in_group: 4
pretrain: Qwen/Qwen3-8B
opd_kl_coef: 0.5
student_train:
  model_args:
    model_name_or_path: ${pretrain}
    dtype: bf16
    attn_implementation: fa2
  training_args:
    learning_rate: 5.0e-7
    weight_decay: 0.1
    per_device_train_batch_size: 1
    gradient_accumulation_steps: 8
    warmup_steps: 20
  data_args:
    file_name:
      - data/math.jsonl
    template: qwen3
  strategy_args:
    strategy_name: megatron_train
  device_mapping: list(range(0,8))
student_infer:
  model_args:
    model_name_or_path: ${pretrain}
  generating_args:
    max_new_tokens: ${response_length}
    top_p: 0.99
    temperature: 0.99
    num_return_sequences: ${num_return_sequences_in_group}
teacher:
  model_args:
    model_name_or_path: Qwen/Qwen3-32B
  device_mapping: list(range(0,8))
rewards:
  math_rule:
    worker_cls: roll.pipeline.rlvr.rewards.math_rule_reward_worker.MathRuleRewardWorker
    tag_included: [deepmath, aime]
    world_size: 8
  code_sandbox:
    worker_cls: roll.pipeline.rlvr.rewards.code_sandbox_reward_worker.CodeSandboxRewardWorker
  ifeval:
    worker_cls: roll.pipeline.rlvr.rewards.ifeval_rule_reward_worker.GeneralRuleRewardWorker
"""


def _rnow(**changes: Any) -> str:
    body = {key: value for key, value in {**RNOW, **changes}.items() if value is not None}
    return yaml.safe_dump(body)


def _converted(source: Path) -> tuple[DistillConfig, dict[str, JsonObject]]:
    """The config, and what was not mapped by its key."""
    folder = source.parent / "out"
    convert(source, folder)
    unmapped = {row["key"]: row for row in read_jsonl(folder / "unmapped.jsonl")}
    return load_config(folder / "config.yaml"), unmapped


def test_every_key_of_an_rnow_config_is_written_or_listed(tmp_path: Path, write: Write) -> None:
    config, unmapped = _converted(write(tmp_path / "config.yml", _rnow()))
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
    assert (config.on_policy.loss_fn, config.on_policy.adv_estimator, config.on_policy.agentic) == ("ppo", "grpo", "on")
    assert config.on_policy.reward_coef == 0.0
    assert unmapped["data"]["value"] == "train.jsonl"


def test_a_project_of_rnow_comes_with_its_rows_tools_and_rewards(tmp_path: Path, write: Write) -> None:
    answered = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]
    write(tmp_path / "train.jsonl", {"messages": answered})
    write(tmp_path / "tools.py", "")
    write(tmp_path / "rewards.py", "")
    source = write(tmp_path / "config.yml", _rnow(dataset_type="sft", teacher=None, algorithm=None, rollout=None))
    config, unmapped = _converted(source)
    assert (config.sft.enabled, config.on_policy.enabled) == (True, False)
    assert (config.sft.num_epochs, config.sft.batch_size, config.sft.checkpoint_every_steps) == (3, 4, 20)
    (prompt,) = load_prompts(config.prompts).prompts
    assert config.rollouts.trajectories_file is not None
    (trajectory,) = read_trajectories(Path(config.rollouts.trajectories_file))
    assert (trajectory.prompt_id, trajectory.messages) == (prompt.id, answered)
    assert config.tools.file == str(tmp_path / "tools.py")
    assert config.tools.rewards_file == str(tmp_path / "rewards.py")
    assert unmapped.keys() >= {"tools.py", "rewards.py", "teacher", "data.group_size"}


def test_a_mode_that_is_not_offered_trains_nothing_and_says_so(tmp_path: Path, write: Write) -> None:
    config, unmapped = _converted(write(tmp_path / "config.yml", _rnow(dataset_type="midtrain", teacher=None)))
    assert (config.sft.enabled, config.on_policy.enabled) == (False, False)
    assert unmapped["dataset_type"]["value"] == "midtrain"


def test_rewards_alone_train_a_student_that_may_be_held_near_its_base(tmp_path: Path, write: Write) -> None:
    settings = {"loss_fn": "importance_sampling", "adv_estimator": "reinforce", "kl_penalty_coef": 0.01}
    source = write(tmp_path / "config.yml", _rnow(dataset_type="rl", teacher=None, algorithm=settings))
    config, unmapped = _converted(source)
    assert (config.sft.enabled, config.on_policy.enabled, config.on_policy.reward_coef) == (False, True, 1.0)
    assert (config.on_policy.loss_fn, config.on_policy.adv_estimator) == ("importance_sampling", "reinforce")
    assert [(one.kind, config.on_policy.kl_coef) for one in config.on_policy.teachers] == [("base", 0.01)]
    assert "names no teacher" in unmapped["teacher"]["reason"]
    no_kl = {"adv_estimator": "gae"}
    plain = _rnow(dataset_type="rl", teacher=None, algorithm=no_kl, data={"train_file": "t.jsonl", "batch_size": 4})
    config, unmapped = _converted(write(tmp_path / "config.yml", plain))
    assert (config.on_policy.kl_coef, config.on_policy.teachers, config.on_policy.group_size) == (0.0, (), 4)
    assert "no critic" in unmapped["algorithm.adv_estimator"]["reason"]


def test_a_teacher_that_cannot_score_is_learnt_from_by_what_it_writes(tmp_path: Path, write: Write) -> None:
    model = "anthropic/claude-sonnet-4.5"
    config, unmapped = _converted(write(tmp_path / "config.yml", _rnow(teacher={"path": model})))
    assert (config.sft.enabled, config.on_policy.enabled, config.teacher.model) == (True, False, model)
    assert (config.sft.batch_size, config.sft.learning_rate) == (4, 5e-5)
    assert "no log-probabilities" in unmapped["teacher.path"]["reason"]
    body = yaml.safe_load(ROLL) | {"teacher": {"model_args": {"model_name_or_path": model}}}
    config, unmapped = _converted(write(tmp_path / "roll/opd.yaml", yaml.safe_dump(body)))
    assert (config.sft.enabled, config.on_policy.enabled, config.teacher.model) == (True, False, model)
    assert "teacher.base_url" in unmapped["teacher"]["reason"]


def test_distillation_on_policy_without_a_teacher_is_off_and_says_so(tmp_path: Path, write: Write) -> None:
    config, unmapped = _converted(write(tmp_path / "config.yml", _rnow(teacher=None)))
    assert (config.sft.enabled, config.on_policy.enabled) == (False, False)
    assert "needs teacher.path" in unmapped["teacher.path"]["reason"]


def test_unknown_keys_and_values_that_would_be_refused_are_listed(tmp_path: Path, write: Write) -> None:
    changes = {
        "surprise": {"deep": 1},
        "model": {"path": ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"], "qlora_rank": 0},
        "data": {"batch_size": "four", "val_split": 1},
    }
    config, unmapped = _converted(write(tmp_path / "config.yml", _rnow(**changes)))
    assert unmapped["surprise"]["value"] == {"deep": 1}
    assert "has no counterpart" in unmapped["surprise"]["reason"]
    assert "greater than or equal to 1" in unmapped["model.qlora_rank"]["reason"]
    assert "valid integer" in unmapped["data.batch_size"]["reason"]
    assert unmapped["data.val_split"]["value"] == 1
    assert unmapped["model.path"]["value"] == ["Qwen/Qwen3-8B", "Qwen/Qwen3-32B"]
    assert config.on_policy.kl_coef == 0.1


SECRET = "tvly-0123456789abcdef"


def test_secrets_are_neither_copied_nor_listed(tmp_path: Path, write: Write) -> None:
    rollout = {**RNOW["rollout"], "mcp_url": f"https://mcp.example.org/mcp/?apiKey={SECRET}"}
    extra = {"api_key": SECRET, "docker_env": {"TOKEN": SECRET}, "nested": {"list": [{"password": SECRET}]}}
    _, unmapped = _converted(write(tmp_path / "config.yml", _rnow(rollout=rollout, **extra)))
    assert all(SECRET not in file.read_text() for file in (tmp_path / "out").iterdir())
    assert unmapped["docker_env"]["value"] == {"TOKEN": "(not shown)"}
    assert unmapped["nested"]["value"] == {"list": [{"password": "(not shown)"}]}
    assert "never copied" in unmapped["rollout.mcp_url"]["reason"]


def test_every_key_of_a_roll_config_is_written_or_listed(tmp_path: Path, write: Write) -> None:
    row = {"id": "0", "prompt": "3x + 5 = 14", "tag": "deepmath", "ground_truth": "3"}
    write(tmp_path / "data/math.jsonl", row, json.dumps(row)[:20])
    config, unmapped = _converted(write(tmp_path / "opd.yaml", ROLL))
    assert (config.sft.enabled, config.on_policy.enabled) == (False, True)
    assert (config.student.model, config.student.parameters, config.student.dtype) == (
        "Qwen/Qwen3-8B",
        "full",
        "bfloat16",
    )
    assert (config.teacher.model, config.on_policy.kl_coef) == ("Qwen/Qwen3-32B", 0.5)
    assert (config.on_policy.num_steps, config.on_policy.prompts_per_step, config.on_policy.group_size) == (1024, 32, 4)
    assert (config.on_policy.max_tokens, config.on_policy.temperature, config.on_policy.max_turns) == (4096, 0.99, 1)
    assert (config.on_policy.learning_rate, config.on_policy.warmup_steps, config.on_policy.seed) == (5e-7, 20, 42)
    assert config.prompts.verifier_by_tag == {"deepmath": "math", "aime": "math", "code_sandbox": "python"}
    (prompt,) = load_prompts(config.prompts).prompts
    assert prompt.messages == [{"role": "user", "content": "3x + 5 = 14"}]
    assert (config.on_policy.top_p, config.on_policy.reward_coef, config.on_policy.loss_fn) == (0.99, 0.0, "ppo")
    assert config.on_policy.aggregation == "sequence_mean_token_mean"
    assert unmapped.keys() >= {
        "student_train.training_args.gradient_accumulation_steps",
        "student_train.strategy_args",
        "teacher.device_mapping",
        "rewards.ifeval",
        "tracker_kwargs",
        "system_envs",
        None,  # the torn row
    }
    assert unmapped["tracker_kwargs"]["value"] == {"api_key": "(not shown)", "project": "opd"}
    written = "".join(file.read_text() for file in (tmp_path / "out").iterdir())
    assert "very-private" not in written
    assert "dce12064" not in written


def _roll(path: Path, write: Write, *drop: str, **changes: Any) -> tuple[DistillConfig, dict[str, JsonObject]]:
    body = {key: value for key, value in yaml.safe_load(ROLL).items() if key not in drop} | changes
    return _converted(write(path, yaml.safe_dump(body)))


def _as_rlvr() -> JsonObject:
    body = yaml.safe_load(ROLL)
    return {"actor_train": body["student_train"], "actor_infer": body["student_infer"]}


STUDENT = ("student_train", "student_infer")


def test_rewards_are_mixed_in_where_roll_does(tmp_path: Path, write: Write) -> None:
    group = {"adv_estimator": "reinforce", "norm_mean_type": "group", "norm_std_type": None}
    config, _ = _roll(tmp_path / "rlvr.yaml", write, *STUDENT, **_as_rlvr(), **group, use_opd=True)
    assert (config.on_policy.reward_coef, config.on_policy.kl_coef) == (1.0, 0.5)
    assert (config.on_policy.adv_estimator, config.on_policy.kl_in_reward) == ("mean", False)


def test_a_pipeline_of_rewards_has_no_teacher(tmp_path: Path, write: Write) -> None:
    changes = {"adv_estimator": "grpo", "use_kl_loss": True, "add_token_level_kl": False}
    config, unmapped = _roll(tmp_path / "rlvr.yaml", write, *STUDENT, **_as_rlvr(), **changes)
    assert config.on_policy.enabled
    assert (config.on_policy.reward_coef, config.on_policy.kl_coef) == (1.0, 0.0)
    assert "without either, rewards alone" in unmapped["teacher"]["reason"]
    assert "kind `base`" in unmapped["use_kl_loss"]["reason"]
    assert "add_token_level_kl" not in unmapped


def test_both_ways_of_distilling_at_once_are_refused(tmp_path: Path, write: Write) -> None:
    with pytest.raises(ConfigError, match=r"is_pure_opd and use_opd are both true.* Leave out one"):
        _roll(tmp_path / "opd.yaml", write, is_pure_opd=True, use_opd=True)


def test_several_teachers_share_the_prompts_by_tag(tmp_path: Path, write: Write) -> None:
    def worker(model: str, **settings: Any) -> JsonObject:
        return {"model_args": {"model_name_or_path": model}, "device_mapping": "list(range(0,4))", **settings}

    math = worker("Qwen/Qwen3-32B", tag_included=["deepmath", "aime"], opd_kl_coef=0.7)
    code = worker("Qwen/Qwen3-14B", tag_included=["code"])
    config, unmapped = _roll(tmp_path / "opd.yaml", write, teacher={"math": math, "code": code})
    found = {one.name: (one.model, one.routes, one.kl_coef) for one in config.on_policy.teachers}
    assert found == {
        "math": ("Qwen/Qwen3-32B", ("deepmath", "aime"), 0.7),
        "code": ("Qwen/Qwen3-14B", ("code",), None),
    }
    assert (config.on_policy.route_by, config.on_policy.unrouted, config.on_policy.kl_coef) == ("tag", "no_kl", 0.5)
    assert unmapped.keys() >= {"teacher.math.device_mapping", "teacher.code.device_mapping"}
    assert "teacher" not in unmapped
    both = {"math": math, "all": worker("Qwen/Qwen3-14B")}
    config, unmapped = _roll(tmp_path / "opd.yaml", write, teacher=both)
    assert config.on_policy.unrouted == "error"
    assert "adds up their KL" in unmapped["teacher"]["reason"]
    config, _ = _roll(tmp_path / "opd.yaml", write, teacher=math)
    assert [one.routes for one in config.on_policy.teachers] == [("deepmath", "aime")]


def test_where_no_teacher_is_named_the_student_without_its_adapter_is_one(tmp_path: Path, write: Write) -> None:
    config, unmapped = _roll(tmp_path / "opd.yaml", write, "teacher")
    assert not config.on_policy.enabled
    assert "has no teacher" in unmapped["teacher"]["reason"]
    train = yaml.safe_load(ROLL)["student_train"]
    train["model_args"] |= {"lora_target": "all-linear", "lora_rank": 8}
    config, _ = _roll(tmp_path / "opd.yaml", write, "teacher", student_train=train)
    assert config.on_policy.enabled
    assert [one.kind for one in config.on_policy.teachers] == ["base"]
    elsewhere = {"model_args": {"model_name_or_path": "${oc.env:TEACHER}"}}
    config, unmapped = _roll(tmp_path / "opd.yaml", write, teacher=elsewhere, student_train=train)
    assert not config.on_policy.enabled
    assert unmapped["teacher"]["value"] == elsewhere


def test_self_distillation_hints_the_student_before_training(tmp_path: Path, write: Write) -> None:
    student = {"model_args": {"model_name_or_path": "Qwen/Qwen3-8B"}}
    changes = {"opsd_mode": True, "opsd_solution_key": "solution", "teacher": student}
    config, _ = _roll(tmp_path / "opd.yaml", write, **changes)
    (teacher,) = config.on_policy.teachers
    assert (teacher.kind, teacher.hint) == ("base", "Reference solution:\n{{ solution }}")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pg_variant": "vanilla"}, {"loss_fn": "reinforce"}),
        ({"pg_variant": "tis"}, {"loss_fn": "cispo", "cispo_min": 0.0, "cispo_max": 1.0}),
        (
            {"pg_variant": "cispo", "cispo_epsilon_high": 0.5},
            {"loss_fn": "cispo", "cispo_min": 0.9, "cispo_max": 1.5},
        ),
        ({"pg_clip": 0.3, "dual_clip_loss": True}, {"ppo_clip_low": 0.3, "ppo_clip_high": 0.3, "ppo_dual_clip": 1.6}),
        ({"use_pg_clip_range": True, "pg_clip_high": 0.28}, {"ppo_clip_low": 0.2, "ppo_clip_high": 0.28}),
        ({"ppo_epochs": 2, "advantage_clip": 5.0}, {"num_passes": 2, "num_steps": 2048, "adv_clip": 5.0}),
        ({"async_generation_ratio": 1}, {"max_staleness": 1}),
        ({"loss_agg_mode": "token-mean"}, {"aggregation": "token_mean"}),
        ({"loss_agg_mode": "seq-mean-token-sum-norm"}, {"aggregation": "constant"}),
        ({"pure_opd_pipeline_type": "agentic"}, {"loss_fn": "reinforce", "agentic": "on", "max_turns": 10}),
        (
            {"train_infer_correction": {"is_weight": {"enabled": True, "upper_bound": 1.5}}},
            {"correction": "truncate", "correction_max": 1.5},
        ),
        (
            {"train_infer_correction": {"filters": [{"enabled": True, "ratio_low": 0.6}]}},
            {"correction": "mask", "correction_min": 0.6, "correction_max": 1.2},
        ),
        ({"train_infer_correction": {"is_weight": {"enabled": False}}}, {"correction": "none"}),
    ],
)
def test_settings_of_rolls_loss_have_their_equals(
    tmp_path: Path, write: Write, changes: JsonObject, expected: JsonObject
) -> None:
    config, unmapped = _roll(tmp_path / "opd.yaml", write, **changes)
    assert {name: getattr(config.on_policy, name) for name in expected} == pytest.approx(expected)
    assert not unmapped.keys() & (changes.keys() - {"pure_opd_pipeline_type"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pg_variant", "topr"),
        ("pg_clip", "wide"),
        ("tis_upper_bound", 2.0),
        ("loss_agg_mode", "best"),
        ("adv_estimator", "gigpo"),
        ("train_infer_correction", {"is_weight": {"enabled": True, "weight_type": "sequence"}}),
        ("train_infer_correction", "on"),
        ("pure_opd_pipeline_type", "rlvr_vlm"),
        ("entropy_loss_coef", 0.01),
    ],
)
def test_settings_of_rolls_loss_without_an_equal_are_listed(tmp_path: Path, write: Write, key: str, value: Any) -> None:
    config, unmapped = _roll(tmp_path / "opd.yaml", write, **{key: value})
    assert config.on_policy.enabled
    assert unmapped[key]["value"] == value


def test_references_are_followed_but_not_in_circles(tmp_path: Path, write: Write) -> None:
    body = {
        "base": "Qwen",
        "pretrain": "${base}/Qwen3-8B",
        "student_train": {"model_args": {"model_name_or_path": "${pretrain}"}},
        "teacher": {"model_args": {"model_name_or_path": "${student_train.model_args.model_name_or_path}"}},
        "loop": {"one": "${loop}", "two": "${loop}"},
        "exp_name": "${oc.env:USER}",
        "pure_opd_pipeline_type": "agentic",
        "rewards": ["math_rule"],
    }
    config, unmapped = _converted(write(tmp_path / "opd.yaml", yaml.safe_dump(body)))
    assert (config.student.model, config.teacher.model) == ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B")
    assert unmapped["exp_name"]["reason"] == "refers to what is not in this file"
    assert unmapped.keys() >= {"base", "loop", "rewards", "pure_opd_pipeline_type"}


def test_a_file_that_is_no_known_config_is_refused(tmp_path: Path, write: Write) -> None:
    source = write(tmp_path / "config.yaml", "sft: {num_epochs: 1}\n")
    with pytest.raises(InputError, match="has the keys sft; expected dataset_type"):
        convert(source, tmp_path / "out")
    rnow = write(tmp_path / "config.yml", _rnow())
    with pytest.raises(ConfigError, match=r"--from roll-config: .*looks like rnow-config"):
        convert(rnow, tmp_path / "out", "roll-config")
    with pytest.raises(InputError, match="cannot be read as YAML"):
        convert(write(tmp_path / "torn.yml", "a: [1\nb"), tmp_path / "out")
    with pytest.raises(InputError, match="no such file"):
        convert(tmp_path / "absent.yml", tmp_path / "out")
    assert not (tmp_path / "out").exists()
