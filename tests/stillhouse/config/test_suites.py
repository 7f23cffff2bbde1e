"""Names of suites in a config, and the margins that promotion sets for them."""

import pytest

from stillhouse.config import DistillConfig, parse_config
from stillhouse.config.suites import Suite, parse_suite
from stillhouse.errors import ConfigError

STOCK = "examples/suites/stock.py:stock"


def config(suites: list[str], **no_worse: float) -> DistillConfig:
    return parse_config({"evaluation": {"suites": suites}, "promotion": {"no_worse": no_worse}}, "config.yaml")


def test_a_suite_is_a_task_of_a_file_or_a_registered_one() -> None:
    assert parse_suite(STOCK) == Suite("examples/suites/stock.py", "stock")
    assert parse_suite("inspect:inspect_evals/ifeval") == Suite(None, "inspect_evals/ifeval")


@pytest.mark.parametrize("text", ["gsm8k", "tasks.txt:stock", "inspect:", "stock.py", "lm-eval:gsm8k"])
def test_another_text_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected FILE\.py:task, or inspect:NAME") as refused:
        config([text])
    assert repr(text) in str(refused.value)


def test_two_suites_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected each task once, as its figures have its name; saw stock, stock"):
        config([STOCK, "other.py:stock"])


def test_promotion_may_name_a_suite_and_a_metric() -> None:
    margins = {"suite stock": 0.02, "mean_completion_tokens": 50}
    assert config([STOCK], **margins).promotion.no_worse == margins


@pytest.mark.parametrize(("name", "suites"), [("stock", [STOCK]), ("suite stock", []), ("acuracy", [])])
def test_what_nothing_measures_is_refused_by_name(name: str, suites: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"promotion.no_worse names {name}, which nothing measures; expected accu"):
        config(suites, **{name: 0.02})


def test_a_config_without_suites_is_dumped_as_before_there_were_any() -> None:
    assert "suites" not in config([]).evaluation.identity()
