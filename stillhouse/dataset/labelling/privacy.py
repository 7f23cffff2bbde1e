"""Personal data and secrets in what a row trains on or shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from stillhouse.dataset.labelling.subject import Subject


class PrivacyLabels:
    """The column private_data: the kinds found in what the model wrote and in what tools returned, sorted.

    The kinds are those of `dataset.filters.drop_private`. What was found is neither kept nor logged. The prompt is not
    looked at: it was there before the teacher.
    """

    def __init__(self) -> None:
        # Both load the tables of libraries, half a second that only those who ask for it pay.
        from stillhouse.dataset.labelling.leaked_secrets import has_secret
        from stillhouse.dataset.labelling.personal_data import personal_data

        self._personal_data, self._has_secret = personal_data, has_secret

    def __call__(self, subjects: Sequence[Subject]) -> Mapping[str, Sequence[Any]]:
        """The column, one list for each subject."""
        return {"private_data": [self.kinds(f"{one.sampled_text}\n{one.tool_text}") for one in subjects]}

    def kinds(self, text: str) -> list[str]:
        """The kinds of private data in `text`, sorted."""
        return sorted([*self._personal_data(text), *(["secret"] if self._has_secret(text) else [])])
