"""Two models on the same prompts: by how much one is better, and whether that is more than chance.

Prompts differ far more from each other than models do. What is tested is therefore each prompt's difference, never two
means: a prompt that both models find hard says nothing of either.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from stillhouse.verification.intervals import CONFIDENCE

if TYPE_CHECKING:
    import numpy as np

_NUM_RESAMPLES: Final = 9999
_BATCH: Final = 500
"""Resamples held in memory at once."""
_ROUNDING: Final = 1e-12
"""Relative spread of differences that are alike but for their rounding."""
_SEED: Final = 20140
"""Equal figures of equal trajectories, in any run."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a model and the reference on the same prompts."""

    num_prompts: int
    """Prompts on which both were measured."""
    mean: float
    """Of the model on those prompts."""
    reference: float
    """Mean of the reference on them."""
    difference: float
    """`mean - reference`."""
    low: float
    """Lower bound of the difference's interval."""
    high: float
    p_higher: float
    """Chance of a difference this far up or further if the two were alike: the test's one-sided p."""
    p_lower: float
    """The same downwards."""
    test: Literal["mcnemar", "permutation"]


def paired_difference(model: Mapping[str, float], reference: Mapping[str, float]) -> Difference | None:
    """Return the difference of two models on the prompts that both were measured on; None where there are none.

    Where each prompt is right or wrong, McNemar's exact test: of the prompts on which just one of the two is right,
    how many are the model's, against a fair coin (McNemar 1947, Psychometrika 12). Otherwise a permutation test, which
    swaps the two models' values prompt by prompt (Fisher 1935, "The design of experiments"). The interval is the
    bootstrap's over prompts, bias-corrected and accelerated (Efron 1987, JASA 82). Values are by prompt id.
    """
    import numpy as np

    shared = sorted(model.keys() & reference.keys())
    if not shared:
        return None
    ours, theirs = (np.array([values[prompt] for prompt in shared]) for values in (model, reference))
    differences = ours - theirs
    is_binary = bool(np.isin([ours, theirs], (0.0, 1.0)).all())
    p_higher, p_lower = mcnemar(differences) if is_binary else _permutation(differences)
    low, high = _bootstrap(differences)
    return Difference(
        num_prompts=len(shared),
        mean=math.fsum(ours) / len(shared),
        reference=math.fsum(theirs) / len(shared),
        difference=math.fsum(differences) / len(shared),
        low=low,
        high=high,
        p_higher=p_higher,
        p_lower=p_lower,
        test="mcnemar" if is_binary else "permutation",
    )


def mcnemar(differences: "np.ndarray") -> tuple[float, float]:
    """Return the one-sided p upwards and downwards of differences of -1, 0 and 1, one a prompt."""
    from scipy.stats import binomtest

    num_won, num_lost = int((differences > 0).sum()), int((differences < 0).sum())
    if num_won + num_lost == 0:
        return 1.0, 1.0
    higher = binomtest(num_won, num_won + num_lost, alternative="greater").pvalue
    lower = binomtest(num_won, num_won + num_lost, alternative="less").pvalue
    return float(higher), float(lower)


def _permutation(differences: "np.ndarray") -> tuple[float, float]:
    import numpy as np
    from scipy.stats import monte_carlo_test

    def one_sided(alternative: Literal["greater", "less"]) -> float:
        generator = np.random.default_rng(_SEED)
        return float(
            monte_carlo_test(
                differences,
                lambda size: generator.choice((-1.0, 1.0), size) * differences,
                np.mean,
                n_resamples=_NUM_RESAMPLES,
                batch=_BATCH,
                alternative=alternative,
            ).pvalue
        )

    return one_sided("greater"), one_sided("less")


def _bootstrap(differences: "np.ndarray") -> tuple[float, float]:
    import numpy as np
    from scipy.stats import bootstrap

    if np.ptp(differences) <= _ROUNDING * np.abs(differences).max():
        # Resampling shows no spread, nor has the method a bias to correct.
        return float(differences[0]), float(differences[0])
    interval = bootstrap(
        (differences,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=_NUM_RESAMPLES,
        batch=_BATCH,
        method="BCa",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(interval.low), float(interval.high)
