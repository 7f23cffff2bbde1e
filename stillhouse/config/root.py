"""The whole config: the body of a YAML file, the parameter of a flow, the form in Prefect."""

from typing import Final, Self, get_args

from pydantic import model_validator

from stillhouse.config.dataset import DatasetConfig
from stillhouse.config.on_policy import OnPolicyConfig
from stillhouse.config.on_policy_teacher import OnPolicyTeacher
from stillhouse.config.promotion import ApprovalConfig, Metric, PromotionConfig
from stillhouse.config.rollouts import BudgetConfig, PromptsConfig, RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.config.runtime import EvaluationConfig, RuntimeConfig, TrackingConfig
from stillhouse.config.secrets import addresses_with_secrets, holds_key, keys_in_body
from stillhouse.config.section import Section
from stillhouse.config.self_training import SelfTrainingConfig
from stillhouse.config.suites import SUITE_PREFIX, parse_suite
from stillhouse.config.training import SftConfig, StudentConfig, TrainerConfig
from stillhouse.errors import WrongSetting
from stillhouse.sellers import cannot_score, cannot_score_at


class DistillConfig(Section):
    """A distillation from prompts to an evaluated student."""

    form_first = (
        *("prompts", "teacher", "rollouts", "budget", "student", "sft", "self_training", "on_policy"),
        *("evaluation", "tracking", "runtime"),
    )

    prompts: PromptsConfig = PromptsConfig()
    teacher: TeacherConfig = TeacherConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    tools: ToolsConfig = ToolsConfig()
    budget: BudgetConfig = BudgetConfig()
    dataset: DatasetConfig = DatasetConfig()
    approval: ApprovalConfig = ApprovalConfig()
    student: StudentConfig = StudentConfig()
    sft: SftConfig = SftConfig()
    self_training: SelfTrainingConfig = SelfTrainingConfig()
    on_policy: OnPolicyConfig = OnPolicyConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    promotion: PromotionConfig = PromotionConfig()
    tracking: TrackingConfig = TrackingConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _holds_no_secret(self) -> Self:
        places = {
            *addresses_with_secrets(self.model_dump(mode="json")),
            *keys_in_body(self.rollouts.extra_body, "rollouts.extra_body"),
            *(f"tools.mcp, {server.name!r}, command" for server in self.tools.mcp if holds_key(server.command)),
        }
        if places:
            raise ValueError(
                f"{', '.join(sorted(places))}: expected no key and no password here, as a config is written to logs, "
                "MLflow and reports, and commands are listed by `ps`. Name a key's variable: runtime.api_key_env, "
                "judge_api_key_env, api_key_env of an on-policy teacher, headers_env and environment of an MCP server. "
                "Give passwords by PGPASSWORD, MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. A key that stood "
                "in a config may have been logged: have its provider replace it"
            )
        return self

    @model_validator(mode="after")
    def _on_policy_has_a_teacher_that_scores(self) -> Self:
        on_policy = self.on_policy
        if on_policy.enabled and self.default_teacher_scores and self.teacher.base_url is not None:
            raise WrongSetting(
                f"on_policy.teacher is not set and the teacher {self.teacher.model!r} is behind "
                f"{self.teacher.base_url}: on-policy distillation needs the teacher's log-probability of tokens the "
                "student sampled, which chat endpoints do not give. Name a local model in on_policy.teacher or a "
                "scoring server in on_policy.teachers, or set on_policy.enabled to false: sft, and self_training "
                "where answers can be verified, need its text alone",
                code="no-scores",
            )
        refusals = {"on_policy.teacher": cannot_score(on_policy.teacher or "")}
        if on_policy.enabled and self.default_teacher_scores:
            refusals["teacher.model"] = cannot_score(self.teacher.model)
        for teacher in on_policy.teachers:
            refusal = cannot_score(teacher.model or "") or cannot_score_at(teacher.base_url or "")
            refusals[f"on_policy.teachers, {teacher.name!r}"] = refusal
        for where, refusal in refusals.items():
            if refusal is not None:
                raise ValueError(
                    f"{where}: {refusal}. Learn from what it writes instead: generate rollouts from it, by "
                    "teacher.model and teacher.base_url, with sft.enabled true, self_training.enabled too where "
                    "answers can be verified, and on_policy.enabled false. Or name a model with open weights"
                )
        return self

    @model_validator(mode="after")
    def _soft_targets_have_a_teacher(self) -> Self:
        sft, teacher, recorded = self.sft, self.teacher, self.rollouts.record_top_k
        if not sft.enabled or sft.loss != "kl" or sft.teacher or sft.teachers or teacher.base_url is None:
            return self
        if recorded is None:
            raise ValueError(
                f"sft.loss is `kl`, sft.teacher is not set, and the teacher {teacher.model!r} is behind "
                f"{teacher.base_url}, which gives no distribution at given tokens. Name a local model in "
                "sft.teacher or a vLLM or SGLang server in sft.teachers, have it told while the teacher samples "
                "(rollouts.record_top_k), or learn its text alone by the loss `nll`"
            )
        if recorded < sft.top_k or sft.soft_temperature != 1.0:
            raise ValueError(
                f"sft.loss is `kl` and goes by what rollouts.record_top_k {recorded} records, at temperature 1; saw "
                f"sft.top_k {sft.top_k} and sft.soft_temperature {sft.soft_temperature}. Set top_k to {recorded} or "
                "less and leave soft_temperature out, or name a teacher that scores in sft.teacher or sft.teachers"
            )
        return self

    @model_validator(mode="after")
    def _self_training_goes_on_from_sft(self) -> Self:
        if self.self_training.enabled and not self.sft.enabled:
            raise ValueError(
                "self_training.enabled is true, but sft.enabled is false: its rounds go on from SFT's student by the "
                "settings of sft. Set sft.enabled to true; rows of your own go into sft.sources"
            )
        return self

    @model_validator(mode="after")
    def _mixture_names_sources(self) -> Self:
        names = self.prompts.sources
        if unknown := [source for source in self.on_policy.mixture if source not in names]:
            raise ValueError(
                f"on_policy.mixture names {', '.join(unknown)}, but prompts.sources has {', '.join(names) or 'none'}; "
                "name the sources there"
            )
        return self

    @model_validator(mode="after")
    def _held_out_prompts_to_measure_on(self) -> Self:
        if self.on_policy.trainer.generate_every_steps is not None and self.prompts.held_out_fraction == 0.0:
            raise ValueError(
                "on_policy.trainer.generate_every_steps measures on held-out prompts, but prompts.held_out_fraction is "
                "0; raise it, or leave generate_every_steps out"
            )
        return self

    @model_validator(mode="after")
    def _a_target_ends_sampling(self) -> Self:
        selection = self.dataset.selection
        if selection.target_rows is None or self.rollouts.trajectories_file is not None:
            return self
        if (selection.pass_rate, selection.prefer) != (None, "first"):
            raise ValueError(
                "dataset.selection.target_rows stops sampling a prompt once it has given its rows, so that pass rates "
                "are not known and there is nothing to prefer: leave out pass_rate and prefer, or target_rows"
            )
        if self.teacher.batch:
            raise ValueError(
                "dataset.selection.target_rows stops asking once there are enough rows, which teacher.batch cannot: it "
                "hands in all requests at once. Leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _scores_are_given(self) -> Self:
        dataset, judge = self.dataset, self.dataset.judge
        judged = [f"judge/{criterion.name}" for criterion in judge.rubric if judge.enabled]
        for name in [*dataset.score_names, *(["reward"] if "rewards" in dataset.labels.measure else [])]:
            match name.partition("/")[0]:
                case "judge":
                    is_given, remedy = name in judged, "a criterion of dataset.judge.rubric, with judge.enabled true"
                case "reward":
                    is_given, remedy = self.tools.rewards_file is not None, "a file of rewards in tools.rewards_file"
                case _:
                    is_given, remedy = dataset.labels.file is not None, "a file with it in dataset.labels.file"
            if not is_given:
                raise ValueError(f"dataset goes by the score {name}, which nothing gives: name {remedy}")
        return self

    @model_validator(mode="after")
    def _a_champion_has_a_registry(self) -> Self:
        promotion, tracking = self.promotion, self.tracking
        enabled = [name for name in ("enabled", "start_from_champion") if getattr(promotion, name)]
        if enabled and (tracking.register_as is None or not tracking.enabled):
            raise WrongSetting(
                f"promotion.{enabled[0]} is set, but no student is registered: the champion is a version in MLflow's "
                "model registry. Name the model in tracking.register_as, with tracking.enabled true",
                code="not-registered",
            )
        if promotion.enabled and promotion.metric == "reward" and self.tools.rewards_file is None:
            raise ValueError(
                "promotion.metric is `reward`, but tools.rewards_file names no file of rewards; name one, or compare "
                "by `accuracy`"
            )
        return self

    @model_validator(mode="after")
    def _no_worse_is_measured(self) -> Self:
        measured = [*get_args(Metric), *(SUITE_PREFIX + parse_suite(text).name for text in self.evaluation.suites)]
        if unknown := [name for name in self.promotion.no_worse if name not in measured]:
            expected = f"expected {', '.join(measured)}; a suite of evaluation.suites is named `suite TASK`"
            raise ValueError(f"promotion.no_worse names {', '.join(unknown)}, which nothing measures; {expected}")
        return self

    @property
    def default_teacher_scores(self) -> bool:
        """Return whether on-policy distillation falls back on the teacher of the rollouts."""
        on_policy = self.on_policy
        return on_policy.needs_teacher and on_policy.teacher is None and not on_policy.teachers

    @property
    def local_teachers(self) -> dict[str, str]:
        """Return the local scoring models by their names in the metrics."""
        if self.on_policy.teachers:
            named = ((teacher.name, teacher.model) for teacher in self.on_policy.teachers if teacher.kind == "local")
            return {name: model for name, model in named if model is not None}
        default = self.teacher.model if self.teacher.base_url is None else None
        ref = self.on_policy.teacher or default
        return {} if ref is None else {"teacher": ref}

    @property
    def scoring_teacher(self) -> str | None:
        """Return the first local model that reads the students' tokens, to compare them with; None without one."""
        others = {teacher.name for teacher in self.on_policy.teachers if teacher.reads_own_template}
        return next((ref for name, ref in self.local_teachers.items() if name not in others), None)

    @property
    def scoring_server(self) -> OnPolicyTeacher | None:
        """Return the served teacher that students are compared with where no local model is; None without one.

        The first that on-policy distillation asks about the students' own tokens anyway. Recorded rollouts are trained
        on without their teacher's server.
        """
        on_policy = self.on_policy
        if self.scoring_teacher is not None or not (on_policy.enabled and on_policy.needs_teacher):
            return None
        if on_policy.source == "rollouts":
            return None
        plain = (t for t in on_policy.teachers if not t.is_local and not t.reads_own_template and t.hint is None)
        return next(plain, None)


DEMO: Final = DistillConfig(
    prompts=PromptsConfig(verifier="numeric"),
    # The embedded teacher was taught to calculate with this tool and cannot answer without it.
    tools=ToolsConfig(builtin=("calculator",)),
    rollouts=RolloutsConfig(max_prompts=400, temperature=1.0, max_tokens=48, max_turns=6),
    student=StudentConfig(parameters="full", dtype="float32", max_length=512),
    sft=SftConfig(
        num_epochs=3,
        batch_size=32,
        learning_rate=5e-4,
        trainer=TrainerConfig(microbatch_tokens=2048, schedule="linear", checkpoint_every_steps=20, log_every_steps=2),
    ),
    on_policy=OnPolicyConfig(
        enabled=True,
        algorithm="divergence",
        num_steps=60,
        prompts_per_step=32,
        max_tokens=48,
        max_turns=6,
        learning_rate=1e-3,
        trainer=TrainerConfig(schedule="linear", checkpoint_every_steps=20, log_every_steps=2),
    ),
    evaluation=EvaluationConfig(max_tokens=48, max_turns=6),
    runtime=RuntimeConfig(num_threads=1),
)
"""As `configs/demo.yaml`."""
