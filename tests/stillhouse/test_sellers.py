import pytest

from stillhouse.sellers import cannot_score, cannot_score_at, foreign_owner

API_MODELS = ("gpt-4o", "gpt-4.1-mini", "chatgpt-4o-latest", "o3", "o4-mini", "openai/gpt-5", "claude-opus-4-1")
API_MODELS += ("openrouter/anthropic/claude-sonnet-4.5", "google/gemini-2.5-pro")
OPEN_MODELS = ("Qwen/Qwen3-32B", "openai/gpt-oss-20b", "openai-community/gpt2", "gpt2", "EleutherAI/gpt-j-6b")
OPEN_MODELS += ("google/gemma-3-4b-it", "someone/claude-like-7b", "./o3-models/student", "embedded:teacher")


def test_models_behind_chat_endpoints_alone_cannot_score_and_open_weights_can_whoever_made_them() -> None:
    for model in API_MODELS:
        assert str(cannot_score(model)).startswith(f"{model} cannot score")
    assert [model for model in OPEN_MODELS if cannot_score(model) is not None] == []


def test_hosts_of_sellers_that_score_nothing_are_known_and_servers_of_ones_own_are_not() -> None:
    silent = ("https://api.openai.com/v1", "https://mine.openai.azure.com/openai/v1", "https://api.groq.com/openai/v1")
    for url in silent:
        assert "cannot score" in str(cannot_score_at(url))
    open_ones = ("http://127.0.0.1:8000/v1", "https://notopenai.com/v1", "https://api.deepseek.com/beta")
    assert [url for url in open_ones if cannot_score_at(url) is not None] == []


@pytest.mark.parametrize(
    ("key", "url", "owner"),
    [
        ("sk-ant-api03-x", "https://api.openai.com/v1", "Anthropic"),
        ("sk-or-v1-x", "https://api.openai.com/v1", "OpenRouter"),
        ("sk-proj-x", "https://openrouter.ai/api/v1", "OpenAI"),
        ("gsk_x", "https://my.openai.azure.com/openai/v1", "Groq"),
        ("AIzaSyx", "https://api.deepseek.com/v1", "Google"),
        ("sk-or-v1-x", "https://openrouter.ai/api/v1", None),
        ("AIzaSyx", "https://generativelanguage.googleapis.com/v1beta/openai", None),
        # Gateways take what they are told to; `sk-` alone is many sellers'.
        ("sk-ant-x", "https://gateway.example.com/v1", None),
        ("sk-x", "https://api.deepseek.com/v1", None),
    ],
)
def test_a_key_of_another_seller_is_noticed(key: str, url: str, owner: str | None) -> None:
    assert foreign_owner(key, url) == owner
