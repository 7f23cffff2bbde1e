from pathlib import Path

import pytest

from stillhouse.errors import ConfigError
from stillhouse.inference.budget.prices import price_in_file
from stillhouse.inference.endpoint import Price

PRICES = """
"qwen/*": {prompt: 0.1, completion: 0.4}
qwen/large:
  prompt: 1
  completion: 4.0
  cached_prompt: 0.25
"qwen/la*": {prompt: 9, completion: 9}
"""


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices.yaml"
    path.write_text(PRICES)
    return path


def test_a_name_goes_before_patterns_and_the_first_pattern_before_others(prices: Path) -> None:
    assert price_in_file(str(prices), "qwen/large") == Price(1.0, 4.0, cached_prompt=0.25)
    assert price_in_file(str(prices), "qwen/lake") == Price(0.1, 0.4)


def test_a_model_that_no_line_is_about_has_no_price(prices: Path) -> None:
    assert price_in_file(str(prices), "gpt") is None


def test_the_example_file_is_valid() -> None:
    example = Path(__file__).parents[4] / "examples" / "prices.yaml"
    assert price_in_file(str(example), "gpt-5-mini") is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpt: {prompt: cheap, completion: 1}", r"gpt\.prompt: .*found 'cheap'"),
        ("gpt: {prompt: -1, completion: 1}", r"gpt\.prompt: .*found -1"),
        ("gpt: {prompt: 1}", r"gpt\.completion: Field required"),
        ("gpt: {prompt: 1, completion: 1, cache: 2}", r"gpt\.cache: "),
        ("gpt: 3", r"gpt: .*found 3"),
        ("- gpt", "the file: "),
        ("", "the file: "),
        ("gpt: {prompt: .nan, completion: 1}", r"gpt\.prompt"),
        ("gpt: {", "not valid YAML"),
    ],
)
def test_a_mistake_is_told_with_file_key_value_and_form(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told) as caught:
        price_in_file(str(path), "gpt")
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        price_in_file(str(tmp_path / "none.yaml"), "gpt")
