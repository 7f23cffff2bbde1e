"""Tables of a few trajectories, told one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stillhouse.inference.scoring.scores import TopLogprobs
from stillhouse.training.on_policy.table import RolloutTable
from stillhouse.types import Sample


@dataclass(frozen=True)
class One:
    """A trajectory; lists are aligned with its tokens."""

    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    prompt_id: str = "p"
    sampling: Sequence[float] | None = None
    """All 0 unless given."""
    scored: Sequence[float] | None = None
    """By the teacher."""
    teacher: str | None = None
    kl_coef: float = 0.0
    route: str | None = None
    tag: str | None = None
    policy_version: int = 0
    part: int = 0
    view: Sample | None = None
    top: TopLogprobs | None = None
    weight: float = 1.0
    advantages: Sequence[float] | None = None
    old: Sequence[float] | None = None


def table_of(ones: Sequence[One], *, index: int = 0, num_parts: int = 1, **metrics: float) -> RolloutTable:
    """Return the table of trajectories, all or none of which have advantages, and old log-probabilities."""

    def tokens(lists: Sequence[Sequence[float]], dtype: Any = np.float64) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *(np.array(values, dtype) for values in lists)])

    def if_any(name: str) -> np.ndarray | None:
        lists = [getattr(one, name) for one in ones]
        return tokens(lists) if lists and lists[0] is not None else None

    return RolloutTable(
        index,
        num_parts,
        lengths=np.array([len(one.token_ids) for one in ones], np.int64),
        token_ids=tokens([one.token_ids for one in ones], np.int32),
        loss_mask=tokens([one.loss_mask for one in ones], np.bool_),
        sampling_logprobs=tokens([one.sampling or [0.0] * len(one.token_ids) for one in ones]),
        policy_version=tokens([[one.policy_version] * len(one.token_ids) for one in ones], np.int32),
        teacher_logprobs=tokens([one.scored or [np.nan] * len(one.token_ids) for one in ones]),
        prompt_id=[one.prompt_id for one in ones],
        tag=[one.tag for one in ones],
        teacher=[one.teacher for one in ones],
        kl_coef=np.array([one.kl_coef for one in ones]),
        route=[one.route for one in ones],
        part=np.array([one.part for one in ones], np.int64),
        teacher_view=[one.view for one in ones],
        teacher_top=[one.top for one in ones],
        weight=np.array([one.weight for one in ones]),
        advantages=if_any("advantages"),
        old_logprobs=if_any("old"),
        metrics=metrics,
    )
