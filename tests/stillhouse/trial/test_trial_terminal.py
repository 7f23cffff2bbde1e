"""A rollout and the summary of a trial as they read on a terminal."""

import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rich.console import Console, RenderableType

from stillhouse.tools import RewardScores
from stillhouse.trial.rollout import ScoredRollout
from stillhouse.trial.terminal import conversation, summary
from stillhouse.types import Message, PromptMetadata, StopReason, Trajectory, Turn


def rollout(*messages: Message, verdict: bool | None = True, scores: RewardScores | None = None) -> ScoredRollout:
    turn = Turn("stop", {"prompt_tokens": 1200, "completion_tokens": 5}, 0.25, "m", cost_usd=0.002)
    told: list[Message] = [{"role": "user", "content": "What is 2 + 2?"}, *messages]
    trajectory = Trajectory("k" * 64, "p", 0, told, [], [turn], StopReason.ANSWERED, "m")
    metadata = PromptMetadata("p", "4", None, "numeric", {})
    return ScoredRollout(trajectory, metadata, verdict, scores or RewardScores(None, {}, {}))


def text_of(parts: Iterable[RenderableType]) -> str:
    console = Console(file=io.StringIO(), width=100)
    for part in parts:
        console.print(part, highlight=False)
    written = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in written.splitlines())


def shown(rollout: ScoredRollout) -> str:
    return text_of([conversation(rollout, "rollout 1", Path("rollouts/k.json"))])


def test_a_rollout_shows_its_messages_rewards_and_cost() -> None:
    scores = RewardScores(None, {"brief": 0.5, "judged": None}, {"judged": "OSError: down"})
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    asked: Message = {"role": "assistant", "content": "Let me add.", "tool_calls": [call]}  # type: ignore[list-item]
    text = shown(rollout(asked, {"role": "tool", "tool_call_id": "1", "content": "4"}, scores=scores))
    assert text.splitlines()[1:] == [
        "user      What is 2 + 2?",
        "assistant Let me add.",
        '          add({"a": 2})',
        "tool      4",
        "\u2718 no reward (brief 0.500, judged failed), right",
        "  judged: OSError: down",
        "  1 turn, 1,200 + 5 tokens, 0.2 s, $0.0020, rollouts/k.json",
    ]


def test_a_long_result_is_cut_and_cannot_steer_the_terminal() -> None:
    page = "\n".join(["\x1b[2Jhello", *["word " * 200] * 30])
    lines = shown(rollout({"role": "tool", "content": page})).splitlines()
    assert any("23 more lines" in line for line in lines)
    assert "\x1b" not in "".join(lines)
    assert all(len(line) <= 100 for line in lines)


def test_a_failed_rollout_says_why() -> None:
    one = rollout()
    failed = replace(one.trajectory, stop_reason=StopReason.ERROR, error={"kind": "server", "message": "HTTP 500"})
    assert "\u2718 server: HTTP 500" in shown(replace(one, trajectory=failed, verdict=None))


def test_the_summary_has_means_over_what_is_known() -> None:
    good = rollout(scores=RewardScores(1.0, {"brief": 1.0}, {}))
    bad = rollout(verdict=False, scores=RewardScores(0.5, {"brief": 0.5}, {}))
    unknown = rollout(verdict=None, scores=RewardScores(None, {"brief": None}, {"brief": "down"}))
    assert text_of(summary([good, bad, unknown])).splitlines() == [
        "mean reward 0.750 (brief 0.750)",
        "3 rollouts, 0 failed, 1 of 2 right, 1 of 3 rewards failed, $0.0060",
    ]
    told = "compared \u201c5\u201d with expected \u201c4\u201d: wrong"
    assert f"wrong\n  {told}\n" in shown(replace(bad, comparison=told))
