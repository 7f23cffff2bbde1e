"""Prompts: read from files of many forms, given an identity by content, split into train and held out."""

from stillhouse.prompts.load import LoadedPrompts, LoadReport, load_prompts
from stillhouse.prompts.split import split_prompts

__all__ = ["LoadReport", "LoadedPrompts", "load_prompts", "split_prompts"]
