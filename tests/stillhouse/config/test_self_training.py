import pytest

from stillhouse.config import parse_config
from stillhouse.errors import ConfigError


def test_self_training_without_sft_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"sft\.enabled is false.*Set sft\.enabled to true"):
        parse_config({"self_training": {"enabled": True}, "sft": {"enabled": False}}, origin="c.yaml")


def test_who_asks_a_chat_endpoint_for_scores_is_told_what_needs_its_text_alone() -> None:
    teacher = {"model": "gpt-5.4-mini", "base_url": "https://api.openai.com/v1"}
    with pytest.raises(ConfigError, match=r"sft, and self_training where answers can be verified, need its text alone"):
        parse_config({"teacher": teacher, "on_policy": {"enabled": True}}, origin="c.yaml")
