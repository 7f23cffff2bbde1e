"""Reads what other programs wrote: rollouts, rows and configs of rnow and ROLL, rows of distilabel and OpenAI."""

from stillhouse.convert.account import Converted
from stillhouse.convert.convert import Options, convert
from stillhouse.convert.summary import summary_lines

__all__ = ["Converted", "Options", "convert", "summary_lines"]
