import pytest

from stillhouse.config import DatasetConfig
from stillhouse.dataset.select.filters import passes
from stillhouse.labels.mixed_scripts import MIN_LETTERS, mixed_scripts

ENGLISH = "So the total is the sum of both parts"


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (ENGLISH, 0.0),
        (f"{ENGLISH}, где x = \u03b1", 3 / 33),
        (f"{ENGLISH} 因此答案是五", 6 / 35),
        ("首先我们用 Python 的 sum() 计算总数 然后打印结果 这样就得到了正确的答案", 0.0),
        ("これは日本語の文章です。漢字とカタカナが混ざっています。", 0.0),
        ("5 + 5 = 10", None),
        ("a" * (MIN_LETTERS - 1), None),
    ],
)
def test_letters_of_another_script_count_but_latin_ones_among_others(text: str, share: float | None) -> None:
    assert mixed_scripts(text) == (share if share is None else pytest.approx(share))


def test_rows_above_the_limit_are_dropped_and_measured_where_it_is_set() -> None:
    config = DatasetConfig.model_validate({"filters": {"max_mixed_scripts": 0.1}})
    assert config.measured == ("mixed_scripts",)
    rows = [{"has_answer": True, "stop_reason": "answered", "mixed_scripts": share} for share in (0.1, 0.11, None)]
    assert passes(rows, config, None) == [True, False, True]
