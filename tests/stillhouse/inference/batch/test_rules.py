from typing import Any

import pytest

from stillhouse.config import ModelRole, RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.inference.batch import require_batchable

URL = "https://api.openai.com/v1"


def test_single_turn_rollouts_may_be_asked_in_batches_and_others_without_them() -> None:
    require_batchable(TeacherConfig(model="m", base_url=URL, batch=True), RolloutsConfig(), ToolsConfig())
    require_batchable(TeacherConfig(), RolloutsConfig(timeout_s=5.0), ToolsConfig(builtin=("calculator",)))


@pytest.mark.parametrize(
    ("teacher", "rollouts", "tools", "field"),
    [
        ({"base_url": None}, {}, {}, "teacher.base_url"),
        ({}, {}, {"builtin": ("calculator",)}, "tools.builtin"),
        ({}, {}, {"file": "tools.py"}, "tools.file"),
        ({}, {"response_schema": {"type": "object"}}, {}, "rollouts.max_corrections"),
        ({}, {"timeout_s": 60.0}, {}, "rollouts.timeout_s"),
    ],
)
def test_what_a_batch_cannot_do_is_named(
    teacher: dict[str, Any], rollouts: dict[str, Any], tools: dict[str, Any], field: str
) -> None:
    asked = TeacherConfig(**{"model": "m", "base_url": URL, "batch": True} | teacher)
    with pytest.raises(ConfigError, match=field):
        require_batchable(asked, RolloutsConfig(**rollouts), ToolsConfig(**tools))


def test_the_section_of_the_judge_is_named_where_the_judge_is_meant() -> None:
    judge = TeacherConfig(model="m", batch=True)
    with pytest.raises(ConfigError, match=r"^dataset\.judge\.model\.batch .*\.judge\.model\.base_url") as caught:
        require_batchable(judge, RolloutsConfig(), ToolsConfig(), ModelRole.JUDGE)
    assert "teacher" not in str(caught.value)
