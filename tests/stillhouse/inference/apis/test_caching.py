import pytest

from stillhouse.inference.apis.caching import is_read_again
from stillhouse.inference.endpoint import Endpoint


@pytest.mark.parametrize(
    ("base_url", "length", "expected"),
    [
        ("https://api.openai.com/v1", 3072, True),
        ("https://api.openai.com/v1", 3000, False),
        ("https://one.openai.azure.com/openai/v1", 3072, True),
        ("https://api.deepseek.com/v1", 3072, True),
        ("https://api.anthropic.com/v1", 2048, True),
        ("https://api.anthropic.com/v1", 2000, False),
        ("https://api.groq.com/openai/v1", 100_000, False),
        ("http://127.0.0.1:8000/v1", 100_000, False),
    ],
)
def test_long_prompts_are_read_again_where_the_seller_has_a_cache(base_url: str, length: int, expected: bool) -> None:
    assert is_read_again(Endpoint(base_url, "m", "m"), length) is expected
