from typing import Any

import pytest

from stillhouse.config.form import unfolded


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"prompts": {"source": "a", "split_seed": 1}}, {"prompts": {"source": "a", "split_seed": 1}}),
        (
            {"prompts": {"source": "a", "split_seed": 1, "more": {"same_prompt": "keep"}}},
            {"prompts": {"source": "a", "same_prompt": "keep"}},
        ),
        # What has no such group is left for the config to refuse.
        ({"budget": {"more": {"max_usd": 1}}}, {"budget": {"more": {"max_usd": 1}}}),
        ({"prompts": {"more": 1}, "rollout": {"more": {}}}, {"prompts": {"more": 1}, "rollout": {"more": {}}}),
    ],
)
def test_a_group_that_was_opened_stands_for_all_its_fields(given: dict[str, Any], plain: dict[str, Any]) -> None:
    assert unfolded(given) == plain
