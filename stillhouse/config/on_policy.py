"""The section of on-policy distillation: what the student learns from on what it samples itself."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from stillhouse.config.mixture import Mixture, prompts_by_source
from stillhouse.config.on_policy_teacher import Divergence, OnPolicyTeacher
from stillhouse.config.secrets import VariableName
from stillhouse.config.section import Addresses, Section, later_field
from stillhouse.config.training import TrainerConfig, written_in_yaml

_BY_ALGORITHM: Final[Mapping[str, Mapping[str, Any]]] = {
    "divergence": {"divergence": [{}]},
    "rewards": {"kl_coef": 0.0, "reward_coef": 1.0},
    "mixed": {"reward_coef": 1.0},
}
"""Defaults that an algorithm has of its own."""


class OnPolicyConfig(Section):
    """On-policy distillation: the student samples, a teacher scores each sampled token, rewards may join in."""

    form_first = ("enabled", "algorithm", "teacher", "num_steps", "prompts_per_step", "learning_rate", "max_tokens")

    enabled: bool = False
    """Run this stage, after SFT if that runs too."""
    algorithm: Literal["sampled_kl", "divergence", "rewards", "mixed"] = "sampled_kl"
    """Source of learning: the teacher's log-probability of each sampled token, its distribution there, rewards, or
    rewards beside a teacher, by its distribution where `divergence` has terms. `sampled_kl` first, since any teacher
    will do; `divergence` has less noise, so that fewer steps do; rewards let a student pass its teacher."""
    teacher: str | None = None
    """Local model that scores; None takes the teacher's own model, which must then be a local one."""
    teachers: tuple[OnPolicyTeacher, ...] = ()
    """Teachers in place of `teacher`: one with settings of its own, or several that share the prompts."""
    route_by: str = "tag"
    """Field that decides which teacher scores a prompt: its tag, or a key of its metadata such as `dataset`."""
    unrouted: Literal["error", "no_kl"] = "error"
    """Treatment of a prompt without a teacher: fail at the start, or train on rewards alone."""
    source: Literal["student", "rollouts"] = later_field("student")
    """Rollouts to train on: samples of the student as it is at each step, or rollouts that it made before the first
    step and that were scored once, with no teacher meanwhile (Lightning OPD). `student` first; `rollouts` where the
    teacher is dear, right after SFT on rollouts of the same teacher, as the student should not move far."""
    num_steps: int = Field(default=100, ge=1)
    """Optimiser steps. 100 to 200 are what published runs take (Thinking Machines: 150; tinker-cookbook: 200); enough
    when `teacher_kl` falls no more."""
    prompts_per_step: int = Field(default=32, ge=1)
    """Distinct prompts of one batch of rollouts. 64, with a group_size of 1 to 4, is a good first choice; fewer are
    quicker and noisier."""
    group_size: int = Field(default=1, ge=1)
    """Trajectories per prompt. 1 is enough for the KL, which judges each token; rewards are compared within a group and
    need 4 to 16."""
    learning_rate: float = Field(default=1e-4, gt=0.0)
    """Peak learning rate. 1e-4 for adapters and 5e-5 for all weights are tinker-cookbook's. Halve it if the loss
    jumps, double it if `teacher_kl` hardly falls."""
    trainer: TrainerConfig = TrainerConfig()
    """Optimiser, schedule, memory, checkpoints and measurements."""
    mixture: Mixture = later_field({})
    """How prompts.sources share the prompts of each batch, by their names: an entire number counts its prompts, a
    share below 1 stands, relative to other shares, for the prompts that no number takes. A source not named here has
    none; empty draws from all prompts alike."""
    max_prompt_tokens: int | None = later_field(None, ge=1)
    """Prompts that take more tokens than this, tools included, are left out and counted; None keeps all. Set it where a
    few long prompts decide how much memory sampling takes."""
    num_substeps: int = Field(default=1, ge=1)
    """Optimiser steps among which one batch of rollouts is divided. 1 is exactly on-policy; 2 to 4, with loss `ppo`,
    make more of slow sampling."""
    num_passes: int = Field(default=1, ge=1)
    """Times that a batch of rollouts is trained on. 1 first; 2 to 4, with `ppo`, where sampling takes the time."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """Updates by which the weights that sampled a token may be behind when the training on its batch begins: 0 samples
    from the newest. num_substeps * num_passes lets vLLM servers sample while this process trains, twice that also evens
    out slow answers; others allow 4 (TRL) to 8 (prime-rl)."""
    engine_url: Addresses | None = None
    """Address of a vLLM server that samples and receives each update, such as `http://127.0.0.1:8000/v1`, or of several
    that share the requests; None samples in the training process, or by servers that the run starts. For long
    completions, where GPUs are free for it."""
    engine_api_key_env: VariableName | None = None
    """Name of the environment variable that holds the key of those servers; None sends none."""
    max_concurrent: int = Field(default=256, ge=1)
    """Most trajectories sampled at once. Halve it when sampling runs out of memory."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens of one completion. Raise it where more than a tenth are cut (`truncated_share`): a cut one does not
    show how to end."""
    max_turns: int = Field(default=10, ge=1)
    """Most completions of one trajectory, in which the student calls the configured tools; as rollouts.max_turns."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature; log-probabilities of student and teacher are taken at the same temperature. Leave it at 1,
    the student's own distribution."""
    kl_coef: float = Field(default=1.0, ge=0.0)
    """Factor of the KL. 1 for a teacher alone, 0.1 to 1 beside rewards; ROLL's example has 0.5."""
    reward_coef: float = Field(default=0.0, ge=0.0)
    """Factor of the normalised reward in the advantage, 1 where `algorithm` has rewards and this is left out; with
    other algorithms rewards are reported and change nothing."""
    adv_estimator: Literal["grpo", "rloo", "reinforce"] = "grpo"
    """How rewards become advantages: less the group's mean over its standard deviation, less the mean of the others of
    the group, or as they are. `grpo` first; `rloo` where groups that nearly agree weigh too much; `reinforce` for
    groups of one."""
    divergence: tuple[Divergence, ...] = ()
    """Terms of the algorithm `divergence`, or of the KL of `mixed`, whose weighted sum is the loss; a single
    `reverse_kl` unless the former has others. With local teachers, or the `top_k` of a served one."""
    adv_clip: float | None = Field(default=None, gt=0.0)
    """Advantages are clipped to this absolute value; None clips nothing. Try 5 (rllm's) if single tokens that the
    teacher finds nearly impossible make the gradient jump."""
    loss: str | None = later_field(None, pattern=r"\.py:\w+$")
    """Loss of your own in place of `loss_fn`, as FILE.py:function: the docs' page `A method from a paper` has one."""
    loss_fn: Literal["importance_sampling", "ppo", "reinforce"] = "importance_sampling"
    """Form of the policy gradient. `importance_sampling` for one update a batch; `ppo`, which bounds the ratios,
    where num_substeps, num_passes or max_staleness use samples of older weights."""
    ppo_clip: tuple[Annotated[float, Field(gt=0.0, le=1.0)], Annotated[float, Field(gt=0.0)]] = (0.2, 0.2)
    """How far below and above 1 `ppo` clips ratios. 0.2 is usual; 0.28 above (DAPO's) keeps the entropy of rewarded
    students up."""
    correction: Literal["none", "truncate", "mask"] = "none"
    """Treatment of a token that the trainer gives another probability than the sampler did: its weight is the ratio
    of both up to the upper one of correction_bounds, or it is left out where the ratio is not between them. `none`
    where the training process samples; `truncate` with vLLM."""
    correction_bounds: tuple[Annotated[float, Field(gt=0.0, le=1.0)], Annotated[float, Field(ge=1.0)]] = (0.5, 2.0)
    """Ratios between which `mask` keeps a token, the upper one being the cap of `truncate`. 0.5 is IcePop's and 2
    SkyRL's; others cap at 1.2 (ROLL) to 3 (TRL)."""
    aggregation: Literal[
        "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant", "token_sum"
    ] = "token_mean"
    """How losses of tokens become the loss of a batch: their mean; the mean of each trajectory's mean or sum; the sum
    over trajectories times max_tokens; the sum. `token_mean` first; the others are those of GRPO and ROLL, of verl, of
    Dr. GRPO and of tinker-cookbook, whose learning rates depend on the batch."""
    balance: Literal["none", "teachers"] = later_field("none")
    """How several teachers share the loss: by the tokens of their prompts, or in equal parts, times their kl_coef.
    `teachers` where answers of some teachers are much shorter or rarer than others."""
    pair_check: Annotated[Literal["auto", "warn", "off"], BeforeValidator(written_in_yaml)] = later_field("auto")
    """Measure the pair on a few held-out prompts before a training that may take more than minutes, as `stillhouse
    doctor --pair` does: `auto` warns of what does not fit and stops where the answer is no, `warn` goes on in any case,
    `off` measures nothing."""
    watch: Literal["off", "warn", "stop"] = "warn"
    """Reaction to growing lengths, collapsing entropy, truncation and a rising KL. `stop` for trainings that
    nobody looks at."""

    @property
    def needs_teacher(self) -> bool:
        """Return whether there is anything to score."""
        return self.kl_coef > 0.0 or any(teacher.kl_coef for teacher in self.teachers)

    @property
    def without_optimiser(self) -> Self:
        """Return the settings that rollouts depend on, all others (`loss`, the trainer's but the seed) at defaults."""
        plain = OnPolicyConfig()
        trainer = TrainerConfig(seed=self.trainer.seed)
        return self.model_copy(update={"loss": None, "learning_rate": plain.learning_rate, "trainer": trainer})

    @property
    def num_batches(self) -> int:
        """Return the number of batches of rollouts of the whole training."""
        return -(-self.num_steps // self.updates_per_batch)

    @property
    def updates_per_batch(self) -> int:
        """Return the number of optimiser steps on one batch of rollouts."""
        return self.num_substeps * self.num_passes

    def key_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields.pop("trainer"), **fields}

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_algorithm(cls, body: Any) -> Any:
        return {**_BY_ALGORITHM.get(str(body.get("algorithm")), {}), **body} if isinstance(body, Mapping) else body

    @model_validator(mode="after")
    def _algorithm_fits(self) -> Self:
        fitting = {
            (True, False): "divergence" if self.divergence else "sampled_kl",
            (False, True): "rewards",
            (True, True): "mixed",
        }.get((self.needs_teacher, self.reward_coef > 0.0))
        if fitting is None:
            raise ValueError("kl_coef and reward_coef are both 0: nothing is left to learn from; raise one of them")
        if self.algorithm != fitting or (self.divergence and fitting == "rewards"):
            raise ValueError(
                f"algorithm `{self.algorithm}` does not go with kl_coef {self.kl_coef:g}, reward_coef "
                f"{self.reward_coef:g} and {len(self.divergence)} terms of divergence; expected algorithm `{fitting}`, "
                "or leave those out"
            )
        if self.reward_coef > 0.0 and self.group_size == 1 and self.adv_estimator != "reinforce":
            raise ValueError(
                f"adv_estimator {self.adv_estimator!r} compares the rewards of one prompt's trajectories, of which "
                "there is one; set group_size to 2 or more, or adv_estimator to `reinforce`"
            )
        return self

    @model_validator(mode="after")
    def _a_loss_of_its_own_is_the_only_one(self) -> Self:
        names = ("loss_fn", "adv_clip", "ppo_clip", "correction", "correction_bounds")
        set_too = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
        if self.loss is not None and set_too:
            raise ValueError(f"loss = {self.loss} takes the place of {', '.join(set_too)}; leave out either")
        return self

    @model_validator(mode="after")
    def _prompts_are_shared_out(self) -> Self:
        if self.prompts_per_step % self.num_substeps:
            raise ValueError(
                f"num_substeps = {self.num_substeps} does not divide prompts_per_step = {self.prompts_per_step}"
            )
        prompts_by_source(self.mixture, self.prompts_per_step)
        return self

    @model_validator(mode="after")
    def _teachers_agree(self) -> Self:
        if self.teacher is not None and self.teachers:
            raise ValueError("teacher and teachers are both set; put the model of `teacher` into `teachers`")
        names = [teacher.name for teacher in self.teachers]
        if len(set(names)) < len(names):
            raise ValueError(f"teachers have the names {', '.join(names)}; expected each of them once")
        if self.balance != "none" and len(self.teachers) < 2:
            raise ValueError(
                f"balance {self.balance!r} shares the loss among the teachers of on_policy.teachers, of which there "
                f"are {len(self.teachers)}; expected two or more, or leave it out"
            )
        if self.source == "rollouts" and self.divergence and not self.teachers:
            raise ValueError(
                "on_policy.source `rollouts` records the most probable tokens of a teacher: for `divergence` "
                "list it in on_policy.teachers with its `top_k`, such as 100"
            )
        if self.source == "rollouts" and self.max_staleness:
            raise ValueError("on_policy.source `rollouts` samples nothing meanwhile; leave max_staleness out")
        if 0 < self.max_staleness < self.updates_per_batch:
            raise ValueError(
                f"max_staleness = {self.max_staleness} lets nothing be sampled during the num_substeps * num_passes = "
                f"{self.updates_per_batch} updates of a batch; set it to 0, or to {self.updates_per_batch} or more"
            )
        for teacher in self.teachers:
            if teacher.kind == "ema" and self.trainer.ema_decay is None:
                raise ValueError(f"teacher {teacher.name!r} is of kind `ema`, which needs on_policy.trainer.ema_decay")
            teacher.check_fits(self.divergence, is_recorded=self.source == "rollouts")
        return self
