"""Reads what other programs wrote: rollouts, rows and configs of rnow and ROLL, rows of distilabel and OpenAI."""

from stillhouse.interop.conversion_report import Converted, summary_lines
from stillhouse.interop.convert import Options, convert

__all__ = ["Converted", "Options", "convert", "summary_lines"]
