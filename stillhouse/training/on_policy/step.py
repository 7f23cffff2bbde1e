"""One step, from top to bottom: sample -> score -> credit (`BatchMaker`) -> loss (`Objective`, at N loss positions)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from stillhouse.config import Divergence
from stillhouse.training.head.scores import TokenLosses, TokenScores
from stillhouse.training.losses import reverse_kl
from stillhouse.training.on_policy.algorithms.algorithm import LossInputs
from stillhouse.training.on_policy.algorithms.grpo import GRPO
from stillhouse.training.on_policy.batches.credit import advantages, weights
from stillhouse.training.on_policy.batches.source import RolloutSource
from stillhouse.training.on_policy.batches.time_split import TimeSplit
from stillhouse.training.on_policy.monitoring.metrics import kl_by_name, measure_batch
from stillhouse.training.on_policy.rewards import TrajectoryReward
from stillhouse.training.on_policy.sampling.engine import SamplingEngines
from stillhouse.training.on_policy.table import RolloutTable
from stillhouse.training.on_policy.user_loss import UserLoss
from stillhouse.training.trajectories import SampledTrajectory

OnBatch = Callable[[RolloutTable, Sequence[SampledTrajectory], Sequence[TrajectoryReward]], None]
"""Called with the table of each finished batch, all its trajectories, and their rewards."""
NO_INDEX: Final = -1
"""Stands for no teacher or no route."""


@dataclass(frozen=True, slots=True)
class BatchMaker:
    """Makes batches of rollouts; all that it does is collective."""

    source: RolloutSource
    engines: SamplingEngines
    objective: "Objective"
    show: OnBatch

    def begin(self, index: int, policy_version: int) -> RolloutTable:
        """Return batch `index`, sampled by the current weights, of `policy_version` updates."""
        source, config, algorithm = self.source, self.source.config, self.objective.algorithm
        split = TimeSplit()
        with ExitStack() as stack:
            with split.of("sync"):
                engine = stack.enter_context(self.engines.engine(policy_version))
            if source.stream is not None:
                source.stream.admit(index, policy_version)
            with split.of("sample"):
                rollouts = source.take(engine, index, policy_version)
        prompts, trajectories = rollouts.prompts, rollouts.trajectories
        with split.of("score"):
            table = rollouts.scoring.table(index, prompts, trajectories, config.num_substeps)
            table.untaken = rollouts.untaken
        with split.of("reward"):
            rewards = source.rewards_of(rollouts)
        # A prompt that fills the context has nothing to train on; it stays in the share of truncated ones.
        totals = [reward.total for one, reward in zip(trajectories, rewards, strict=True) if one.num_turns > 0]
        table.advantages = advantages(table, totals, algorithm)
        table.weight = weights(table, config)
        self.show(table, trajectories, rewards)
        routes = {prompt.id: source.teachers.route(source.metadata.get(prompt.id)) for prompt in prompts}
        reported = {key: route for key, route in routes.items() if route in self.objective.routes}
        measured = measure_batch(table, trajectories, rewards, algorithm, source.teachers.by_name, reported)
        table.metrics = rollouts.metrics | measured | split.metrics()
        return table


class Objective:
    """The loss of each token, and what is reported of it; without `teachers`, by rewards alone.

    Metrics are reported by `routes`, values of `RolloutTable.route`.
    """

    def __init__(self, algorithm: GRPO, teachers: Sequence[str] = (), routes: Sequence[str] = ()) -> None:
        self.algorithm, self._config = algorithm, (config := algorithm.config)
        self._teachers, self.routes = list(teachers), list(routes)
        self.is_exact = bool(teachers) and bool(algorithm.divergence)
        """True if teachers give their distribution, not only scores of the sampled tokens."""
        self.is_scored_ahead = not self.is_exact or config.source == "rollouts"
        """True if teachers in this process score a batch before it is trained on."""
        self.divergence: tuple[Divergence, ...] = algorithm.divergence if teachers else ()
        """Terms that the head computes."""
        is_sampled_elsewhere = config.engine_url is not None or config.correction != "none"
        self.needs_old_logprobs = config.updates_per_batch > 1 and is_sampled_elsewhere
        """True if a batch needs `old_logprobs`."""
        self._losses = algorithm.losses if config.loss is None else UserLoss(config.loss)

    def values(self, table: RolloutTable) -> dict[str, np.ndarray]:
        """Return the columns of tokens that `loss` reads, by name."""
        values = {"sampling": table.sampling_logprobs}
        if self.needs_old_logprobs:
            assert table.old_logprobs is not None
            values["old"] = table.old_logprobs
        if self.algorithm.has_advantages:
            assert table.advantages is not None
            values["advantage"] = table.advantages
        if self._config.aggregation != "token_mean" or self._config.balance != "none":
            values["weight"] = table.spread(table.weight)
        if self._teachers:
            teachers = [NO_INDEX if name is None else self._teachers.index(name) for name in table.teacher]
            values["teacher"] = table.spread(np.array(teachers))
            has_teacher = values["teacher"] != NO_INDEX
            values["kl_coef"] = np.where(has_teacher, table.spread(table.kl_coef), 0.0)
            if not self.is_exact:
                values["teacher_logprob"] = np.where(has_teacher, table.teacher_logprobs, 0.0)
            if self.routes:
                routes = [self.routes.index(route) if route in self.routes else NO_INDEX for route in table.route]
                values["route"] = table.spread(np.array(routes))
        return values

    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        """Return the loss of each token and its metrics; all microbatches have the same names."""
        assert scores.entropy_N is not None
        log_ratios_N = scores.logprobs_N.detach() - values["sampling"]
        none_N = sampled_kl_N = torch.zeros_like(values["sampling"])
        ratios: dict[str, tuple[Tensor, Tensor]] = {}
        if self._teachers:
            is_scored_N, teacher_N = values["teacher"] != NO_INDEX, values.get("teacher_logprob")
            if teacher_N is None:
                assert scores.reference_logprobs_N is not None
                teacher_N = scores.reference_logprobs_N
                # The teacher does not have this token id.
                is_scored_N = is_scored_N & teacher_N.isfinite()
            sampled_kl_N = torch.where(is_scored_N, reverse_kl(scores.logprobs_N, teacher_N), 0.0)
            by_route = (f"teacher_kl_by_{self._config.route_by}", values.get("route"), self.routes)
            groups = [("teacher_kl", values["teacher"], self._teachers), by_route]
            ratios = kl_by_name(scores, sampled_kl_N, teacher_N, is_scored_N, groups)
        losses = self._losses(
            LossInputs(
                student_logprobs_N=scores.logprobs_N,
                sampling_logprobs_N=values["sampling"],
                old_logprobs_N=values.get("old"),
                advantages_N=values.get("advantage", none_N),
                kl_coef_N=values.get("kl_coef", none_N),
                sampled_kl_N=sampled_kl_N,
                divergence_N=scores.divergence_N,
            )
        )
        return TokenLosses(
            losses.losses_N * values["weight"] if "weight" in values else losses.losses_N,
            means=losses.means | {"entropy": scores.entropy_N, "log_ratio_mean": log_ratios_N},
            ratios=ratios,
            maxima={"log_ratio_abs_max": log_ratios_N.abs()},
        )
