"""`Activity`: what a step of on-policy distillation is busy with, as the terminal shows it."""

from dataclasses import dataclass

from stillhouse.progress.state import Progress


@dataclass(eq=False)
class Activity:
    """Says what a step does, and in its place what it waits for. Safe to use from several threads."""

    progress: Progress
    stage: str
    num_steps: int
    _step: int = 0
    _doing: str = ""

    def begin(self, step: int, doing: str) -> None:
        """Say what `step` does from now on."""
        self._step, self._doing = step, doing
        self.wait(None)

    def wait(self, reason: str | None) -> None:
        """Say what the step waits for; None when it no longer does."""
        self.progress.update(self.stage, self._step, self.num_steps, doing=reason or self._doing)
