from typing import Any

import pytest

from stillhouse.config import OnPolicyConfig, StudentConfig, TeacherConfig
from stillhouse.config.section import Section, later_field
from stillhouse.store import digest

TEACHERS = {"teachers": [{"name": "t", "model": "m"}, {"name": "b", "kind": "base", "routes": ["x"]}]}


@pytest.mark.parametrize(
    ("section", "key"),
    [
        (StudentConfig(), "386bea6bdf0169aa7da2df2080aee4015f412ea4483275047d819fb4ec5a4d19"),
        (
            TeacherConfig(model="m", base_url="http://x/v1", usd_per_million_tokens={"prompt": 1, "completion": 2.5}),
            "a4da8a5e508eb58cc24865c997b206b3b744d3463901209f5235cb9fa470361b",
        ),
        (OnPolicyConfig.model_validate(TEACHERS), "e9c3ccf49f92b42422c868eacb85312445318d35cb9e8b26876525a4f0b6c215"),
    ],
)
def test_a_config_without_later_fields_keeps_its_digest(section: Section, key: str) -> None:
    assert digest(section.identity()) == key


def test_a_later_field_is_dumped_only_where_it_is_set() -> None:
    class WithLater(Section):
        first: int = 1
        later: tuple[int, ...] = later_field(())

    assert WithLater(later=()).model_dump(mode="json") == {"first": 1}
    made = WithLater(later=(2,))
    dumped: dict[str, Any] = made.model_dump(mode="json")
    assert dumped == {"first": 1, "later": [2]}
    assert WithLater.model_validate(dumped) == made
