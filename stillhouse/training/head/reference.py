"""What a teacher knows of the loss positions of a microbatch, up to its output layer.

Dimensions: N loss positions, R hidden size of the teacher.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from stillhouse.serving.logits import UNSCALED, LogitScaling


@dataclass(frozen=True, slots=True)
class Reference:
    """A teacher's whole distributions, to be made from its last hidden states a chunk at a time."""

    hidden_NR: Tensor
    """The teacher's last hidden states at the positions that predict the targets, in their order; without gradient."""
    head: nn.Linear
    """Its output layer, on whatever device: the shared part of it is brought to the student's for each microbatch."""
    vocabulary: int
    """Ids below it mean the same to both: student and teacher are compared over these alone, each renormalised. Rows
    of an embedding beyond the tokenizer's vocabulary thus play no part."""
    scaling: LogitScaling = UNSCALED
    """What the teacher does to its logits."""
