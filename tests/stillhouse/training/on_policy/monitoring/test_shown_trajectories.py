from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.config import OnPolicyConfig
from stillhouse.report.view.rows import read_view_rows
from stillhouse.report.view.sources import find_source
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.on_policy.algorithms import algorithm_of
from stillhouse.training.on_policy.monitoring.shown_trajectories import (
    ShownTrajectories,
    select,
    shown_tokens,
    token_texts,
)
from stillhouse.training.on_policy.rewards import TrajectoryReward
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import StopReason, Turn
from tests.stillhouse.training.on_policy.tables import One, table_of

ALGORITHM = algorithm_of(OnPolicyConfig())
PROMPT, FIRST, TOOL, SECOND = "2 + 2?", "<b>call</b>", "five & six", "4\n"


class Scored(NamedTuple):
    trajectory: SampledTrajectory
    one: One
    reward: TrajectoryReward


NewScored = Callable[..., Scored]


@pytest.fixture
def new_scored(tokenizer: PreTrainedTokenizerBase) -> NewScored:
    """Makes two completions with tool output between them. The teacher likes the first and not the second."""

    def make(reward: float | None = None, *, kl: float = 0.5, advantage: float = 0.0, second: str = SECOND) -> Scored:
        parts = [tokenizer.encode(text, add_special_tokens=False) for text in (PROMPT, FIRST, TOOL, second)]
        ids = [token_id for part in parts for token_id in part]
        mask = [number in (1, 3) for number, part in enumerate(parts) for _ in part]
        sampling = [-1.0 if is_sampled else 0.0 for is_sampled in mask]
        teacher = [{1: kl - 1, 3: -kl - 1}.get(number, 0.0) for number, part in enumerate(parts) for _ in part]
        trajectory = SampledTrajectory(
            "key", "p", 0, [{"role": "user", "content": PROMPT}], [], [Turn("stop", {}, None, "student")] * 2,
            StopReason.LENGTH, "student", token_ids=ids, loss_mask=mask, sampling_logprobs=sampling, num_tool_calls=1,
        )  # fmt: skip
        one = One(
            ids, mask, sampling=sampling, advantages=[advantage * is_sampled for is_sampled in mask], teacher="maths",
            kl_coef=2.0, scored=teacher,
        )  # fmt: skip
        rewarded = TrajectoryReward(reward, {} if reward is None else {"correct": reward})
        return Scored(trajectory, one, rewarded)

    return make


def test_best_worst_and_some_others_are_chosen_by_reward_then_by_advantage() -> None:
    selected = select([0.0, 1.0, None, 1.0, 0.0, 0.5], range(6), seed=0)
    assert selected[:4] == [("best", 3), ("best", 1), ("worst", 0), ("worst", 4)]
    assert sorted(selected[4:]) == [("random", 2), ("random", 5)]


def test_without_rewards_the_advantage_alone_decides() -> None:
    assert select([None] * 3, [2.0, 0.0, 1.0], seed=0) == [("best", 0), ("best", 2), ("worst", 1)]


def test_the_others_are_drawn_by_seed() -> None:
    first, again, other = (select([None] * 12, range(12), seed=seed)[4:] for seed in (0, 0, 1))
    assert first == again != other


class Listener(NoListener):
    """Remembers files."""

    def __init__(self) -> None:
        self.files: list[tuple[str, str | None]] = []

    def log_artifact(self, file: Path, subfolder: str | None = None) -> None:
        assert file.exists()
        self.files.append((file.name, subfolder))


@pytest.mark.parametrize(("updates_per_batch", "steps"), [(1, [0, 20, 40]), (3, [0, 18, 39]), (8, [0, 16, 40])])
def test_a_file_is_written_for_each_batch_that_a_due_step_trains_on(
    new_scored: NewScored,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    updates_per_batch: int,
    steps: list[int],
) -> None:
    listener, scored = Listener(), new_scored()
    overlong = SampledTrajectory(
        "key", "q", 0, [], [], [], StopReason.CONTEXT_OVERFLOW, "student", token_ids=[1], loss_mask=[False],
        sampling_logprobs=[0.0],
    )  # fmt: skip
    config = OnPolicyConfig(num_passes=updates_per_batch)
    shown = ShownTrajectories(tokenizer, tmp_path, listener, algorithm_of(config))
    shown.show(table_of([]), [], [])
    assert listener.files == [], "nothing was sampled"
    for index in range(0, 48 // updates_per_batch):
        rewards = [TrajectoryReward(None), scored.reward]
        shown.show(table_of([scored.one], index=index), [overlong, scored.trajectory], rewards)
    assert listener.files == [(f"step-{step:08d}.jsonl", "trajectories") for step in steps]


def test_what_is_written_is_shown_by_the_view_with_its_tokens(
    new_scored: NewScored, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    scored = new_scored(1.0)
    shown = ShownTrajectories(tokenizer, tmp_path, Listener(), ALGORITHM)
    shown.show(table_of([scored.one]), [scored.trajectory], [scored.reward])
    [row] = read_view_rows(find_source(str(tmp_path / "step-00000000.jsonl"), tmp_path))
    assert (row.score, row.figures["turns"], row.figures["tool_calls"]) == (1.0, 2, 1)
    assert (row.body["stop_reason"], row.body["metadata"]["shown_as"]) == ("length", "best")
    assert "".join(token["text"] for token in row.body["tokens"]) == FIRST + TOOL + SECOND


@pytest.mark.parametrize("text", ["The answer is 42.<|im_end|>", " two  spaces\n\n\tand a tab", "naïve 日本語 🙂 ok"])
def test_texts_of_tokens_join_up(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    texts = token_texts(tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == tokenizer.decode(ids) == text


def test_a_character_of_several_tokens_belongs_to_the_last_and_bytes_of_none_are_shown_as_such(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    assert token_texts(tokenizer, tokenizer.encode("🙂!", add_special_tokens=False)) == ["", "", "", "🙂", "!"]
    (smile, *_), (letter,) = (tokenizer.encode(text, add_special_tokens=False) for text in ("🙂", "a"))
    texts = token_texts(tokenizer, [smile, letter, smile])
    assert "".join(texts) == tokenizer.decode([smile, letter, smile]) == "\ufffda\ufffd"
    assert texts[1] == "\ufffda"


@pytest.mark.parametrize("has_teacher", [True, False])
def test_a_sampled_token_has_its_figures_and_one_that_was_read_has_none(
    tokenizer: PreTrainedTokenizerBase, has_teacher: bool
) -> None:
    ids = tokenizer.encode("abcd", add_special_tokens=False)
    teacher = [0.0, -1.5, 0.0, -0.5] if has_teacher else None
    table = table_of([One([1], [0]), One(ids, [0, 1, 0, 1], sampling=[0.0, -1.0, 0.0, -1.0], scored=teacher)])
    advantages = np.array([9.0, 0.0, 0.25, 0.0, -0.25])
    first, read, last = shown_tokens(table, 1, advantages, tokenizer)
    compared = {"teacher": -1.5, "kl": 0.5} if has_teacher else {}
    assert first == {"text": "b", "id": ids[1], "advantage": 0.25, "student": -1.0} | compared
    assert (read, last["advantage"]) == ({"text": "c"}, -0.25)
