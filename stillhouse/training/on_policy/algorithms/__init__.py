"""The methods of on-policy distillation, one a file.

| method | file | chosen by |
|---|---|---|
| sampled reverse KL (Thinking Machines 2025) | `sampled_kl.py` | the defaults |
| exact divergence (GKD, arXiv 2306.13649) | `exact_divergence.py` | `divergence` |
| GRPO, RLOO, REINFORCE | `grpo.py` | `kl_coef: 0` |
| one of your own | a function of a file, `user_loss.py` | `loss` |
| reward and teacher | either of the first two | `reward_coef` above 0 |

Who the teacher is and what it reads is no matter of the algorithm. Self-distillation is any of these with the student's
own base or running mean as the teacher, with a hint in its prompt (`teachers/self_teacher.py`, `teachers/hint.py`);
several teachers share the prompts (`teachers/router.py`), and a token has the probability and kl_coef of its own.
"""

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms.algorithm import Algorithm
from stillhouse.training.on_policy.algorithms.exact_divergence import ExactDivergence
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.algorithms.sampled_kl import SampledKL


def choose_algorithm(config: OnPolicyConfig, *, has_teacher: bool) -> Algorithm:
    """The algorithm that `config` asks for; without a teacher that scores, one of the rewards alone."""
    if not has_teacher:
        return GRPO(config)
    return ExactDivergence(config) if config.divergence else SampledKL(config)
