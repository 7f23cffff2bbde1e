"""Typed config: one frozen root with a section for each stage."""

from stillhouse.config.dataset import (
    Criterion,
    DatasetConfig,
    DuplicatesConfig,
    FiltersConfig,
    JudgeConfig,
    LabelsConfig,
    SelectionConfig,
)
from stillhouse.config.load import load_config, parse_config
from stillhouse.config.on_policy import OnPolicyConfig
from stillhouse.config.on_policy_teacher import Divergence, OnPolicyTeacher
from stillhouse.config.promotion import ApprovalConfig, PromotionConfig
from stillhouse.config.rollouts import (
    ApiName,
    BudgetConfig,
    McpServerConfig,
    PromptsConfig,
    RolloutsConfig,
    SamePrompt,
    TeacherConfig,
    ToolsConfig,
    Verifier,
)
from stillhouse.config.root import DEMO, DistillConfig
from stillhouse.config.runtime import EvaluationConfig, ModelRole, RuntimeConfig, TrackingConfig
from stillhouse.config.self_training import SelfTrainingConfig
from stillhouse.config.training import SftConfig, SftSource, StudentConfig, TrainerConfig

__all__ = [
    "DEMO",
    "ApiName",
    "ApprovalConfig",
    "BudgetConfig",
    "Criterion",
    "DatasetConfig",
    "DistillConfig",
    "Divergence",
    "DuplicatesConfig",
    "EvaluationConfig",
    "FiltersConfig",
    "JudgeConfig",
    "LabelsConfig",
    "McpServerConfig",
    "ModelRole",
    "OnPolicyConfig",
    "OnPolicyTeacher",
    "PromotionConfig",
    "PromptsConfig",
    "RolloutsConfig",
    "RuntimeConfig",
    "SamePrompt",
    "SelectionConfig",
    "SelfTrainingConfig",
    "SftConfig",
    "SftSource",
    "StudentConfig",
    "TeacherConfig",
    "ToolsConfig",
    "TrackingConfig",
    "TrainerConfig",
    "Verifier",
    "load_config",
    "parse_config",
]
