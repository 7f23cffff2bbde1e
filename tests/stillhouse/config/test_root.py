from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import ValidationError

from stillhouse.config import DistillConfig

FAR = {"name": "far", "kind": "vllm", "model": "Qwen/Qwen3-32B", "base_url": "http://10.0.0.5:8000/v1"}
NEAR = {"name": "near", "model": "embedded:teacher"}
CHAT = {"model": "gpt-4o", "base_url": "https://api.openai.com/v1"}


def config(**sections: dict[str, Any]) -> DistillConfig:
    return DistillConfig.model_validate(sections)


@pytest.mark.parametrize(
    ("sections", "where"),
    [
        ({"on_policy": {"teacher": "gpt-4o"}}, "on_policy.teacher: gpt-4o"),
        ({"on_policy": {"teacher": "anthropic/claude-sonnet-4.5"}}, "on_policy.teacher: anthropic/claude"),
        ({"on_policy": {"teachers": [NEAR, {"name": "g", "model": "gemini-2.5-pro"}]}}, "on_policy.teachers, 'g'"),
        ({"on_policy": {"teachers": [{**FAR, "model": "openai/gpt-5"}]}}, "on_policy.teachers, 'far'"),
        ({"on_policy": {"teachers": [{**FAR, "base_url": CHAT["base_url"]}]}}, "'far': api.openai.com cannot score"),
        ({"on_policy": {"enabled": True}, "teacher": {"model": "claude-opus-4-1"}}, "teacher.model: claude-opus-4-1"),
    ],
)
def test_a_teacher_without_log_probabilities_is_refused_with_the_way_out(sections: Any, where: str) -> None:
    with pytest.raises(ValidationError, match=rf"{where}.*rollouts.*sft\.enabled"):
        config(**sections)


def test_a_teacher_behind_a_chat_endpoint_is_no_scorer_but_may_write_rollouts() -> None:
    with pytest.raises(ValidationError, match=r"api\.openai\.com/v1: "):
        config(teacher=CHAT, on_policy={"enabled": True})
    config(teacher=CHAT, on_policy={"enabled": True, "teacher": "embedded:teacher"})
    config(teacher=CHAT, on_policy={"enabled": True, "teachers": [FAR]})
    rewards_alone = {"enabled": True, "algorithm": "rewards", "group_size": 2}
    config(teacher=CHAT, on_policy=rewards_alone)
    with pytest.raises(ValidationError, match=r"api\.openai\.com/v1: "):
        config(teacher=CHAT, on_policy={**rewards_alone, "algorithm": "mixed"})


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, "embedded:teacher"),
        ({"teacher": CHAT}, None),
        ({"teacher": CHAT, "on_policy": {"teacher": "embedded:student"}}, "embedded:student"),
        ({"on_policy": {"enabled": True, "teacher": "openai/gpt-oss-20b"}}, "openai/gpt-oss-20b"),
        ({"on_policy": {"teachers": [FAR]}}, None),
        ({"on_policy": {"teachers": [{"name": "self", "kind": "base"}, FAR, NEAR]}}, "embedded:teacher"),
        ({"on_policy": {"teachers": [{**NEAR, "alignment": "bytes"}]}}, None),
        ({"on_policy": {"teachers": [{**NEAR, "template": "own"}]}}, None),
    ],
)
def test_students_are_measured_against_the_first_local_teacher(sections: Any, expected: str | None) -> None:
    assert config(**sections).scoring_teacher == expected


@pytest.mark.parametrize(
    ("on_policy", "expected"),
    [
        ({"teachers": [FAR]}, "far"),
        ({"teachers": [FAR, NEAR]}, None),
        (
            {"teachers": [{"name": "self", "kind": "base"}, {**FAR, "template": "own"}, {**FAR, "name": "plain"}]},
            "plain",
        ),
        ({"teachers": [{**FAR, "alignment": "bytes"}]}, None),
        ({"teachers": [{**FAR, "hint": "{{ expected_answer }}"}]}, None),
        ({"teachers": [FAR], "source": "rollouts"}, None),
        ({"teachers": [FAR], "enabled": False}, None),
        ({"teachers": [FAR], "algorithm": "rewards", "group_size": 2}, None),
    ],
)
def test_without_a_local_teacher_students_are_measured_by_the_server_that_their_training_asks(
    on_policy: Any, expected: str | None
) -> None:
    server = config(teacher=CHAT, on_policy={"enabled": True, **on_policy}).scoring_server
    assert (server and server.name) == expected


def test_soft_targets_need_a_teacher_that_scores_or_rollouts_that_record() -> None:
    kl = {"loss": "kl", "top_k": 20}
    with pytest.raises(ValidationError, match=r"api\.openai\.com/v1.*rollouts\.record_top_k"):
        config(teacher=CHAT, sft=kl)
    config(teacher=CHAT, sft=kl, rollouts={"record_top_k": 20})
    for changes in ({"top_k": 21}, {"soft_temperature": 2.0}):
        with pytest.raises(ValidationError, match=r"rollouts\.record_top_k 20 "):
            config(teacher=CHAT, sft={**kl, **changes}, rollouts={"record_top_k": 20})
        config(teacher=CHAT, sft={**kl, **changes, "teacher": "embedded:teacher"}, rollouts={"record_top_k": 20})


SOURCES = {"sources": {"maths": "maths.jsonl", "chat": "hf:chat"}}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"on_policy": {"mixture": {"maths": 0.5}}}, "maths, .*none"),
        (
            {"prompts": SOURCES, "on_policy": {"mixture": {"code": 0.5}}},
            "code, .*maths, chat",
        ),
        ({"prompts": {**SOURCES, "entries": [5]}}, "source and entries"),
        ({"prompts": {**SOURCES, "source": "a.jsonl"}}, "source and entries"),
        (
            {"prompts": {"held_out_fraction": 0}, "on_policy": {"trainer": {"generate_every_steps": 5}}},
            "generate_every_steps.*held_out_fraction",
        ),
    ],
)
def test_on_policy_settings_need_the_prompts_that_they_name(sections: Any, expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        config(**sections)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"promotion": {"enabled": True}}, "promotion.enabled .*register_as"),
        ({"promotion": {"start_from_champion": True}}, "promotion.start_from_champion .*register_as"),
        (
            {"promotion": {"enabled": True}, "tracking": {"register_as": "m", "enabled": False}},
            "tracking.enabled",
        ),
        (
            {"promotion": {"enabled": True, "metric": "reward"}, "tracking": {"register_as": "m"}},
            "tools.rewards_file",
        ),
    ],
)
def test_a_promotion_without_what_it_needs_is_refused(sections: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(**sections)


JUDGE = {"enabled": True, "rubric": [{"name": "clarity", "question": "Is it clear?"}]}


@pytest.mark.parametrize(
    ("dataset", "remedy"),
    [
        ({"filters": {"scores": {"judge/clarity": [0.5, None]}}}, "dataset.judge.rubric"),
        ({"filters": {"scores": {"judge/clarty": [0.5, None]}}, "judge": JUDGE}, "dataset.judge.rubric"),
        ({"filters": {"scores": {"judge/clarity": [0.5, None]}}, "judge": JUDGE}, None),
        ({"filters": {"scores": {"reward/short": [0.5, None]}}}, "tools.rewards_file"),
        ({"selection": {"prefer": "score:reward"}}, "tools.rewards_file"),
        ({"labels": {"measure": ["rewards"]}}, "tools.rewards_file"),
        ({"selection": {"prefer": "score:length"}}, "dataset.labels.file"),
        ({"selection": {"prefer": "score:length"}, "labels": {"file": "labels.py"}}, None),
    ],
)
def test_a_score_that_nothing_gives_is_refused_before_it_is_paid_for(dataset: Any, remedy: str | None) -> None:
    with nullcontext() if remedy is None else pytest.raises(ValidationError, match=remedy):
        config(dataset=dataset)


def test_an_alias_of_ones_own_is_nobodys_business_where_nothing_is_promoted() -> None:
    assert not config(tracking={"register_as": "m"}).promotion.enabled
