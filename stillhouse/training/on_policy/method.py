"""On-policy distillation: the student samples, the teacher scores every sampled token, the student follows.

A batch is `prompts_per_step * group_size` fresh trajectories of the current weights, the loss is importance sampling
with the advantage `-kl_coef * reverse_kl`. A verified answer is reported as reward and changes nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from stillhouse.config import Divergence, OnPolicyConfig
from stillhouse.errors import ConfigError
from stillhouse.training.batching.order import distinct_rows
from stillhouse.training.head.scores import ScoreName, TokenScores
from stillhouse.training.losses import importance_sampling, reverse_kl
from stillhouse.training.method import Batch, TokenLosses
from stillhouse.training.on_policy.advantages import distillation_advantages
from stillhouse.training.on_policy.sampling.sampler import Sampler
from stillhouse.training.on_policy.sampling.transformers import TransformersEngines
from stillhouse.training.on_policy.teacher import Teacher
from stillhouse.training.on_policy.trajectories import SampledTrajectory
from stillhouse.training.student.student import Student
from stillhouse.types import JsonObject, Prompt, PromptMetadata, Sample, StopReason
from stillhouse.verification import verify_ending


@dataclass(frozen=True, slots=True)
class ScoredSample(Sample):
    """A sampled trajectory with the teacher's opinion of it, aligned like all per-token lists."""

    teacher_logprobs: list[float] | None = None


class OnPolicy:
    """The method `on_policy`.

    Args:
        student: sampled from as it is at each step, and trained.
        teacher: scores.
        prompts: sampled from, in an order drawn for each pass over them.
        metadata: expected answers by prompt id, for the tracked reward; may lack any.
        sampler: makes trajectories.
        config: sizes and coefficients.

    Raises:
        ConfigError: there are fewer prompts than one step takes.
    """

    name = "on_policy"
    headline = ("teacher_kl", "reward")
    wants: frozenset[ScoreName] = frozenset({"entropy"})
    divergence: tuple[Divergence, ...] = ()
    guarded = None
    facts: JsonObject = {}
    validation: tuple[Sample, ...] = ()
    """None: each batch is itself a measurement on fresh samples."""

    def __init__(
        self,
        student: Student,
        teacher: Teacher,
        prompts: Sequence[Prompt],
        metadata: Mapping[str, PromptMetadata],
        sampler: Sampler,
        config: OnPolicyConfig,
    ) -> None:
        if len(prompts) < config.prompts_per_step:
            raise ConfigError(
                f"on_policy.prompts_per_step = {config.prompts_per_step}: expected at most the number of training "
                f"prompts, {len(prompts)}"
            )
        self._student = student
        self._teacher = teacher
        self._prompts = prompts
        self._metadata = metadata
        self._sampler = sampler
        self._config = config
        self.num_steps = config.num_steps
        self.temperature = config.temperature

    def batch(self, step: int) -> Batch:
        """Fresh trajectories of the current weights with the teacher's scores."""
        rows = distinct_rows(step, self._config.prompts_per_step, len(self._prompts), self._config.seed)
        prompts = [self._prompts[row] for row in rows]
        with TransformersEngines(self._student, self._config.max_concurrent).engine(step) as engine:
            trajectories = self._sampler.sample(engine, prompts, step, policy_version=step)
        samples = self._scored(trajectories)
        num_sampled = sum(sum(sample.loss_mask) for sample in samples)
        return Batch(samples, self._measure(trajectories, num_sampled), num_sampled)

    def partition(self, sample: Sample) -> str:
        """Any samples may share a microbatch."""
        return ""

    def reference(self, samples: Sequence[Sample]) -> None:
        """None: the teacher has scored the sampled tokens, and no other is asked about."""

    def token_values(self, sample: Sample) -> Mapping[str, Sequence[float]]:
        """Log-probabilities of the tokens when they were sampled, and under the teacher."""
        assert isinstance(sample, ScoredSample)
        return {"sampling": sample.sampling_logprobs or [], "teacher": sample.teacher_logprobs or []}

    def loss(self, scores: TokenScores, values: Mapping[str, Tensor]) -> TokenLosses:
        """Importance sampling against the advantage under the weights being trained."""
        kl_N = reverse_kl(scores.logprobs_N, values["teacher"])
        advantages_N = distillation_advantages(
            scores.logprobs_N, values["teacher"], self._config.kl_coef, self._config.adv_clip
        )
        log_ratio_N = scores.logprobs_N.detach() - values["sampling"]
        clipped_N = (advantages_N != -self._config.kl_coef * kl_N).float()
        assert scores.entropy_N is not None
        return TokenLosses(
            importance_sampling(scores.logprobs_N, values["sampling"], advantages_N),
            means={
                "teacher_kl": kl_N,
                "entropy": scores.entropy_N,
                "log_ratio_mean": log_ratio_N,
                "adv_clipped_share": clipped_N,
            },
            maxima={"log_ratio_abs_max": log_ratio_N.abs()},
        )

    def _scored(self, trajectories: Sequence[SampledTrajectory]) -> list[ScoredSample]:
        # A prompt that fills the context has nothing to score; it stays in the share of truncated ones.
        trajectories = [trajectory for trajectory in trajectories if trajectory.num_turns > 0]
        scores = self._teacher.score([trajectory.token_ids for trajectory in trajectories])
        return [
            ScoredSample(
                token_ids=trajectory.token_ids,
                loss_mask=trajectory.loss_mask,
                prompt_id=trajectory.prompt_id,
                tag=metadata.tag if (metadata := self._metadata.get(trajectory.prompt_id)) else None,
                sampling_logprobs=trajectory.sampling_logprobs,
                teacher_logprobs=teacher_logprobs,
            )
            for trajectory, teacher_logprobs in zip(trajectories, scores, strict=True)
        ]

    def _measure(self, trajectories: Sequence[SampledTrajectory], num_sampled: int) -> dict[str, float]:
        """Facts of a batch; what has no denominator (no call, no expected answer) is left out."""
        count = len(trajectories)
        num_tokens = sum(len(trajectory.token_ids) for trajectory in trajectories)
        num_calls = sum(trajectory.num_tool_calls for trajectory in trajectories)
        num_errors = sum(trajectory.num_tool_errors for trajectory in trajectories)
        num_truncated = sum(
            trajectory.stop_reason in (StopReason.LENGTH, StopReason.CONTEXT_OVERFLOW) for trajectory in trajectories
        )
        endings = [
            verify_ending(trajectory.messages, trajectory.stop_reason, self._metadata.get(trajectory.prompt_id))
            for trajectory in trajectories
        ]
        rewards = [right for right in endings if right is not None]
        metrics = {
            "mean_completion_tokens": num_sampled / count,
            "mean_turns": sum(trajectory.num_turns for trajectory in trajectories) / count,
            "truncated_share": num_truncated / count,
            "masked_share": 1.0 - num_sampled / num_tokens,
        }
        if num_calls:
            metrics["valid_tool_call_share"] = 1.0 - num_errors / num_calls
        if rewards:
            metrics["reward"] = math.fsum(rewards) / len(rewards)
        return metrics
