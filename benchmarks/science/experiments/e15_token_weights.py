"""E15: the loss on the tokens that matter alone."""

from typing import Any, Final

from benchmarks.science.experiments.e12_prefix import WHOLE, distilled
from benchmarks.science.findings import Claim, Experiment, SeedResult, times
from benchmarks.science.lab import Lab

_CHOSEN: Final[dict[str, dict[str, Any]]] = {
    WHOLE: {},
    "half, by entropy": {"token_weights": {"by": "entropy"}},
    "half, by entropy or divergence": {"token_weights": {"by": "soft_or"}},
    "a fifth, by entropy or divergence": {"token_weights": {"by": "soft_or", "keep": 0.2}},
}


def run(lab: Lab, seed: int) -> SeedResult:
    """One seed."""
    curves, target = distilled(lab, seed, _CHOSEN)
    whole, entropy, both, fifth = (curve.reached(target) for curve in curves.values())
    figures = {
        "entropy_tokens": times(whole.tokens, entropy.tokens),
        "tokens": times(whole.tokens, both.tokens),
        "fifth_tokens": times(whole.tokens, fifth.tokens),
        "steps": times(whole.steps, both.steps),
        "over_whole": 100 * (curves["half, by entropy or divergence"].final - curves[WHOLE].final),
    }
    return SeedResult(seed, curves, figures, target)


EXPERIMENT = Experiment(
    name="e15",
    title="The loss on the tokens that matter",
    setup="The trainings of E12 on whole answers, beside a loss on a half or a fifth of the tokens of each answer: "
    "those where the student is least sure, or those and the ones where its teacher disagrees with it.",
    claims=(
        Claim("half of the tokens, by entropy or divergence, take as many steps as all (TIP, arXiv 2604.14084)",
              "steps", 0.9),
        Claim("and so at most two thirds of the tokens with a loss", "tokens", 1.5),
        Claim("half of the tokens end within 2 points of all", "over_whole", -2.0),
    ),
    run=run,
    curves_over="tokens",
    notes="All tokens are sampled and read in any case: what falls is the output layer's work, the smaller part of "
    "these models, and of large ones with small vocabularies.",
)  # fmt: skip
