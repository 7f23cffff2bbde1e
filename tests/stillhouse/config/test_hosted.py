from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import parse_config
from stillhouse.config.hosted import hosted_addresses
from stillhouse.errors import ConfigError
from stillhouse.sellers import OPENAI

GATEWAY = {"OPENAI_BASE_URL": "https://gateway.example/v1"}


def addresses(teacher: dict[str, Any], environment: dict[str, str], **sections: Any) -> list[str]:
    config = parse_config({"teacher": teacher, **sections}, origin="test")
    return list(hosted_addresses(config, environment))


@pytest.mark.parametrize("model", ["gpt-5-mini", "gpt-4.1", "o3", "chatgpt-4o-latest", "ft:gpt-4.1-mini:org::1"])
def test_a_model_of_openais_is_at_openai_or_where_its_variable_says(model: str) -> None:
    assert addresses({"model": model}, {}) == [f'teacher.base_url="{OPENAI.base_url}"']
    assert addresses({"model": model}, {"OPENAI_BASE_URL": ""}) == [f'teacher.base_url="{OPENAI.base_url}"']
    assert addresses({"model": model}, GATEWAY) == ['teacher.base_url="https://gateway.example/v1"']


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "gpt2", "gpt-oss-20b", "openai/gpt-oss-20b", "embedded:teacher"])
def test_any_other_name_is_a_model_of_this_machine(model: str) -> None:
    assert addresses({"model": model}, {}) == []


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "claude-sonnet-5", "llama3.1:8b"])
def test_a_name_that_may_be_either_is_refused_until_one_is_said(model: str) -> None:
    with pytest.raises(ConfigError, match=r"teacher\.base_url=null") as caught:
        addresses({"model": model}, GATEWAY)
    assert caught.value.code == "which-endpoint"
    assert addresses({"model": model, "base_url": None}, GATEWAY) == []
    assert addresses({"model": model, "base_url": "http://gpu-host:8000/v1"}, GATEWAY) == []


def test_what_is_on_this_machine_needs_no_word(tmp_path: Path) -> None:
    for model in (str(tmp_path), "./models/mine", "~/mine", "embedded:teacher"):
        assert addresses({"model": model}, GATEWAY) == []


def test_the_judge_has_its_own_address() -> None:
    judge = {"judge": {"enabled": True, "model": {"model": "gpt-5-mini"}}}
    assert addresses({}, {}, dataset=judge) == [f'dataset.judge.model.base_url="{OPENAI.base_url}"']
    judge["judge"]["enabled"] = False
    assert addresses({}, {}, dataset=judge) == []


def test_the_key_of_another_provider_is_not_sent_to_openai() -> None:
    runtime = {"api_key_env": "OPENROUTER_API_KEY"}
    with pytest.raises(ConfigError, match="OPENROUTER_API_KEY") as caught:
        addresses({"model": "gpt-5-mini"}, {}, runtime=runtime)
    assert caught.value.code == "which-endpoint"
    assert addresses({"model": "gpt-5-mini"}, GATEWAY, runtime=runtime)
