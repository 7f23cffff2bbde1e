"""The methods of on-policy distillation, one a file.

| method | file | chosen by |
|---|---|---|
| sampled reverse KL (Thinking Machines 2025) | `sampled_kl.py` | the defaults |
| the same, with the exact KL as its baseline (arXiv 2605.07865) | `kl_baseline.py` | `kl_baseline` |
| exact divergence (GKD, arXiv 2306.13649) | `exact_divergence.py` | `divergence` |
| the sampled KL, a divergence where the teacher disagrees (AOPD, arXiv 2605.06387) | `asymmetric.py` | `asymmetric` |
| GRPO, Dr. GRPO, RLOO, REINFORCE | `grpo.py` | `kl_coef: 0` |
| reward and teacher | `mixed.py` | `reward_coef` above 0 |
| the KL as part of the reward | `kl_in_reward.py` | `kl_in_reward` |

Who the teacher is and what it reads is no matter of the algorithm. Self-distillation is any of these with the student's
own base or running mean as the teacher, with a hint in its prompt (`teachers/self_teacher.py`, `teachers/hint.py`);
several teachers share the prompts (`teachers/router.py`), and a token has the probability and kl_coef of its own.
"""

from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms.algorithm import Algorithm
from stillhouse.training.on_policy.algorithms.asymmetric import Asymmetric
from stillhouse.training.on_policy.algorithms.exact_divergence import ExactDivergence
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.algorithms.kl_baseline import KLBaseline
from stillhouse.training.on_policy.algorithms.kl_in_reward import KLInReward
from stillhouse.training.on_policy.algorithms.mixed import Mixed
from stillhouse.training.on_policy.algorithms.sampled_kl import SampledKL


def choose_algorithm(config: OnPolicyConfig, *, has_teacher: bool) -> Algorithm:
    """The algorithm that `config` asks for; without a teacher that scores, one of the rewards alone."""
    if config.kl_in_reward:
        return KLInReward(config)
    if not has_teacher:
        return GRPO(config)
    if config.divergence:
        return Asymmetric(config) if config.asymmetric else ExactDivergence(config)
    if config.kl_baseline:
        return KLBaseline(config)
    return Mixed(config) if config.reward_coef > 0.0 else SampledKL(config)
