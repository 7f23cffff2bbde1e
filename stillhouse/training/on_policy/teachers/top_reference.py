"""Hands a served teacher's most probable tokens to the output layer."""

from collections.abc import Sequence
from itertools import compress

import numpy as np
import torch

from stillhouse.training.head.scores import TopReference
from stillhouse.training.on_policy.scored import ScoredSample


def top_reference(samples: Sequence[ScoredSample]) -> TopReference:
    """The most probable tokens of the samples' teacher at their loss positions, sample by sample."""
    tops = [sample.teacher_top for sample in samples if sample.teacher_top is not None]
    logprobs = [compress(sample.teacher_logprobs or (), sample.loss_mask) for sample in samples]
    return TopReference(
        ids_NK=torch.from_numpy(np.concatenate([top.ids_NK for top in tops])).long(),
        logprobs_NK=torch.from_numpy(np.concatenate([top.logprobs_NK for top in tops])),
        log_others_N=torch.from_numpy(np.concatenate([top.log_others_N for top in tops])),
        target_logprobs_N=torch.tensor([value for values in logprobs for value in values]),
    )
