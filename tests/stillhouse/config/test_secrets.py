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


def _body(field: str, value: Any) -> dict[str, Any]:
    for part in reversed(field.split(".")):
        value = {part: value}
    return value


ADDRESSES = [
    (f"https://models.example/v1?api_key={PLAIN}", PLAIN),
    (f"https://models.example/v1?key={PLAIN}", PLAIN),
    (f"https://models.example/v1?api-version=1&access_token={PLAIN}", PLAIN),
    (f"https://models.example/v1?subscription-key={PLAIN}", PLAIN),
    (f"https://models.example/v1?x={CANARY}", CANARY),
    (f"https://{CANARY}@models.example/v1", CANARY),
    (f"https://{GITHUB}@models.example/v1", GITHUB),
    (f"https://user:{PLAIN}@models.example/v1", PLAIN),
]
BODIES = [
    ({"api_key": PLAIN}, "api_key", PLAIN),
    ({"headers": {"Authorization": f"Basic {PLAIN}"}}, "headers.Authorization", PLAIN),
    ({"provider": {"options": [{"note": f"use {CANARY}"}]}}, "provider.options.0.note", CANARY),
    ({"metadata": {"from": GITHUB}}, "metadata.from", GITHUB),
]
COMMANDS = [
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
]
HEADERS = {"name": "files", "url": "https://mcp.example/mcp", "headers_env": {"Authorization": f"Bearer {CANARY}"}}
URI = f"postgresql+psycopg://mlflow:{CANARY}@db/mlflow"
VARIABLES = ["runtime.api_key_env", "runtime.judge_api_key_env", "on_policy.engine_api_key_env"]


@pytest.mark.parametrize(
    ("body", "place", "key"),
    [
        *(
            (_body(field, address), field, key)
            for field in ("teacher.base_url", "dataset.judge.model.base_url")
            for address, key in ADDRESSES
        ),
        (_body("tracking.uri", URI), "tracking.uri", CANARY),
        *((_body("rollouts.extra_body", extra), f"rollouts.extra_body.{place}", key) for extra, place, key in BODIES),
        *((_mcp(*command), "tools.mcp", key) for command, key in COMMANDS),
        (_body("tools.mcp", [HEADERS]), "headers_env", CANARY),
        *(
            (_body(field, key), f"{field}: expected the name of an environment variable", key)
            for field in VARIABLES
            for key in (CANARY, "hf_canary0123456789")
        ),
        (_body("teacher.api_key", CANARY), "teacher.api_key: unknown key", CANARY),
    ],
)
def test_a_key_is_refused_by_its_place_and_not_repeated(body: dict[str, Any], place: str, key: str) -> None:
    told = _refusal(body)
    assert place in told
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
    with pytest.raises(ConfigError, match=r"line \d, column \d") as caught:
        load_config(tmp_path / "config.yaml")
    told = "".join(traceback.format_exception(caught.value))
    assert CANARY not in told
    assert PLAIN not in told


def test_an_address_with_a_user_alone_and_one_that_is_none_are_taken() -> None:
    config = parse_config({"tracking": {"uri": "postgresql+psycopg://mlflow@db/mlflow"}}, origin="test")
    assert config.tracking.uri == "postgresql+psycopg://mlflow@db/mlflow"
    parse_config({"rollouts": {"system_prompt": "Answer http://[::1 in one word."}}, origin="test")


def test_the_form_refuses_what_cannot_be_a_variable() -> None:
    field = DistillConfig.model_json_schema()["$defs"]["RuntimeConfig"]["properties"]["api_key_env"]
    assert field["pattern"] == "^[A-Z_][A-Z0-9_]*$"
