"""`Activity`: what a step of on-policy distillation is busy with, as the terminal shows it."""

from stillhouse.progress.state import Progress


class Activity:
    """Says what a step does, and in its place what it waits for. Safe to use from several threads."""

    def __init__(self, progress: Progress, stage: str, num_steps: int) -> None:
        self._progress = progress
        self._stage = stage
        self._num_steps = num_steps
        self._step = 0
        self._doing = ""

    def begin(self, step: int, doing: str) -> None:
        """Say what `step` does from now on."""
        self._step, self._doing = step, doing
        self.wait(None)

    def wait(self, reason: str | None) -> None:
        """Say what the step waits for; None when it no longer does."""
        self._progress.update(self._stage, self._step, self._num_steps, doing=reason or self._doing)
