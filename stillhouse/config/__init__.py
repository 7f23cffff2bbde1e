"""Typed config: one frozen root with a section for each stage."""

from stillhouse.config.data import DatasetConfig, PromptsConfig
from stillhouse.config.load import load_config, parse_config
from stillhouse.config.rollouts import BudgetConfig, RolloutsConfig, TeacherConfig
from stillhouse.config.root import DistillConfig
from stillhouse.config.run import EvaluationConfig, RuntimeConfig, StageName, TrackingConfig
from stillhouse.config.tools import McpServerConfig, ToolsConfig
from stillhouse.config.training import OnPolicyConfig, SftConfig, StudentConfig, TrainerConfig

__all__ = [
    "BudgetConfig",
    "DatasetConfig",
    "DistillConfig",
    "EvaluationConfig",
    "McpServerConfig",
    "OnPolicyConfig",
    "PromptsConfig",
    "RolloutsConfig",
    "RuntimeConfig",
    "SftConfig",
    "StageName",
    "StudentConfig",
    "TeacherConfig",
    "ToolsConfig",
    "TrackingConfig",
    "TrainerConfig",
    "load_config",
    "parse_config",
]
