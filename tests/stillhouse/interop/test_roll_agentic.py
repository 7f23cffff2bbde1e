"""Pipelines of ROLL with environments; `defaults` includes the file that defines them, as in its examples."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stillhouse.config import DistillConfig
from stillhouse.types import JsonObject

Convert = Callable[..., tuple[DistillConfig, dict[str, JsonObject]]]
INCLUDED = {
    "max_tokens_per_step": 128,
    "max_actions_per_traj": 10,
    "custom_env": {
        "Sokoban": {
            "env_type": "sokoban",
            "max_steps": "${max_actions_per_traj}",
            "max_tokens_per_step": "${max_tokens_per_step}",
        }
    },
}


@pytest.fixture
def agentic(converted: Convert) -> Convert:
    """`converted` of an agentic pipeline with changes; a change to None removes the key."""

    def run(**changes: Any) -> tuple[DistillConfig, dict[str, JsonObject]]:
        body = {
            "defaults": ["../config/traj_envs@_here_"],
            "rollout_batch_size": 1024,
            "sequence_length": 8192,
            "adv_estimator": "grpo",
            "pretrain": "Qwen/Qwen2.5-0.5B-Instruct",
            "actor_infer": {"generating_args": {"max_new_tokens": 96, "num_return_sequences": 1}},
            "reward_normalization": {"grouping": "traj_group_id", "method": "mean_std"},
            "train_env_manager": {"group_size": 8, "num_env_groups": 128, "tags": ["Sokoban"]},
            "val_env_manager": {"group_size": 1},
            "max_tokens_per_step": 64,
            "custom_envs": {"Sokoban": "${custom_env.Sokoban}"},
            **changes,
        }
        return converted("sokoban.yaml", {key: value for key, value in body.items() if value is not None})

    return run


@pytest.fixture
def included(tmp_path: Path) -> None:
    folder = tmp_path.parent / "config"
    folder.mkdir(exist_ok=True)
    (folder / "traj_envs.yaml").write_text(yaml.safe_dump(INCLUDED))


@pytest.mark.usefixtures("included")
def test_groups_turns_and_lengths_come_from_the_environments(agentic: Convert) -> None:
    config, unmapped = agentic()
    trained = config.on_policy
    assert (trained.group_size, trained.prompts_per_step) == (8, 128)
    assert (trained.max_turns, trained.max_tokens, trained.adv_estimator) == (10, 64, "grpo")
    assert (config.evaluation.max_turns, config.evaluation.max_tokens) == (10, 64)
    assert {"custom_envs.Sokoban", "sequence_length", "val_env_manager"} <= unmapped.keys()
    assert all(unmapped[key]["is_approximated"] for key in ("custom_envs.Sokoban", "sequence_length"))


def test_an_included_file_that_is_not_there_is_listed(agentic: Convert) -> None:
    _, unmapped = agentic(defaults=["../nowhere/traj_envs@_here_"])
    assert unmapped["defaults"]["value"] == "../nowhere/traj_envs@_here_"
    assert "`defaults` names" in unmapped["custom_envs.Sokoban"]["reason"]


@pytest.mark.parametrize(
    ("changes", "estimator"),
    [
        ({"reward_normalization": {"grouping": "traj_group_id", "method": "mean"}}, "rloo"),
        ({"reward_normalization": {"grouping": "tags", "norm_mean_type": "group", "norm_std_type": "group"}}, "grpo"),
        ({"reward_normalization": None}, "reinforce"),
        ({"train_env_manager": {"group_size": 1}}, "reinforce"),
    ],
)
def test_rewards_are_normalised_as_roll_derives_it(changes: JsonObject, estimator: str, agentic: Convert) -> None:
    config, _ = agentic(**changes)
    assert config.on_policy.adv_estimator == estimator


def test_a_trajectory_alone_in_its_group_takes_its_reward_as_it_is(agentic: Convert) -> None:
    _, unmapped = agentic(train_env_manager={"group_size": 1})
    assert "alone in its group" in unmapped["adv_estimator"]["reason"]
    assert unmapped["adv_estimator"]["is_approximated"]
