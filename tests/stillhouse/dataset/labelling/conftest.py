from collections.abc import Callable
from typing import Any

import pytest

from stillhouse.dataset.label_input import LabelInput, Labeller
from stillhouse.types import PromptMetadata, Trajectory

Label = Callable[..., Any]


@pytest.fixture
def make_input(make_trajectory: Callable[..., Trajectory]) -> Callable[..., LabelInput]:
    """The item of `make_trajectory`'s trajectory, whose answer is the first argument."""

    def make(
        answer: str | None = "The answer is 5.", metadata: PromptMetadata | None = None, **changes: Any
    ) -> LabelInput:
        return LabelInput.of(make_trajectory(answer=answer, **changes), metadata)

    return make


@pytest.fixture
def label_of(make_input: Callable[..., LabelInput]) -> Label:
    """A labeller's value in one column of the item with an answer."""

    def label_of(labeller: Labeller, column: str, answer: str | None, **changes: Any) -> Any:
        (value,) = labeller([make_input(answer, **changes)])[column]
        return value

    return label_of
