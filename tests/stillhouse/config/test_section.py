from typing import Any

import pytest

from stillhouse.config import OnPolicyConfig, PromptsConfig
from stillhouse.config.section import Section, later_field
from stillhouse.store import digest

TEACHERS = {"teachers": [{"name": "t", "model": "m"}, {"name": "b", "kind": "base", "routes": ["x"]}]}


@pytest.mark.parametrize(
    ("section", "key"),
    [
        (PromptsConfig(), "8d589991243998a3555d4aa85cd3e5c60d0b4fbfbb782f82ee0be78efef89c45"),
        (OnPolicyConfig(), "f25e127ef77cd8872af9153a96e98a0fee3270077264870432d18b910beb933b"),
        (OnPolicyConfig.model_validate(TEACHERS), "7435a55992aca93376cc9f867f6495c89a00dd5e5e6c3bfedd5ed42cf5ab8dd1"),
    ],
)
def test_a_config_without_later_fields_has_the_digest_that_it_had_before_them(section: Section, key: str) -> None:
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
