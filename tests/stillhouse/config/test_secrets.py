import traceback
from typing import Any

import pytest

from stillhouse.config import DistillConfig, parse_config
from stillhouse.errors import ConfigError

CANARY = "sk-canary-0123456789"


def _refusal(body: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(body, origin="test", overrides=overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("runtime", "api_key_env"),
        ("runtime", "judge_api_key_env"),
        ("runtime", "embeddings_api_key_env"),
        ("on_policy", "engine_api_key_env"),
    ],
)
@pytest.mark.parametrize("key", [CANARY, "hf_canary0123456789"])
def test_a_key_where_its_variable_is_named_is_refused_and_not_repeated(section: str, field: str, key: str) -> None:
    told = _refusal({section: {field: key}})
    assert f"{section}.{field}" in told
    assert "name of an environment variable" in told
    assert key not in told


def test_a_key_among_the_headers_of_an_mcp_server_is_refused_and_not_repeated() -> None:
    server = {"name": "files", "url": "https://mcp.example/mcp", "headers_env": {"Authorization": f"Bearer {CANARY}"}}
    told = _refusal({"tools": {"mcp": [server]}})
    assert "headers_env" in told
    assert CANARY not in told


def test_a_key_under_a_name_that_does_not_exist_is_not_repeated() -> None:
    told = _refusal({"teacher": {"api_key": CANARY}})
    assert "teacher.api_key: unknown key" in told
    assert CANARY not in told


@pytest.mark.parametrize(
    ("section", "field", "address"),
    [
        ("tracking", "uri", f"postgresql+psycopg://mlflow:{CANARY}@db/mlflow"),
        ("teacher", "base_url", f"https://user:{CANARY}@models.example/v1"),
        ("tools", "search_url", f"https://user:{CANARY}@searx.example/search"),
    ],
)
def test_a_password_in_an_address_is_refused_and_not_repeated(section: str, field: str, address: str) -> None:
    told = _refusal({section: {field: address}})
    assert f"{section}.{field}" in told
    assert CANARY not in told


def test_an_address_with_a_user_alone_and_one_that_is_none_are_taken() -> None:
    config = parse_config({"tracking": {"uri": "postgresql+psycopg://mlflow@db/mlflow"}}, origin="test")
    assert config.tracking.uri == "postgresql+psycopg://mlflow@db/mlflow"
    parse_config({"rollouts": {"system_prompt": "Answer http://[::1 in one word."}}, origin="test")


def test_the_form_refuses_what_cannot_be_a_variable() -> None:
    field = DistillConfig.model_json_schema()["$defs"]["RuntimeConfig"]["properties"]["api_key_env"]
    assert field["pattern"] == "^[A-Z_][A-Z0-9_]*$"


def test_a_traceback_of_the_refusal_shows_no_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"runtime": {"api_key_env": CANARY}, "teacher": {"api_key": CANARY}}, origin="test")
    assert CANARY not in "".join(traceback.format_exception(caught.value))
