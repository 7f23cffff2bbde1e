"""Prompts: read from files of many forms, given an identity by content, split into train and held out."""

from stillhouse.prompts.parse import ParsedPrompts, ParseReport, parse_prompts, split_prompts

__all__ = ["ParseReport", "ParsedPrompts", "parse_prompts", "split_prompts"]
