"""Turns of a trajectory: the runs of tokens that were sampled one after the other."""

from itertools import groupby

from stillhouse.training.on_policy.scored import TeacherView


def sampled_runs(view: TeacherView) -> list[list[int]]:
    """Token ids of each run of True in the mask; what stands between two turns is never sampled."""
    pairs = zip(view.token_ids, view.loss_mask, strict=True)
    return [[token for token, _ in run] for sampled, run in groupby(pairs, key=lambda pair: pair[1]) if sampled]
