"""Whether the answer is right, as a label."""

from collections.abc import Mapping, Sequence
from typing import Any

from stillhouse.dataset.labelling.subject import Subject
from stillhouse.verification import examine


def verification_labels(subjects: Sequence[Subject]) -> Mapping[str, Sequence[Any]]:
    """The columns `verifier`, `verified` and `verification`."""
    verdicts = []
    for subject in subjects:
        trajectory = subject.trajectory
        # Without a turn the last assistant message is the prompt's own.
        messages = trajectory.messages if trajectory.turns else []
        verdicts.append(examine(messages, trajectory.stop_reason, subject.metadata))
    return {
        "verifier": [verdict.verifier for verdict in verdicts],
        "verified": [verdict.verified for verdict in verdicts],
        "verification": [verdict.note for verdict in verdicts],
    }
