from typing import Any

import pytest

from stillhouse.config import OnPolicyConfig, StudentConfig, TeacherConfig
from stillhouse.config.section import Section, later_field
from stillhouse.store import digest

TEACHERS = {"teachers": [{"name": "t", "model": "m"}, {"name": "b", "kind": "base", "routes": ["x"]}]}


@pytest.mark.parametrize(
    ("section", "key"),
    [
        (StudentConfig(), "d612307fd1adf8b93816d29aeb484d41821140f6a4c9ada8b7e532e03cb422a1"),
        (
            TeacherConfig(model="m", base_url="http://x/v1", usd_per_million_tokens={"prompt": 1, "completion": 2.5}),
            "4a3579e8477b1271194bd48de40268d0c458fdaeaf3974a3892ab7171b99a37f",
        ),
        (OnPolicyConfig.model_validate(TEACHERS), "7435a55992aca93376cc9f867f6495c89a00dd5e5e6c3bfedd5ed42cf5ab8dd1"),
    ],
)
def test_a_config_without_later_and_removed_fields_has_the_digest_that_it_had_before(
    section: Section, key: str
) -> None:
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
