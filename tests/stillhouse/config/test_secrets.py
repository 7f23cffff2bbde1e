import traceback
from pathlib import Path
from typing import Any

import pytest

from stillhouse.config import DistillConfig, load_config, parse_config
from stillhouse.errors import ConfigError

CANARY = "sk-canary-0123456789"
PLAIN = "q8Zr1mWx5"
"""A key that only its place gives away."""
GITHUB = "ghp_" + "a1B2" * 9


def _mcp(*command: str) -> dict[str, Any]:
    return {"tools": {"mcp": [{"name": "files", "command": command}]}}


def _refusal(body: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(body, origin="test", overrides=overrides)
    return "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("field", ["teacher.base_url", "tools.search_url", "dataset.embeddings.base_url"])
@pytest.mark.parametrize(
    ("address", "key"),
    [
        (f"https://models.example/v1?api_key={PLAIN}", PLAIN),
        (f"https://models.example/v1?key={PLAIN}", PLAIN),
        (f"https://models.example/v1?api-version=1&access_token={PLAIN}", PLAIN),
        (f"https://models.example/v1?subscription-key={PLAIN}", PLAIN),
        (f"https://models.example/v1?x={CANARY}", CANARY),
        (f"https://{CANARY}@models.example/v1", CANARY),
        (f"https://{GITHUB}@models.example/v1", GITHUB),
        (f"https://user:{PLAIN}@models.example/v1", PLAIN),
    ],
)
def test_a_key_in_an_address_is_refused_by_its_field_and_not_repeated(field: str, address: str, key: str) -> None:
    body: dict[str, Any] = {}
    *sections, name = field.split(".")
    inner = body
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[name] = address
    told = _refusal(body)
    assert field in told
    assert key not in told


@pytest.mark.parametrize(
    ("extra", "place", "key"),
    [
        ({"api_key": PLAIN}, "rollouts.extra_body.api_key", PLAIN),
        ({"headers": {"Authorization": f"Basic {PLAIN}"}}, "rollouts.extra_body.headers.Authorization", PLAIN),
        ({"provider": {"options": [{"note": f"use {CANARY}"}]}}, "rollouts.extra_body.provider.options.0.note", CANARY),
        ({"metadata": {"from": GITHUB}}, "rollouts.extra_body.metadata.from", GITHUB),
    ],
)
def test_a_key_in_the_body_of_requests_is_refused(extra: dict[str, Any], place: str, key: str) -> None:
    told = _refusal({"rollouts": {"extra_body": extra}})
    assert place in told
    assert key not in told


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("server", "--api-key", PLAIN), PLAIN),
        (("server", f"--api-key={PLAIN}"), PLAIN),
        (("server", "--token", PLAIN), PLAIN),
        (("env", f"GITHUB_TOKEN={PLAIN}", "server"), PLAIN),
        (("docker", "run", "-e", f"API_KEY={PLAIN}", "image"), PLAIN),
        (("server", "-H", f"Authorization: Bearer {PLAIN}"), PLAIN),
        (("server", CANARY), CANARY),
        (("server", GITHUB), GITHUB),
        (("server", f"https://me:{PLAIN}@files.example"), PLAIN),
        (("server", f"https://files.example/?token={PLAIN}"), PLAIN),
    ],
)
def test_a_key_among_the_arguments_of_an_mcp_server_is_refused(command: tuple[str, ...], key: str) -> None:
    told = _refusal(_mcp(*command))
    assert "tools.mcp" in told
    assert "command" in told
    assert key not in told


@pytest.mark.parametrize(
    "body",
    [
        {"teacher": {"base_url": "https://models.example/openai/v1?api-version=2024-10-21&model=a/b-c_d"}},
        {"teacher": {"base_url": "http://127.0.0.1:8000/v1"}},
        {
            "rollouts": {
                "extra_body": {
                    "provider": {"order": ["deepinfra", "together"], "data_collection": "deny"},
                    "prompt_cache_key": "run-2026-11-22",
                    "safety_identifier": "0f8fad5bd9cb469fa16570867728950e",
                    "chat_template_kwargs": {"stop_token": "</s>", "enable_thinking": False},
                    "max_tokens_per_key": 5,
                }
            }
        },
        _mcp("npx", "-y", "@modelcontextprotocol/server-github@2025.4.8", "--read-only"),
        _mcp("docker", "run", "-i", "--rm", "-e", "GITHUB_TOKEN", "ghcr.io/github/github-mcp-server:v0.4.0"),
        _mcp("server", "--api-key-env", "GITHUB_TOKEN", "--token-file", "/run/secrets/token", "--token", "$TOKEN"),
        _mcp("python", "-m", "shop.server", "--root", "/home/a/0f8fad5bd9cb469fa16570867728950e", "--key=ID"),
    ],
)
def test_what_only_resembles_a_key_is_taken(body: dict[str, Any]) -> None:
    parse_config(body, origin="test")


@pytest.mark.parametrize(
    "body",
    [
        {"rollouts": {"extra_body": [f"Bearer {PLAIN}", CANARY]}},
        {"rollouts": {"extra_headers": {"Authorization": f"Bearer {PLAIN}"}}},
        {"teacher": {"base_url": [CANARY]}},
        {"tools": {"mcp": [{"name": "files", "command": f"server --api-key {CANARY}"}]}},
    ],
)
def test_an_error_about_something_else_repeats_no_key(body: dict[str, Any]) -> None:
    told = _refusal(body)
    assert CANARY not in told
    assert PLAIN not in told


@pytest.mark.parametrize("line", [f'  api_key: "{PLAIN}', f"  base_url: [{CANARY}"])
def test_an_error_about_yaml_repeats_no_key(line: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"teacher:\n{line}\n  model: m\n")
    with pytest.raises(ConfigError, match=r"not valid YAML: .* in line \d, column \d") as caught:
        load_config(tmp_path / "config.yaml")
    told = "".join(traceback.format_exception(caught.value))
    assert CANARY not in told
    assert PLAIN not in told


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
