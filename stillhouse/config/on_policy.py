"""The section of on-policy distillation: what the student learns from on what it samples itself."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from stillhouse.config.divergence import Divergence
from stillhouse.config.on_policy_prompts import PrefixMessage, SourceShare, prompts_by_source
from stillhouse.config.on_policy_teacher import OnPolicyTeacher
from stillhouse.config.secrets import VariableName
from stillhouse.config.section import later_field
from stillhouse.config.training import Switch, TrainerConfig, written_in_yaml


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

    removed = {
        **{"kl_in_reward": False, "kl_discount_factor": 0.0, "kl_baseline": False},
        **{"ppo_dual_clip": None, "cispo_min": 0.0, "cispo_max": 4.0, "activation_offload": False},
    }

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
    source: Literal["student", "rollouts"] = later_field("student")
    """What is trained on: samples of the student as it is at each step, or rollouts that it made before the first step
    and that were scored once, so that no teacher is needed meanwhile (Lightning OPD). `student` first; `rollouts` where
    the teacher is dear, right after SFT on rollouts of the same teacher, as the student should not move far."""
    num_steps: int = Field(default=100, ge=1)
    """Optimiser steps. 100 to 200 are what published runs take (Thinking Machines: 150; tinker-cookbook: 200); enough
    when `teacher_kl` falls no more."""
    prompts_per_step: int = Field(default=32, ge=1)
    """Distinct prompts of one batch of rollouts. 64, with a group_size of 1 to 4, is a good first choice; fewer are
    quicker and noisier."""
    mixture: tuple[SourceShare, ...] = later_field(())
    """How prompts.sources share the prompts of each batch, sources not named here having none; empty draws from all
    prompts alike."""
    conversation_prefix: tuple[PrefixMessage, ...] = later_field(())
    """Messages before each prompt and after its system message, such as examples; student and teachers read them."""
    max_prompt_tokens: int | None = later_field(None, ge=1)
    """Prompts that take more tokens than this, tools and prefix included, are left out and counted; None keeps all. Set
    it where a few long prompts decide how much memory sampling takes."""
    group_size: int = Field(default=1, ge=1)
    """Trajectories per prompt. 1 is enough for the KL, which judges each token; rewards are compared within a group and
    need 4 to 16."""
    num_substeps: int = Field(default=1, ge=1)
    """Optimiser steps among which one batch of rollouts is divided. 1 is exactly on-policy; 2 to 4, with loss `ppo`,
    make more of slow sampling."""
    num_passes: int = Field(default=1, ge=1)
    """Times that a batch of rollouts is trained on. 1 first; 2 to 4, with `ppo`, where sampling is what takes the
    time."""
    max_staleness: int = Field(default=0, ge=0, le=16)
    """Batches of rollouts that may be sampled before the one trained on: 0 samples from the newest weights. 1 lets a
    vLLM server sample while this process trains; others allow 4 (TRL) to 8 (prime-rl)."""
    engine: Literal["transformers", "vllm"] = "transformers"
    """Where the student samples: in the training process, or on a vLLM server that receives each update. `vllm` for
    long completions, where a GPU is free for it."""
    engine_url: str | None = None
    """Address of the vLLM server that samples, such as `http://127.0.0.1:8000/v1`."""
    engine_api_key_env: VariableName | None = None
    """Name of the environment variable that holds that server's key; None sends none."""
    max_concurrent: int = Field(default=256, ge=1)
    """Most trajectories sampled at once. Halve it when sampling runs out of memory."""
    max_tokens: int = Field(default=512, ge=1)
    """Most tokens of one completion. Raise it where more than a tenth are cut (`truncated_share`): a cut one does not
    show how to end."""
    max_turns: int = Field(default=10, ge=1)
    """Most completions of one trajectory; as rollouts.max_turns."""
    agentic: Switch = "auto"
    """Let the student call tools in several turns; `auto` does if tools are configured, off samples one completion."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature; log-probabilities of student and teacher are taken at the same temperature. Leave it at 1,
    the student's own distribution."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Mass of the nucleus sampled from. Leave it at 1: below, the student is trained on another distribution than its
    own."""
    skip_first_n_tokens: int = later_field(0, ge=0)
    """First sampled tokens of each trajectory that bear no loss, such as phrases that a teacher's hint leads to."""
    kl_coef: float = Field(default=1.0, ge=0.0)
    """Factor of the KL; 0 is reinforcement learning alone. 1 for a teacher alone, 0.1 to 1 beside rewards; ROLL's
    example has 0.5."""
    reward_coef: float = Field(default=0.0, ge=0.0)
    """Factor of the normalised reward in the advantage; at 0 rewards are reported and change nothing. Try 1: rewards
    are what lets a student pass its teacher."""
    adv_estimator: Literal["grpo", "rloo", "reinforce"] = "grpo"
    """How rewards become advantages: less the group's mean over its standard deviation, less the mean of the others of
    the group, or as they are. `grpo` first; `rloo` where groups that nearly agree weigh too much; `reinforce` for
    groups of one."""
    divergence: tuple[Divergence, ...] = ()
    """Exact divergence in place of the sampled KL: the weighted sum of its terms, with local teachers or the
    `top_k` of a served one. Try a single `reverse_kl`: the same goal with less noise, so that fewer steps do."""
    adv_clip: float | None = Field(default=None, gt=0.0)
    """Advantages are clipped to this absolute value; None clips nothing. Try 5 (rllm's) if single tokens that the
    teacher finds nearly impossible make the gradient jump."""
    advantage_against: Literal["current", "sampler"] = "current"
    """Whose log-probability the KL of a sampled token is taken from: the student's being trained, or the sampler's.
    `current` is exact however often a batch is used; `sampler` reproduces ROLL and tinker-cookbook."""
    loss: str | None = later_field(None, pattern=r"\.py:\w+$")
    """Loss of your own in place of `loss_fn`, as FILE.py:function: the docs' page `A method from a paper` has one."""
    loss_fn: Literal["importance_sampling", "ppo", "reinforce"] = "importance_sampling"
    """Form of the policy gradient. `importance_sampling` for one update a batch; `ppo`, which bounds the ratios,
    where num_substeps, num_passes or max_staleness use samples of older weights."""
    ppo_clip_low: float = Field(default=0.2, gt=0.0, le=1.0)
    """Ratios below 1 minus this are clipped by `ppo`; 0.2 is usual."""
    ppo_clip_high: float = Field(default=0.2, gt=0.0)
    """Ratios above 1 plus this are clipped by `ppo`. 0.2 is usual; 0.28 (DAPO's) keeps the entropy of rewarded students
    up."""
    correction: Literal["none", "truncate", "mask"] = "none"
    """What becomes of a token that the trainer gives another probability than the sampler did: its weight is the ratio
    of both up to correction_max, or it is left out where the ratio is not between correction_min and correction_max.
    `none` where the training process samples; `truncate` with vLLM."""
    correction_min: float = Field(default=0.5, gt=0.0, le=1.0)
    """Least ratio that `mask` keeps; 0.5 is IcePop's."""
    correction_max: float = Field(default=2.0, ge=1.0)
    """Largest ratio that `mask` keeps, and the cap of `truncate`. 2 is SkyRL's; others take 1.2 (ROLL) to 3 (TRL)."""
    aggregation: Literal[
        "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant", "token_sum"
    ] = "token_mean"
    """How losses of tokens become that of a batch: their mean; the mean of each trajectory's mean or sum; the sum over
    trajectories times max_tokens; the sum. `token_mean` first; the others are those of GRPO and ROLL, of verl, of Dr.
    GRPO and of tinker-cookbook, whose learning rates depend on the batch."""
    balance: Literal["none", "teachers"] = later_field("none")
    """How several teachers share the loss: by the tokens of their prompts, or in equal parts. `teachers` where answers
    of some teachers are much shorter or rarer than those of others; a teacher's kl_coef then says how much it
    counts."""
    generate_every_steps: int | None = later_field(None, ge=1)
    """Optimiser steps between measurements of accuracy on held-out prompts, which the student answers with its most
    likely tokens; None measures none. A tenth of all steps shows the curve."""
    num_generations: int = later_field(32, ge=1)
    """Held-out prompts answered in one such measurement, evenly spread over all of them. 32 show a trend (95 % interval
    of 17 points either way), 200 a result."""
    pair_check: Annotated[Literal["auto", "warn", "off"], BeforeValidator(written_in_yaml)] = later_field("auto")
    """Measure the pair on a few held-out prompts before a training that may take more than minutes, as `stillhouse
    doctor --pair` does: `auto` warns of what does not fit and stops where the answer is no, `warn` goes on in any case,
    `off` measures nothing."""
    watch: Literal["off", "warn", "stop"] = "warn"
    """What is done about growing lengths, collapsing entropy, truncation and a rising KL. `stop` for trainings that
    nobody looks at."""
    show_every_steps: int = Field(default=20, ge=1)
    """Optimiser steps between files of sampled trajectories with the advantage of each token, for `stillhouse view`.
    Read the first ones: what is learnt is easier to see there than in curves."""

    @property
    def needs_teacher(self) -> bool:
        """Whether there is anything to score."""
        return self.kl_coef > 0.0 or any(teacher.kl_coef for teacher in self.teachers)

    @property
    def num_prompts_by_source(self) -> dict[str, int]:
        """Prompts of each source of `mixture` in a batch."""
        return prompts_by_source(self.mixture, self.prompts_per_step) if self.mixture else {}

    @property
    def without_optimiser(self) -> Self:
        """The settings with `loss` and the trainer's own, but the seed, at their defaults: what rollouts depend on."""
        fields = TrainerConfig.model_fields
        defaults = {name: fields[name].default for name in fields.keys() - {"seed", "enabled"}}
        return self.model_copy(update={**defaults, "loss": None})

    @property
    def num_batches(self) -> int:
        """Batches of rollouts of the whole training."""
        return -(-self.num_steps // self.updates_per_batch)

    @property
    def updates_per_batch(self) -> int:
        """Optimiser steps that train on one batch of rollouts."""
        return self.num_substeps * self.num_passes

    @model_validator(mode="after")
    def _something_to_learn_from(self) -> Self:
        if not self.needs_teacher and self.reward_coef == 0.0:
            raise ValueError("kl_coef and reward_coef are both 0: nothing is left to learn from; raise one of them")
        if self.reward_coef > 0.0 and self.group_size == 1 and self.adv_estimator != "reinforce":
            raise ValueError(
                f"adv_estimator {self.adv_estimator!r} compares the rewards of one prompt's trajectories, of which "
                "there is one; set group_size to 2 or more, or adv_estimator to `reinforce`"
            )
        return self

    @model_validator(mode="after")
    def _a_loss_of_its_own_is_the_only_one(self) -> Self:
        names = (
            "loss_fn",
            "adv_clip",
            "ppo_clip_low",
            "ppo_clip_high",
            "correction",
            "correction_min",
            "correction_max",
        )
        set_too = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
        if self.loss is not None and set_too:
            raise ValueError(f"loss = {self.loss} takes the place of {', '.join(set_too)}; leave out either")
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
        if self.source == "rollouts" and self.divergence and not self.teachers:
            raise ValueError(
                "on_policy.source `rollouts` records the most probable tokens of a teacher: for `divergence` "
                "list it in on_policy.teachers with its `top_k`, such as 100"
            )
        for teacher in self.teachers:
            if self.divergence:
                self._check_gives_distribution(teacher)
            if teacher.kind == "ema" and self.ema_decay is None:
                raise ValueError(f"teacher {teacher.name!r} is of kind `ema`, which needs on_policy.ema_decay")
        return self

    @model_validator(mode="after")
    def _balance_has_several_teachers(self) -> Self:
        if self.balance != "none" and len(self.teachers) < 2:
            raise ValueError(
                f"balance {self.balance!r} shares the loss among the teachers of on_policy.teachers, of which there "
                f"are {len(self.teachers)}; expected two or more, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _recorded_before_the_first_step(self) -> Self:
        if self.source == "student":
            if recording := [teacher.name for teacher in self.teachers if teacher.is_local and teacher.top_k]:
                raise ValueError(
                    f"teacher {recording[0]!r} is in this process and compares the whole vocabulary: leave out its "
                    "top_k, which is for servers and for on_policy.source `rollouts`"
                )
            return self
        if self.max_staleness:
            raise ValueError("on_policy.source `rollouts` samples nothing meanwhile; leave max_staleness out")
        if moving := [teacher for teacher in self.teachers if teacher.kind in ("ema", "snapshot")]:
            raise ValueError(
                f"on_policy.source is `rollouts`, scored before the first step, and teacher {moving[0].name!r} of kind "
                f"{moving[0].kind!r} changes with the student; use another teacher, or source `student`"
            )
        return self

    def _check_gives_distribution(self, teacher: OnPolicyTeacher) -> None:
        if teacher.alignment != "ids" or teacher.kind == "echo":
            raise ValueError(
                f"`divergence` needs the teacher's distribution over the student's vocabulary, which "
                f"teacher {teacher.name!r} (kind {teacher.kind!r}, alignment {teacher.alignment!r}) does not give; use "
                "a teacher of the student's family, local or behind vLLM or SGLang"
            )
        if teacher.is_local and self.source == "student":
            return
        if teacher.top_k is None:
            raise ValueError(
                f"`divergence` compares distributions, and teacher {teacher.name!r} of kind "
                f"{teacher.kind!r} gives or records the sampled token's alone: set its `top_k`, such as 20 (of vLLM "
                "at most its --max-logprobs)"
            )
        for term in self.divergence:
            if not term.fits_a_server or (term.top_k or 0) > teacher.top_k:
                raise ValueError(
                    f"a term of `divergence` has top_k {term.top_k}, top_k_of {term.top_k_of!r} and tail {term.tail}, "
                    f"but teacher {teacher.name!r} of kind {teacher.kind!r} gives its own {teacher.top_k} best tokens; "
                    "leave top_k, top_k_of and tail out, or use a local teacher"
                )

    @model_validator(mode="after")
    def _engine_has_an_address(self) -> Self:
        if (self.engine == "vllm") != (self.engine_url is not None):
            remedy = "leave it out, or set engine to `vllm`" if self.engine_url else "set it to the server's address"
            raise ValueError(f"engine {self.engine!r} does not go with engine_url {self.engine_url!r}; {remedy}")
        return self
