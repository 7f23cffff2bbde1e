"""Sections of on-policy distillation: what the student learns from on what it samples itself."""

from typing import Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.on_policy_prompts import PrefixMessage, SourceShare, prompts_by_source
from stillhouse.config.on_policy_teacher import OnPolicyTeacher
from stillhouse.config.secrets import VariableName
from stillhouse.config.section import Section, later_field
from stillhouse.config.training import Switch, TrainerConfig


class Divergence(Section):
    """One term of an exact divergence between student and teacher over the vocabulary."""

    kind: Literal["reverse_kl", "forward_kl", "jsd", "skewed_reverse_kl", "skewed_forward_kl"] = "reverse_kl"
    """KL(student || teacher), KL(teacher || student), the generalised Jensen-Shannon divergence, or the KL to a mixture
    of both."""
    weight: float = Field(default=1.0, gt=0.0)
    """Factor of the term."""
    beta: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of the teacher in the mixture of `jsd`."""
    skew: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Share of the first distribution of a skewed KL in its mixture with the second."""
    top_k: int | None = Field(default=None, ge=1)
    """Compare the k most probable tokens alone; only for `reverse_kl` and `forward_kl`. None compares all."""
    top_k_of: Literal["teacher", "student"] = "teacher"
    """Whose most probable tokens."""
    tail: bool = True
    """Count the mass outside the k tokens as one more token. Without it the sum is no divergence and can collapse."""

    @model_validator(mode="after")
    def _top_k_of_a_plain_kl(self) -> Self:
        if self.top_k is not None and self.kind not in ("reverse_kl", "forward_kl"):
            raise ValueError(f"top_k is for reverse_kl and forward_kl, saw kind {self.kind!r}; leave it out")
        return self


class OnPolicyConfig(TrainerConfig):
    """On-policy distillation: the student samples, a teacher scores each sampled token, rewards may join in."""

    form_first = (
        "enabled",
        "teacher",
        "num_steps",
        "prompts_per_step",
        "group_size",
        "learning_rate",
        "max_tokens",
        "max_turns",
    )

    enabled: bool = False
    """Run this stage, after SFT if that runs too."""
    teacher: str | None = None
    """Local model that scores; None takes the teacher's own model, which must then be a local one."""
    teachers: tuple[OnPolicyTeacher, ...] = ()
    """Teachers in place of `teacher`: one with settings of its own, or several that share the prompts."""
    route_by: str = "tag"
    """Field that decides which teacher scores a prompt: its tag, or a key of its metadata such as `dataset`."""
    unrouted: Literal["error", "no_kl"] = "error"
    """What to do with a prompt without a teacher: fail at the start, or train on rewards alone."""
    num_steps: int = Field(default=100, ge=1)
    """Optimiser steps."""
    prompts_per_step: int = Field(default=32, ge=1)
    """Distinct prompts of one batch of rollouts."""
    mixture: tuple[SourceShare, ...] = later_field(())
    """How prompts.sources share the prompts of each batch, sources not named here having none; empty draws from all
    prompts alike."""
    conversation_prefix: tuple[PrefixMessage, ...] = later_field(())
    """Messages before each prompt and after its system message, such as examples; student and teachers read them."""
    max_prompt_tokens: int | None = later_field(None, ge=1)
    """Prompts that take more tokens than this, tools and prefix included, are left out and counted; None keeps all."""
    group_size: int = Field(default=1, ge=1)
    """Trajectories per prompt."""
    num_substeps: int = Field(default=1, ge=1)
    """Optimiser steps among which one batch of rollouts is divided."""
    num_passes: int = Field(default=1, ge=1)
    """Times that a batch of rollouts is trained on."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """Batches of rollouts that may be sampled before the one trained on: 0 samples from the newest weights."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """Where the student samples: in the training process, or on a vLLM server that receives each update."""
    engine_url: str | None = None
    """Address of the vLLM server that samples, such as `http://127.0.0.1:8000/v1`."""
    engine_api_key_env: VariableName | None = None
    """Name of the environment variable that holds that server's key; None sends none."""
    max_concurrent: int = Field(default=256, ge=1)
    """Most trajectories sampled at once."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens of one completion."""
    max_turns: int = Field(default=10, ge=1)
    """Most completions of one trajectory."""
    agentic: Switch = "auto"
    """Let the student call tools in several turns; `auto` does if tools are configured, off samples one completion."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature; log-probabilities of student and teacher are taken at the same temperature."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Mass of the nucleus sampled from. Below 1 the student is trained on another distribution than its own."""
    skip_first_n_tokens: int = later_field(0, ge=0)
    """First sampled tokens of each trajectory that bear no loss, such as phrases that a teacher's hint leads to."""
    kl_coef: float = Field(default=1.0, ge=0.0)
    """Factor of the KL; 0 is reinforcement learning alone."""
    reward_coef: float = Field(default=0.0, ge=0.0)
    """Factor of the normalised reward in the advantage; at 0 rewards are reported and change nothing."""
    adv_estimator: Literal["grpo", "mean", "rloo", "reinforce"] = "grpo"
    """How rewards become advantages: less the group's mean over its standard deviation, less the mean alone, less the
    mean of the others of the group, or as they are."""
    kl_in_reward: bool = False
    """Take the KL into the reward before it is normalised, instead of into the advantage."""
    kl_discount_factor: float = Field(default=0.0, ge=0.0, le=1.0)
    """Weight with which the KL of a later sampled token counts for each earlier one, by their distance."""
    kl_baseline: bool = False
    """Take the exact KL at each token off its sampled KL, which lowers the variance (local teachers)."""
    divergence: tuple[Divergence, ...] = ()
    """Exact divergence in place of the sampled KL: the weighted sum of its terms (local teachers)."""
    adv_clip: float | None = Field(default=None, gt=0.0)
    """Advantages are clipped to this absolute value; None clips nothing."""
    advantage_against: Literal["current", "sampler"] = "current"
    """Whose log-probability the KL of a sampled token is taken from: the student's being trained, or the sampler's."""
    loss_fn: Literal["importance_sampling", "ppo", "cispo", "reinforce"] = "importance_sampling"
    """Form of the policy gradient."""
    ppo_clip_low: float = Field(default=0.2, gt=0.0, le=1.0)
    """Ratios below 1 minus this are clipped by `ppo`."""
    ppo_clip_high: float = Field(default=0.2, gt=0.0)
    """Ratios above 1 plus this are clipped by `ppo`."""
    ppo_dual_clip: float | None = Field(default=None, gt=1.0)
    """`ppo` bounds the loss of a negative advantage by this factor; None does not."""
    cispo_min: float = Field(default=0.0, ge=0.0)
    """Least weight that `cispo` gives a ratio."""
    cispo_max: float = Field(default=4.0, gt=0.0)
    """Largest weight that `cispo` gives a ratio."""
    correction: Literal["none", "truncate", "mask"] = "none"
    """What becomes of a token that the trainer gives another probability than the sampler did: its weight is the ratio
    of both up to correction_max, or it is left out where the ratio is not between correction_min and correction_max."""
    correction_min: float = Field(default=0.5, gt=0.0, le=1.0)
    """Least ratio that `mask` keeps."""
    correction_max: float = Field(default=2.0, ge=1.0)
    """Largest ratio that `mask` keeps, and the cap of `truncate`."""
    aggregation: Literal[
        "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant", "token_sum"
    ] = "token_mean"
    """How losses of tokens become that of a batch: their mean; the mean of each trajectory's mean or sum; the sum over
    trajectories times max_tokens; the sum."""
    generate_every_steps: int | None = later_field(None, ge=1)
    """Optimiser steps between measurements of accuracy on held-out prompts, which the student answers with its most
    likely tokens; None measures none."""
    num_generations: int = later_field(32, ge=1)
    """Held-out prompts answered in one such measurement, evenly spread over all of them."""
    watch: Literal["off", "warn", "stop"] = "warn"
    """What is done about growing lengths, collapsing entropy, truncation and a rising KL."""
    show_every_steps: int = Field(default=20, ge=1)
    """Optimiser steps between pages of sampled trajectories with the advantage of each token."""

    @property
    def needs_teacher(self) -> bool:
        """Whether there is anything to score."""
        return self.kl_coef > 0.0 or any(teacher.kl_coef for teacher in self.teachers)

    @property
    def num_prompts_by_source(self) -> dict[str, int]:
        """Prompts of each source of `mixture` in a batch."""
        return prompts_by_source(self.mixture, self.prompts_per_step) if self.mixture else {}

    @property
    def updates_per_batch(self) -> int:
        """Optimiser steps that train on one batch of rollouts."""
        return self.num_substeps * self.num_passes

    @model_validator(mode="after")
    def _something_to_learn_from(self) -> Self:
        if not self.needs_teacher and self.reward_coef == 0.0:
            raise ValueError("kl_coef and reward_coef are both 0: nothing is left to learn from; raise one of them")
        is_compared = self.reward_coef > 0.0 or self.kl_in_reward
        if is_compared and self.group_size == 1 and self.adv_estimator != "reinforce":
            raise ValueError(
                f"adv_estimator {self.adv_estimator!r} compares the rewards of one prompt's trajectories, of which "
                "there is one; set group_size to 2 or more, or adv_estimator to `reinforce`"
            )
        if self.divergence and (self.kl_in_reward or self.kl_discount_factor):
            raise ValueError(
                "kl_in_reward and kl_discount_factor take the sampled KL, which `divergence` replaces; leave them out"
            )
        if self.kl_baseline and (self.divergence or self.kl_in_reward or self.kl_discount_factor):
            raise ValueError(
                "kl_baseline goes with the sampled KL of each token by itself; leave out `divergence`, kl_in_reward "
                "and kl_discount_factor"
            )
        return self

    @model_validator(mode="after")
    def _substeps_share_out_prompts(self) -> Self:
        if self.prompts_per_step % self.num_substeps:
            raise ValueError(
                f"num_substeps = {self.num_substeps} does not divide prompts_per_step = {self.prompts_per_step}"
            )
        return self

    @model_validator(mode="after")
    def _mixture_fills_a_batch(self) -> Self:
        _ = self.num_prompts_by_source
        return self

    @model_validator(mode="after")
    def _tokens_are_left_to_train_on(self) -> Self:
        if self.skip_first_n_tokens >= self.max_tokens:
            raise ValueError(
                f"skip_first_n_tokens = {self.skip_first_n_tokens} leaves nothing of completions of max_tokens = "
                f"{self.max_tokens}; expected less"
            )
        return self

    @model_validator(mode="after")
    def _teachers_agree(self) -> Self:
        if self.teacher is not None and self.teachers:
            raise ValueError("teacher and teachers are both set; put the model of `teacher` into `teachers`")
        names = [teacher.name for teacher in self.teachers]
        if len(set(names)) < len(names):
            raise ValueError(f"teachers have the names {', '.join(names)}; expected each of them once")
        for teacher in self.teachers:
            if (self.divergence or self.kl_baseline) and (not teacher.is_local or teacher.alignment != "ids"):
                raise ValueError(
                    f"`divergence` and kl_baseline need the teacher's whole distribution over the student's "
                    f"vocabulary, which teacher {teacher.name!r} (kind {teacher.kind!r}, alignment "
                    f"{teacher.alignment!r}) does not give; use a local teacher of the student's family"
                )
            if teacher.kind == "ema" and self.ema_decay is None:
                raise ValueError(f"teacher {teacher.name!r} is of kind `ema`, which needs on_policy.ema_decay")
        return self

    @model_validator(mode="after")
    def _engine_has_an_address(self) -> Self:
        if (self.engine == "vllm") != (self.engine_url is not None):
            remedy = "leave it out, or set engine to `vllm`" if self.engine_url else "set it to the server's address"
            raise ValueError(f"engine {self.engine!r} does not go with engine_url {self.engine_url!r}; {remedy}")
        return self
