"""A page to read trajectories on: one HTML file, searched and filtered in the browser."""

from stillhouse.report.view.page import PageSummary, view_run

__all__ = ["PageSummary", "view_run"]
