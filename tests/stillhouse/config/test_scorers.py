import pytest

from stillhouse.config.scorers import cannot_score


@pytest.mark.parametrize(
    "model",
    [
        "gpt-4o",
        "gpt-4.1-mini",
        "chatgpt-4o-latest",
        "o3",
        "o4-mini",
        "openai/gpt-5",
        "openrouter/anthropic/claude-sonnet-4.5",
        "claude-opus-4-1",
        "google/gemini-2.5-pro",
    ],
)
def test_models_behind_chat_endpoints_alone_cannot_score(model: str) -> None:
    reason = cannot_score(model)
    assert reason is not None
    assert model in reason


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen3-32B",
        "openai/gpt-oss-20b",
        "openai-community/gpt2",
        "gpt2",
        "EleutherAI/gpt-j-6b",
        "google/gemma-3-4b-it",
        "someone/claude-like-7b",
        "./o3-models/student",
        "embedded:teacher",
    ],
)
def test_open_weights_can_score_whoever_made_them(model: str) -> None:
    assert cannot_score(model) is None
