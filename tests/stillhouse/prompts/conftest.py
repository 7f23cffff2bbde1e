from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.config import PromptsConfig
from stillhouse.prompts import ParsedPrompts, parse_prompts

Load = Callable[..., ParsedPrompts]


@pytest.fixture
def load() -> Load:
    """The prompts of a source."""

    def parse(source: object, failure_budget: float = 0.1, **config: object) -> ParsedPrompts:
        return parse_prompts(PromptsConfig(source=str(source), **config), failure_budget)

    return parse


@pytest.fixture
def read(tmp_path: Path, load: Load) -> Load:
    """The prompts of a file with this content."""

    def write_and_load(content: str | bytes, suffix: str = ".jsonl", **config: object) -> ParsedPrompts:
        path = tmp_path / f"prompts{suffix}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load(path, **config)

    return write_and_load
