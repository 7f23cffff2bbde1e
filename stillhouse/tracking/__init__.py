"""Tracking: runs in MLflow that never stop the work they watch, and the report page."""

from stillhouse.tracking.tracked_run import TrackedRun, attach, start_run

__all__ = ["TrackedRun", "attach", "start_run"]
