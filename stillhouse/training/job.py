"""The description of a training as one JSON file, from the flow to the training process. Free of torch."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stillhouse.agent.turns import TurnRules
from stillhouse.chat.refs import model_identity
from stillhouse.config import (
    BudgetConfig,
    OnPolicyConfig,
    RuntimeConfig,
    SftConfig,
    SftSource,
    StudentConfig,
    ToolsConfig,
    TrainerConfig,
)
from stillhouse.errors import ConfigError
from stillhouse.store import digest, file_sha256
from stillhouse.store.artifacts import artifact_in
from stillhouse.training.sft.sources import source_fingerprint
from stillhouse.types import JsonObject

JOB_FILE: Final = "job.json"
LOG_FILE: Final = "train.log"

_NO_EFFECT: Final = {
    "enabled",
    "log_every_steps",
    "generate_every_steps",
    "num_generations",
    "watch",
    "engine_url",
    "engine_api_key_env",
}
"""Fields that affect what a training reports or needs, but not its result."""
_NO_EFFECT_IN_TEACHERS: Final = {"base_url", "api_key_env", "device", "batch_tokens"}


class TrackingTarget(BaseModel):
    """The MLflow run that receives the metrics; its owner ends it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str
    run_id: str | None
    """None when the run could not be started: its metrics then go to the fallback file in the store."""


class TrainJob(BaseModel):
    """One training of one student by one method."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["sft", "on_policy", "scores", "student_rollouts", "pair"]
    """`scores`, `student_rollouts` and `pair` train nothing: a teacher scores rows for SFT by the loss `kl`, or what
    the student samples before on-policy distillation (`on_policy.source: rollouts`), or a pair is measured."""
    student_ref: str
    """The model to start from: a model ref, or the folder of an earlier student, whose adapter is then continued."""
    student: StudentConfig
    sft: SftConfig | None = None
    on_policy: OnPolicyConfig | None = None
    dataset_folder: Path | None = None
    """SFT: a dataset artifact's folder; None where its weight is zero."""
    scores_folder: Path | None = None
    """SFT: the teacher's scores of the rows, where the loss is `kl`."""
    rollouts_folder: Path | None = None
    """On-policy: recorded rollouts to train on."""
    prompts_file: Path | None = None
    """On-policy: prompts to sample from, as `stillhouse.store.records` writes them."""
    metadata_file: Path | None = None
    """On-policy: their metadata, for the reward that is tracked; None tracks none."""
    held_out_file: Path | None = None
    """On-policy: prompts that are not trained on, to measure on; their metadata is in `held_out_metadata_file`."""
    held_out_metadata_file: Path | None = None
    teacher_ref: str | None = None
    """The local model that scores where `on_policy` or `sft` names none; None where nothing is scored."""
    tools: ToolsConfig = ToolsConfig()
    system_prompt: str | None = None
    """Put before each prompt that has no system message of its own."""
    rules: TurnRules = TurnRules()
    """On-policy: when a sampled conversation goes on and when it ends."""
    work_dir: Annotated[Path, Field(description="Checkpoints, log and metrics; a job continues what it finds here.")]
    output_dir: Path
    """Where the finished student is written."""
    runtime: RuntimeConfig = RuntimeConfig()
    budget: BudgetConfig = BudgetConfig()
    """The budget of teachers behind servers."""
    tracking: TrackingTarget | None = None

    @model_validator(mode="after")
    def _method_has_what_it_needs(self) -> Self:
        needed = {
            "sft": ["sft"],
            "scores": ["sft"],
        }.get(self.method, ["on_policy", "prompts_file"])
        if self.sft is not None and self.sft.dataset_weight > 0.0:
            needed.append("dataset_folder")
        if self.on_policy is not None and self.on_policy.trainer.generate_every_steps is not None:
            needed += ["held_out_file", "held_out_metadata_file"]
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise ValueError(f"method {self.method!r} needs {', '.join(missing)}")
        return self

    @property
    def config(self) -> SftConfig | OnPolicyConfig:
        """Return the section of the method."""
        config = self.sft if self.on_policy is None else self.on_policy
        assert config is not None
        return config

    @property
    def trainer(self) -> TrainerConfig:
        return self.config.trainer

    def identity(self) -> JsonObject:
        """Return everything the trained weights depend on; a checkpoint must agree with it to be continued."""
        facts: JsonObject = {
            "method": self.method,
            "student_ref": model_identity(self.student_ref),
            "student": self.student.identity({"merge"}),
            self.method: self._effective(),
        }
        if self.dataset_folder is not None:
            facts["dataset"] = source_fingerprint(SftSource(path=str(self.dataset_folder)))
        if self.scores_folder is not None:
            scores = artifact_in(self.scores_folder)
            facts["scores"] = scores and scores.fingerprint
        if self.rollouts_folder is not None:
            rollouts = artifact_in(self.rollouts_folder)
            facts["rollouts"] = rollouts and rollouts.fingerprint
        if self.method == "scores":
            assert self.sft is not None
            teacher = self.sft.scoring_teacher(self.teacher_ref)
            if teacher is not None:
                model = str(teacher.model)
                facts["teachers"] = {teacher.name: model_identity(model) if teacher.is_here else model}
        if self.sft is not None:
            facts["sources"] = [source_fingerprint(source) for source in self.sft.sources]
        if self.prompts_file is not None and self.on_policy is not None:
            facts["prompts"] = file_sha256(self.prompts_file)
            facts["teachers"] = teacher_identities(self.on_policy, self.teacher_ref)
            facts["tools"] = self.tools.identity({"rewards_file"})
            if self.tools.file is not None:
                facts["tools_file"] = file_sha256(Path(self.tools.file))
            if self.tools.rewards_file is not None and self.on_policy.reward_coef > 0.0:
                facts["rewards_file"] = file_sha256(Path(self.tools.rewards_file))
            if self.on_policy.loss is not None:
                facts["loss_file"] = loss_sha256(self.on_policy.loss)
            facts["system_prompt"] = self.system_prompt
            facts["rules"] = self.rules.identity()
        return facts

    def _effective(self) -> JsonObject:
        fields = self.config.identity(_NO_EFFECT)
        if self.on_policy is not None:
            fields["teachers"] = [teacher.identity(_NO_EFFECT_IN_TEACHERS) for teacher in self.on_policy.teachers]
        if self.trainer.keep == "last" and self.trainer.early_stopping_patience is None:
            for name in ("checkpoint_every_steps", "validate_every_steps"):
                del fields[name]
        return fields

    def digest(self) -> str:
        return digest(self.identity())


def loss_sha256(setting: str) -> str:
    """Return the SHA-256 of the file of `on_policy.loss`; raise ConfigError if there is none."""
    path = Path(setting.rpartition(":")[0]).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file; on_policy.loss must name a Python file and a function in it", code="user-file"
        )
    return file_sha256(path)


def teacher_identities(config: OnPolicyConfig, default_ref: str | None) -> JsonObject:
    """Return identities of the models that score, by teacher; models behind servers are known by name only.

    One with `template: own` is named by a folder or a Hugging Face id, whose tokenizer renders what is scored.
    """
    if not config.teachers:
        ref = config.teacher or default_ref
        return {"teacher": model_identity(ref)} if ref and config.needs_teacher else {}
    return {
        teacher.name: (
            model_identity(teacher.model)
            if teacher.model and (teacher.is_here or teacher.template == "own")
            else teacher.model or teacher.kind
        )
        for teacher in config.teachers
    }
