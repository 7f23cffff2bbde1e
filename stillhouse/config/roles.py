"""Models that a config has asked over HTTP, by the settings that speak of each."""

from enum import Enum
from typing import Final

from stillhouse.config.run import RuntimeConfig


class ModelRole(Enum):
    """What a model is asked for. An error about its endpoint, key or price names the settings of its role."""

    TEACHER = ("teacher", "api_key_env")
    JUDGE = ("dataset.judge.model", "judge_api_key_env")
    EMBEDDINGS = ("dataset.embeddings", "embeddings_api_key_env")

    def __init__(self, section: str, key_field: str) -> None:
        self.section: Final = section
        """Path of the section that names endpoint, model and price."""
        self.key_setting: Final = f"runtime.{key_field}"
        """Path of the setting that names the variable of the API key."""
        self._key_field: Final = key_field

    def key_variable(self, runtime: RuntimeConfig) -> str:
        """Name of the environment variable that holds the API key."""
        name: str = getattr(runtime, self._key_field) or runtime.api_key_env
        return name
