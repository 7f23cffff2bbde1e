"""Typed config: one frozen root with a section for each stage."""

from stillhouse.config.approval import ApprovalConfig
from stillhouse.config.data import PromptsConfig, Verifier
from stillhouse.config.dataset import (
    ContaminationConfig,
    Criterion,
    DatasetConfig,
    DuplicatesConfig,
    EmbeddingsConfig,
    FiltersConfig,
    JudgeConfig,
    LabelsConfig,
    SelectionConfig,
)
from stillhouse.config.demo import DEMO
from stillhouse.config.load import load_config, parse_config
from stillhouse.config.on_policy import Divergence, OnPolicyConfig
from stillhouse.config.on_policy_teacher import OnPolicyTeacher
from stillhouse.config.promotion import Margin, PromotionConfig
from stillhouse.config.roles import ModelRole
from stillhouse.config.rollouts import BudgetConfig, RolloutsConfig, TeacherConfig
from stillhouse.config.root import DistillConfig
from stillhouse.config.run import EvaluationConfig, RuntimeConfig, StageName, TrackingConfig
from stillhouse.config.student import StudentConfig
from stillhouse.config.tools import McpServerConfig, ToolsConfig
from stillhouse.config.training import SftConfig, SftSource, TrainerConfig

__all__ = [
    "DEMO",
    "ApprovalConfig",
    "BudgetConfig",
    "ContaminationConfig",
    "Criterion",
    "DatasetConfig",
    "DistillConfig",
    "Divergence",
    "DuplicatesConfig",
    "EmbeddingsConfig",
    "EvaluationConfig",
    "FiltersConfig",
    "JudgeConfig",
    "LabelsConfig",
    "Margin",
    "McpServerConfig",
    "ModelRole",
    "OnPolicyConfig",
    "OnPolicyTeacher",
    "PromotionConfig",
    "PromptsConfig",
    "RolloutsConfig",
    "RuntimeConfig",
    "SelectionConfig",
    "SftConfig",
    "SftSource",
    "StageName",
    "StudentConfig",
    "TeacherConfig",
    "ToolsConfig",
    "TrackingConfig",
    "TrainerConfig",
    "Verifier",
    "load_config",
    "parse_config",
]
