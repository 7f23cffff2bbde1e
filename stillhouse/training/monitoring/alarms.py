"""Who looks out for trainings that go wrong slowly, where no single step tells."""

from collections.abc import Mapping
from typing import Protocol

from stillhouse.types import JsonObject


class Alarms(Protocol):
    """Watches metrics over many steps: a pure function of what it was shown, so that it continues bit for bit."""

    def observe(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Takes in the metrics of a finished step; what is to be reported of it. All are by bare name."""

    @property
    def reason_to_stop(self) -> str | None:
        """Why training is not to go on after the last step observed; None where it is."""

    def state(self) -> JsonObject:
        """What `restore` needs."""

    def restore(self, state: JsonObject) -> None:
        """Returns to how things stood when `state()` was called."""


class NoAlarms:
    """Lets everything pass."""

    reason_to_stop: str | None = None

    def observe(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Reports nothing."""
        return {}

    def state(self) -> JsonObject:
        """Nothing."""
        return {}

    def restore(self, state: JsonObject) -> None:
        """Does nothing."""
