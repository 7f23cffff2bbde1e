from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stillhouse.errors import StoreError
from stillhouse.tools.calculator import calculator
from stillhouse.training.on_policy.batches.groups import FinishedGroups
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import Message, Prompt, StopReason, Turn


def test_groups_that_ended_come_back_as_they_were_and_go_with_their_batch(tmp_path: Path) -> None:
    prompts = [Prompt(name, [{"role": "user", "content": name}], ["calculator"]) for name in ("a", "b")]
    messages: list[Message] = [*prompts[0].messages, {"role": "assistant", "content": "é"}]
    first = SampledTrajectory(
        "key-0", "a", 0, messages, [calculator.schema], [Turn("stop", {}, None, "student")], StopReason.ANSWERED,
        "student", token_ids=[1, 2], loss_mask=[False, True], sampling_logprobs=[0.0, -1 / 3], policy_version=7,
    )  # fmt: skip
    group = [first, replace(first, rollout_key="key-1", sample_index=1)]
    FinishedGroups(tmp_path, 0).add(group)
    again = FinishedGroups(tmp_path, 0)
    loaded = again.load(prompts)
    assert loaded == {"a": group}
    again.forget()
    assert not list(tmp_path.iterdir())
    assert again.load(prompts) == {}


def test_the_students_most_probable_tokens_come_back(tmp_path: Path) -> None:
    best = np.array([[5, 2, 700], [1, 9, 4]], np.int32)
    one = SampledTrajectory(
        "key", "a", 0, [], [], [], StopReason.ANSWERED, "student",
        token_ids=[1, 2, 3], loss_mask=[False, True, True], sampling_logprobs=[0.0, -1.0, -2.0], best_ids_NK=best,
    )  # fmt: skip
    FinishedGroups(tmp_path, 0).add([one])
    [again] = FinishedGroups(tmp_path, 0).load([Prompt("a", [])])["a"]
    assert again.best_ids_NK is not None
    assert again.best_ids_NK.dtype == best.dtype
    assert again.best_ids_NK.tolist() == best.tolist()


@pytest.mark.parametrize("content", ["", "[{", "7", "[7]", '[{"prompt_id": "a"}]', '[{"stop_reason": "answered"}]'])
def test_a_damaged_group_says_what_to_delete(tmp_path: Path, content: str) -> None:
    (tmp_path / "groups-00000000-a.json").write_text(content)
    with pytest.raises(StoreError, match=r"a\.json: .*Delete"):
        FinishedGroups(tmp_path, 0).load([Prompt("a", [])])
