"""What a dataset's build counts as it goes: the funnel, reasons, verification, teachers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stillhouse.dataset.labels import FILTERS, DropReason, Labels
from stillhouse.types import JsonObject


@dataclass(slots=True)
class Tally:
    """Counts over one build."""

    num_rollouts: int = 0
    """Trajectories received, duplicates included."""
    duplicates: int = 0
    """Trajectories whose rollout key came before; the first stands."""
    passed: list[int] = field(default_factory=lambda: [0] * len(FILTERS))
    """Trajectories left after each of `FILTERS`."""
    reasons: Counter[str] = field(default_factory=Counter)
    verified: Counter[bool | None] = field(default_factory=Counter)
    teachers: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    supervised_tokens: int = 0

    def add(self, labels: Labels, verdicts: Sequence[DropReason | None], teacher: str, split: str | None) -> None:
        """Counts one distinct trajectory; `split` is None if it is not kept."""
        for place, verdict in enumerate(verdicts):
            if verdict is not None:
                break
            self.passed[place] += 1
        self.reasons.update(verdict.value for verdict in verdicts if verdict is not None)
        self.verified[labels.verified] += 1
        self.teachers[teacher] += 1
        if split is not None:
            self.splits[split] += 1
        if split is not None and labels.rendering is not None:
            self.tokens += labels.rendering.num_tokens or 0
            self.supervised_tokens += labels.rendering.num_supervised_tokens or 0

    @property
    def kept(self) -> int:
        """Trajectories that passed every filter."""
        return self.passed[-1]

    def funnel(self) -> list[tuple[str, int]]:
        """Each step's name and the number of trajectories left after it."""
        start = [("rollouts", self.num_rollouts), ("distinct", self.num_rollouts - self.duplicates)]
        return start + [(one.step, left) for one, left in zip(FILTERS, self.passed, strict=True)]

    def facts(self) -> JsonObject:
        """The counts as an artifact's facts."""
        return {
            "funnel": [[step, left] for step, left in self.funnel()],
            "kept": self.kept,
            "dropped": self.num_rollouts - self.duplicates - self.kept,
            "duplicates": self.duplicates,
            "drop_reasons": {reason.value: self.reasons[reason.value] for reason in DropReason if self.reasons[reason]},
            "right": self.verified[True],
            "wrong": self.verified[False],
            "unverified": self.verified[None],
            "train": self.splits["train"],
            "validation": self.splits["validation"],
            "tokens": self.tokens,
            "supervised_tokens": self.supervised_tokens,
        }
