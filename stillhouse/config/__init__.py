"""Typed config: one frozen root with a section for each stage."""

from stillhouse.config.data import DatasetConfig, PromptsConfig, RolloutsConfig, TeacherConfig, ToolsConfig
from stillhouse.config.load import load_config, parse_config
from stillhouse.config.root import DistillConfig
from stillhouse.config.run import EvaluationConfig, RuntimeConfig, StageName, TrackingConfig
from stillhouse.config.training import OnPolicyConfig, SftConfig, StudentConfig, TrainerConfig

__all__ = [
    "DatasetConfig",
    "DistillConfig",
    "EvaluationConfig",
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
