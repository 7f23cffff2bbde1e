"""A page to read trajectories on: one HTML file, searched and filtered in the browser."""

from stillhouse.report.view.page import view_run

__all__ = ["view_run"]
