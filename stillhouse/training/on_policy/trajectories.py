"""`SampledTrajectory`: what scoring, rewards and the loss are made from."""

from dataclasses import dataclass

from stillhouse.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTrajectory(Trajectory):
    """A trajectory of the student with its tokens; `token_ids`, `loss_mask` and `sampling_logprobs` are aligned."""

    token_ids: list[int]
    loss_mask: list[bool]
    """True exactly where the student sampled."""
    sampling_logprobs: list[float]
    """Of the distribution that was sampled from; 0.0 where the mask is False."""
    num_tool_calls: int = 0
    """Calls that were run."""
    num_invalid_tool_calls: int = 0
    """Calls that named no tool, or whose arguments could not be read or broke the tool's schema."""
    num_drifted_turns: int = 0
    """Turns whose text has other token ids than were sampled when it is tokenised again. Training is always on the
    sampled ids: the others would teach tokens that the student never chose."""
    policy_version: int = 0
    """Optimiser updates of the weights that sampled the first completion."""

    @property
    def num_turns(self) -> int:
        """Completions, a closing answer included."""
        return len(self.turns)

    @property
    def num_tool_errors(self) -> int:
        """Calls that failed."""
        return sum(turn.num_tool_errors for turn in self.turns)
