"""The policy gradient of sampled tokens: form of the loss, and correction where the sampler was another program.

Three probabilities of a sampled token take part: of the student as it is trained, of the student as the trainer saw it
before the first update on the batch (`old`), and of the sampler. Where `old` is not known the form compares the student
with the sampler itself; where it is, the form compares with `old`, and the correction weighs `old` against the sampler,
so that unclipped the product is again the ratio of student to sampler.
"""

import torch
from torch import Tensor

from stillhouse.config import OnPolicyConfig
from stillhouse.training.head.scores import TokenLosses
from stillhouse.training.losses import importance_sampling, masked_ratios, ppo, reinforce, truncated_ratios
from stillhouse.training.on_policy.algorithms.algorithm import LossInputs


def policy_gradient(inputs: LossInputs, advantages_N: Tensor, config: OnPolicyConfig) -> TokenLosses:
    """Return losses whose gradient raises tokens of positive advantage, by `loss_fn`, `adv_clip` and `correction`.

    Reports the advantages, and the shares of what was clipped and corrected.
    """
    clip = config.adv_clip
    clipped_N = advantages_N if clip is None else advantages_N.clamp(-clip, clip)
    old_N = inputs.old_logprobs_N
    if old_N is None and config.correction != "none":
        # The only update on its batch: before it the student was what it is now.
        old_N = inputs.student_logprobs_N.detach()
    behaviour_N = inputs.sampling_logprobs_N if old_N is None else old_N
    losses = _form(inputs.student_logprobs_N, behaviour_N, clipped_N, config)
    losses.means["advantage"] = clipped_N
    losses.means["adv_clipped_share"] = (clipped_N != advantages_N).to(clipped_N.dtype)
    if old_N is None or config.correction == "none":
        return losses
    ratios_N = torch.exp(old_N - inputs.sampling_logprobs_N)
    if config.correction == "truncate":
        weights_N = truncated_ratios(ratios_N, config.correction_bounds[1])
    else:
        weights_N = masked_ratios(ratios_N, *config.correction_bounds)
    is_corrected_N = (weights_N != ratios_N).to(weights_N.dtype)
    return TokenLosses(weights_N * losses.losses_N, losses.means | {"corrected_share": is_corrected_N})


def _form(student_N: Tensor, behaviour_N: Tensor, advantages_N: Tensor, config: OnPolicyConfig) -> TokenLosses:
    match config.loss_fn:
        case "importance_sampling":
            return TokenLosses(importance_sampling(student_N, behaviour_N, advantages_N))
        case "reinforce":
            return TokenLosses(reinforce(student_N, advantages_N))
        case "ppo":
            clipped = ppo(
                student_N,
                behaviour_N,
                advantages_N,
                clip_low=config.ppo_clip[0],
                clip_high=config.ppo_clip[1],
            )
    return TokenLosses(clipped.losses_N, {"ratio_clipped_share": clipped.is_clipped_N.to(student_N.dtype)})
