"""A page to read trajectories on: one HTML file, searched and filtered in the browser."""

from stillhouse.view.command import view_run
from stillhouse.view.page import Written

__all__ = ["Written", "view_run"]
