"""The methods of on-policy distillation, one a file.

| `on_policy.algorithm` | method | file |
|---|---|---|
| `sampled_kl` | sampled reverse KL (Thinking Machines 2025) | `sampled_kl.py` |
| `divergence` | exact divergence (GKD, arXiv 2306.13649) | `exact_divergence.py` |
| `rewards` | GRPO, RLOO, REINFORCE | `grpo.py` |
| `mixed` | rewards beside a teacher | either of the first two |

A loss of one's own (`on_policy.loss`, `user_loss.py`) takes the place of any of theirs.

Who the teacher is and what it reads is no matter of the algorithm. Self-distillation is any of these with the student's
own base or running mean as the teacher, with a hint in its prompt (`teachers/self_teacher.py`, `teachers/hint.py`);
several teachers share the prompts (`teachers/router.py`), and a token has the probability and kl_coef of its own.
"""

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms.exact_divergence import ExactDivergence
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.algorithms.sampled_kl import SampledKL


def algorithm_of(config: OnPolicyConfig) -> GRPO:
    """Return the algorithm that `config` names."""
    if config.algorithm == "rewards":
        return GRPO(config)
    return ExactDivergence(config) if config.divergence else SampledKL(config)
