"""`ScoredRollout`: a finished rollout with what its rewards say."""

import asyncio
from dataclasses import dataclass

from stillhouse.chat.content import tool_error_of
from stillhouse.dataset.totals import sampled_part, totals_of
from stillhouse.evaluation.measure import TRUNCATED
from stillhouse.report.conversation import comparison
from stillhouse.tools.reward_set import RewardScores, RewardSet
from stillhouse.types import JsonObject, PromptMetadata, StopReason, Trajectory
from stillhouse.verification import examine_trajectory


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout, its prompt's metadata, and its scores."""

    trajectory: Trajectory
    metadata: PromptMetadata
    verdict: bool | None
    """Whether the answer is right; None if unverified."""
    scores: RewardScores
    comparison: str = ""
    """The text compared and what with, in words; empty if nothing was."""

    @classmethod
    async def of(cls, trajectory: Trajectory, metadata: PromptMetadata, rewards: RewardSet) -> "ScoredRollout":
        """Score a trajectory; a failed one has no scores."""
        if trajectory.stop_reason is StopReason.ERROR:
            return cls(trajectory, metadata, None, RewardScores(None, {}, {}))
        # In a thread: a verifier may run code for seconds.
        verdict = await asyncio.to_thread(examine_trajectory, trajectory, metadata)
        told = comparison({**verdict.columns, "expected_answer": metadata.expected_answer})
        return cls(trajectory, metadata, verdict.verified, await rewards.score(trajectory, metadata), told)

    @property
    def reward(self) -> float | None:
        """Return the total of the rewards or, without any, 1 for a right and 0 for a wrong answer; None if unknown."""
        if self.scores.values:
            return self.scores.total
        return None if self.verdict is None else float(self.verdict)

    @property
    def has_failed(self) -> bool:
        """Return whether the rollout failed."""
        return self.trajectory.stop_reason is StopReason.ERROR

    def as_json(self) -> JsonObject:
        """Return the rollout in the keys of `rnow test` (rnow/cli/test.py), with what it cost and why it ended."""
        trajectory, totals = self.trajectory, totals_of(self.trajectory)
        facts = {"expected_answer": self.metadata.expected_answer, "tag": self.metadata.tag}
        row = {
            "id": trajectory.rollout_key,
            "completed": "error" if self.has_failed else True,
            "success": not self.has_failed,
            "total_reward": self.reward,
            "rewards": {name: "error" if value is None else value for name, value in self.scores.values.items()},
            "errors": [f"{name}: {problem}" for name, problem in self.scores.errors.items()],
            "tool_errors": [error for error in map(tool_error_of, sampled_part(trajectory)) if error is not None],
            "turns": len(trajectory.turns),
            "truncated": trajectory.stop_reason in TRUNCATED,
            "promptTokens": totals.prompt_tokens,
            "completion": totals.completion_tokens,
            "model": trajectory.model,
            "verified": self.verdict,
            "stop_reason": trajectory.stop_reason,
            "cost_usd": totals.cost_usd,
            "metadata": {
                **self.metadata.metadata,
                **{name: value for name, value in facts.items() if value is not None},
            },
            "conversation": trajectory.messages,
        }
        return row if trajectory.error is None else {**row, "error": trajectory.error["message"]}
