"""Converts files of other programs: rollouts, rows and configs of rnow and ROLL, rows of OpenAI and others."""

from stillhouse.interop.conversion_report import ConversionReport, summary_lines
from stillhouse.interop.convert import ConvertOptions, convert

__all__ = ["ConversionReport", "ConvertOptions", "convert", "summary_lines"]
