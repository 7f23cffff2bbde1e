"""The report page: one HTML file that needs nothing beside it."""

from stillhouse.report.data import Command, ReportData, SampleTrajectory, StageSummary
from stillhouse.report.page import write_report

__all__ = ["Command", "ReportData", "SampleTrajectory", "StageSummary", "write_report"]
