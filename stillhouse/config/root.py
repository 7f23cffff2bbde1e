"""The whole config: what a YAML file holds, what a flow takes, what the Prefect form shows."""

from typing import Self

from pydantic import model_validator

from stillhouse.config.data import PromptsConfig
from stillhouse.config.dataset import DatasetConfig
from stillhouse.config.on_policy import OnPolicyConfig
from stillhouse.config.rollouts import BudgetConfig, RolloutsConfig, TeacherConfig
from stillhouse.config.run import EvaluationConfig, RuntimeConfig, TrackingConfig
from stillhouse.config.section import Section
from stillhouse.config.student import StudentConfig
from stillhouse.config.tools import ToolsConfig
from stillhouse.config.training import SftConfig


class DistillConfig(Section):
    """A distillation from prompts to an evaluated student."""

    prompts: PromptsConfig = PromptsConfig()
    teacher: TeacherConfig = TeacherConfig()
    rollouts: RolloutsConfig = RolloutsConfig()
    tools: ToolsConfig = ToolsConfig()
    budget: BudgetConfig = BudgetConfig()
    dataset: DatasetConfig = DatasetConfig()
    student: StudentConfig = StudentConfig()
    sft: SftConfig = SftConfig()
    on_policy: OnPolicyConfig = OnPolicyConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _on_policy_needs_a_local_teacher(self) -> Self:
        if self.on_policy.enabled and self.on_policy.teacher is None and self.teacher.base_url is not None:
            raise ValueError(
                f"on_policy.teacher is not set and the teacher {self.teacher.model!r} is behind "
                f"{self.teacher.base_url}: on-policy distillation needs the teacher's log-probability of tokens the "
                "student sampled, which chat endpoints do not give. Name a local model in on_policy.teacher, or set "
                "on_policy.enabled to false and use SFT alone"
            )
        return self

    @model_validator(mode="after")
    def _a_target_ends_sampling(self) -> Self:
        selection = self.dataset.selection
        if selection.target_rows is None or self.rollouts.trajectories_file is not None:
            return self
        if (selection.min_pass_rate, selection.max_pass_rate, selection.prefer) != (None, None, "first"):
            raise ValueError(
                "dataset.selection.target_rows stops sampling a prompt once it has given its rows, so that pass rates "
                "are not known and there is nothing to prefer: leave out min_pass_rate, max_pass_rate and prefer, or "
                "target_rows"
            )
        if self.teacher.batch:
            raise ValueError(
                "dataset.selection.target_rows stops asking once there are enough rows, which teacher.batch cannot: it "
                "hands in all requests at once. Leave one of them out"
            )
        return self

    @property
    def scoring_teacher(self) -> str:
        """The local model whose log-probabilities the student is trained and measured against."""
        return self.on_policy.teacher or self.teacher.model
