"""`SampledTrajectory`: a trajectory of the student with its tokens, and the completions among them."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from stillhouse.inference.scoring.api import TokenSequence
from stillhouse.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTrajectory(Trajectory):
    """A trajectory of the student with its tokens; `token_ids`, `loss_mask` and `sampling_logprobs` are aligned."""

    token_ids: list[int]
    loss_mask: list[bool]
    """True exactly where the student sampled."""
    sampling_logprobs: list[float]
    """Under the sampling distribution; 0.0 where the mask is False."""
    best_ids_NK: np.ndarray | None = None
    """The student's K most probable tokens at each of N sampled ones, where a teacher asks for them."""
    num_tool_calls: int = 0
    """Calls that were run."""
    num_invalid_tool_calls: int = 0
    """Calls of unknown tools, or with arguments that cannot be parsed or break the tool's schema."""
    num_drifted_turns: int = 0
    """Turns whose text tokenises to other ids than were sampled. Training always uses the sampled ids."""
    policy_version: int = 0
    """Optimiser updates of the weights that it began with."""
    version_changes: list[tuple[int, int]] = field(default_factory=list)
    """Places from which on other weights sampled, and their updates."""

    @property
    def num_turns(self) -> int:
        """Return the number of completions, a closing answer included."""
        return len(self.turns)

    @property
    def policy_versions(self) -> np.ndarray:
        """Return the updates of the weights that sampled each token; 0 where the mask is False."""
        versions = np.full(len(self.token_ids), self.policy_version, np.int32)
        for place, version in self.version_changes:
            versions[place:] = version
        return versions * np.array(self.loss_mask)

    @property
    def num_tool_errors(self) -> int:
        """Return the number of calls that failed."""
        return sum(turn.num_tool_errors for turn in self.turns)


def sampled_runs(tokens: TokenSequence) -> list[list[int]]:
    """Return the token ids of each completion, the maximal runs of sampled tokens."""
    return _runs(tokens, is_sampled=True)


def unsampled_runs(tokens: TokenSequence) -> list[list[int]]:
    """Return the token ids of the prompt, and of what the model reads before each further completion."""
    return _runs(tokens, is_sampled=False)


def _runs(tokens: TokenSequence, *, is_sampled: bool) -> list[list[int]]:
    mask = np.asarray(tokens.loss_mask)
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(mask)]
    return [tokens.token_ids[first:end] for first, end in pairwise(edges) if first < end and mask[first] == is_sampled]
