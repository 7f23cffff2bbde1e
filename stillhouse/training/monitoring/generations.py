"""Accuracy of the student on answers that it samples during training."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.metrics import GENERATIONS_FILE, Listener, StepRows
from stillhouse.training.repeatability import random_state, restore_random_state
from stillhouse.training.sharding import gathered
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject, Prompt, PromptMetadata, StopReason
from stillhouse.verification import examine

GENERATIONS_TABLE: Final = "generations.json"

_TRUNCATED: Final = (StopReason.LENGTH, StopReason.CONTEXT_OVERFLOW)


@dataclass(eq=False)
class Generations:
    """Answers of the student to the same prompts with the same seeds at every measurement."""

    student: Student
    sample: Callable[[Sequence[Prompt]], Sequence[SampledTrajectory]]
    """One answer to each prompt, with its tokens; the same seeds at every call."""
    prompts: Sequence[Prompt]
    """At least one."""
    metadata: Mapping[str, PromptMetadata]
    """By prompt id; may lack any."""
    every_steps: int
    work_dir: Path | None
    """Holds `generations.jsonl`, one row per answer; None writes none. Processes that train together all sample the
    same, since a sharded model computes for all of them at once."""
    listener: Listener
    """Gets the same rows as a table."""
    rewards: Callable[[Sequence[SampledTrajectory]], Sequence[float | None]] | None = None
    """Of trajectories, None for one without; None measures no reward."""

    def __post_init__(self) -> None:
        self._rows = StepRows(self.work_dir and self.work_dir / GENERATIONS_FILE)
        self._asked = {prompt.id: str(prompt.messages[-1].get("content") or "") for prompt in self.prompts}

    def measure(self, step: int) -> dict[str, float]:
        """Sample and record the answers after `step` steps; random states are those of a training without it.

        Returns:
            generation_accuracy: share of right answers among the verifiable ones; left out where none is.
            generation_reward: mean reward of answers that have one; left out where none has.
            generation_truncated_share: share of answers that ran out of tokens or of context.
            generation_mean_tokens: sampled tokens of an answer, over all its turns.
        """
        state = random_state()
        try:
            with self.student.evaluating(), gathered(self.student.step):
                trajectories = self.sample(self.prompts)
                rewards = self.rewards(trajectories) if self.rewards else [None] * len(trajectories)
        finally:
            # A tool may draw from them.
            restore_random_state(state)
        rows = [
            self._row(trajectory, step) | ({} if self.rewards is None else {"reward": reward})
            for trajectory, reward in zip(trajectories, rewards, strict=True)
        ]
        self._rows.append(rows)
        self._rows.sync()
        self.listener.log_table(rows, GENERATIONS_TABLE)
        return _metrics(rows)

    def restore(self, step: int, *, replay: bool) -> None:
        """Remove rows of steps after `step`; `replay` sends the others to the listener, which has not had them."""
        kept = self._rows.go_back(step)
        if replay:
            self.listener.log_table(kept, GENERATIONS_TABLE)

    def _row(self, trajectory: SampledTrajectory, step: int) -> JsonObject:
        metadata = self.metadata.get(trajectory.prompt_id)
        first = trajectory.loss_mask.index(True) if trajectory.turns else len(trajectory.token_ids)
        # In the order of MLflow's columns, of which the first four fit on its page.
        return {
            "step": step,
            "verified": examine(trajectory.messages, trajectory.stop_reason, metadata).verified,
            "prompt": self._asked[trajectory.prompt_id],
            # With tool calls and results: the final answer alone says little about what went wrong.
            "completion": self.student.tokenizer.decode(trajectory.token_ids[first:]),
            "expected_answer": metadata.expected_answer if metadata else None,
            "stop_reason": str(trajectory.stop_reason),
            "num_tokens": sum(trajectory.loss_mask),
            "prompt_id": trajectory.prompt_id,
        }


def _metrics(rows: Sequence[JsonObject]) -> dict[str, float]:
    verdicts = [row["verified"] for row in rows if row["verified"] is not None]
    metrics = {
        "generation_truncated_share": sum(row["stop_reason"] in _TRUNCATED for row in rows) / len(rows),
        "generation_mean_tokens": math.fsum(row["num_tokens"] for row in rows) / len(rows),
    }
    if verdicts:
        metrics["generation_accuracy"] = sum(verdicts) / len(verdicts)
    if rewards := [row["reward"] for row in rows if row.get("reward") is not None]:
        metrics["generation_reward"] = math.fsum(rewards) / len(rewards)
    return metrics
