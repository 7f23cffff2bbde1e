"""The section of self-training, in which the student learns from those of its own trajectories that are right."""

from pydantic import Field

from stillhouse.config.section import Section


class SelfTrainingConfig(Section):
    """Rounds: the student is sampled on training prompts, and SFT learns what is verified as right.

    Rejection sampling with aggregation: RFT (arXiv 2308.01825), ReST-EM (arXiv 2312.06585). No teacher is asked.
    """

    enabled: bool = False
    """Run this stage, after SFT and with its settings. Prompts need answers that can be verified. SFT is to have taught
    the student the tools and the form of an answer, for which some rollouts of the teacher are enough."""
    num_rounds: int = Field(default=6, ge=1)
    """Rounds. Each trains the student of the one before on the rows of all rounds so far, and on SFT's."""
    prompts_per_round: int = Field(default=150, ge=1)
    """Training prompts that the student is sampled on in a round, one after another over the rounds."""
    num_epochs: int = Field(default=8, ge=1)
    """Passes of each round over SFT's rows."""
    weight: float = Field(default=0.5, gt=0.0)
    """Passes over the student's own rows for one over SFT's; they soon are many."""
