"""The report of a run, one HTML file without external resources, and what all pages share."""

from stillhouse.report.conversation import SampleTrajectory
from stillhouse.report.data import ReportData, StageSummary
from stillhouse.report.page import write_report

__all__ = ["ReportData", "SampleTrajectory", "StageSummary", "write_report"]
