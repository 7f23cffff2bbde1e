"""What the student sampled: the record that scoring, rewards and the loss are made from."""

from dataclasses import dataclass

from stillhouse.tools.toolbox import Toolbox
from stillhouse.types import Message, StopReason


@dataclass(slots=True)
class SampledTrajectory:
    """One trajectory; `token_ids`, `loss_mask` and `sampling_logprobs` are aligned and grow together."""

    prompt_id: str
    sample_index: int
    messages: list[Message]
    toolbox: Toolbox
    """Holds the tools this prompt offers and no other."""
    token_ids: list[int]
    loss_mask: list[bool]
    """True exactly where the student sampled."""
    sampling_logprobs: list[float]
    """Of the distribution that was sampled from; 0.0 where the mask is False."""
    num_turns: int = 0
    num_tool_calls: int = 0
    """Calls that were run; those of the last turn allowed are not."""
    num_tool_errors: int = 0
    num_invalid_tool_calls: int = 0
    """Those that named no tool, or whose arguments could not be read or broke the tool's schema."""
    num_drifted_turns: int = 0
    """Turns whose text has other token ids than were sampled when it is tokenised again. What is trained on is always
    what was sampled: training on the other ids would teach tokens that the student never chose."""
    policy_version: int = 0
    """Optimiser updates of the weights that sampled the first completion."""
    stop_reason: StopReason | None = None
    """None while it is being sampled."""
