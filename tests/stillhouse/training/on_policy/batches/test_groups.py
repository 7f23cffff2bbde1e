from pathlib import Path

import pytest

from stillhouse.errors import StoreError
from stillhouse.tools.calculator import calculator
from stillhouse.training.on_policy.batches.groups import FinishedGroups
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Prompt, StopReason, Turn


def test_groups_that_ended_come_back_as_they_were_and_go_with_their_batch(tmp_path: Path) -> None:
    prompts = [Prompt(name, [{"role": "user", "content": name}], ["calculator"]) for name in ("a", "b")]
    group = [
        SampledTrajectory(
            rollout_key=f"key-{index}",
            prompt_id="a",
            sample_index=index,
            messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "é"}],
            tools=[calculator.schema],
            turns=[Turn("stop", {}, None, "student")],
            model="student",
            token_ids=[1, 2],
            loss_mask=[False, True],
            sampling_logprobs=[0.0, -1 / 3],
            policy_version=7,
            stop_reason=StopReason.ANSWERED,
        )
        for index in range(2)
    ]
    FinishedGroups(tmp_path / "groups").add(group)
    again = FinishedGroups(tmp_path / "groups")
    loaded = again.load(prompts)
    assert loaded == {"a": group}
    again.forget()
    assert not (tmp_path / "groups").exists()
    assert again.load(prompts) == {}


@pytest.mark.parametrize("content", ["", "[{", "7", "[7]", '[{"prompt_id": "a"}]', '[{"stop_reason": "answered"}]'])
def test_a_damaged_group_says_what_to_delete(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(StoreError, match=r"a\.json: not a group of trajectories: .*Delete it"):
        FinishedGroups(tmp_path).load([Prompt("a", [])])
