from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from stillhouse.dataset.labelling.subject import Subject
from stillhouse.types import PromptMetadata, Trajectory

Label = Callable[..., Any]


@pytest.fixture
def make_subject(make_trajectory: Callable[..., Trajectory]) -> Callable[..., Subject]:
    """The subject of `make_trajectory`'s trajectory, whose answer is the first argument."""

    def make(
        answer: str | None = "The answer is 5.", *, metadata: PromptMetadata | None = None, **changes: Any
    ) -> Subject:
        return Subject.of(make_trajectory(answer=answer, **changes), metadata)

    return make


@pytest.fixture
def label_of(make_subject: Callable[..., Subject]) -> Label:
    """What a labeller says in one column of the subject with an answer."""

    def label_of(
        labeller: Callable[[Sequence[Subject]], Mapping[str, Sequence[Any]]],
        column: str,
        answer: str | None,
        **changes: Any,
    ) -> Any:
        (value,) = labeller([make_subject(answer, **changes)])[column]
        return value

    return label_of
