import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillhouse.labels.prose import without_code


@given(st.text(alphabet="a`~ \n>-1."))
def test_every_character_stands_where_it_stood(text: str) -> None:
    prose, open_line = without_code(text)
    assert len(prose) == len(text)
    assert all(kept in (written, " ") for kept, written in zip(prose, text, strict=True))
    assert [place for place, c in enumerate(prose) if c == "\n"] == [place for place, c in enumerate(text) if c == "\n"]
    assert open_line is None or 1 <= open_line <= text.count("\n") + 1


@pytest.mark.parametrize(
    ("text", "prose", "open_line"),
    [
        ("a\n```python\nb\n```\nc", "a c", None),
        ("a\n~~~\n```\n~~~\nc", "a c", None),
        ("a\n````\n```\nb\n````\nc", "a c", None),
        ("1. ```sh\n   b\n   ```\nc", "c", None),
        ("> ```\n> b\n> ```\nc", "c", None),
        ("say `b` twice, ``b``", "say twice,", None),
        ("```b``` on one line", "```b``` on one line", None),
        ("a `b\nc` d", "a `b c` d", None),
        ("a\n```python\nb", "a ```python b", 2),
        ("a\n```\nb\n```\n```\nc", "a ``` c", 5),
        ("a\n```\nb\n``` python\nc", "a ``` b ``` python c", 2),
    ],
)
def test_code_is_left_out(text: str, prose: str, open_line: int | None) -> None:
    found = without_code(text)
    assert (" ".join(found.text.split()), found.open_line) == (prose, open_line)
