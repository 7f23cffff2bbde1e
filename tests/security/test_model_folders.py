"""Models of strangers whose chat template is a program against whoever renders it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.chat.samples import render_samples
from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.embedded import embedded_path
from stillhouse.errors import ConfigError
from stillhouse.types import Message

QUESTION: list[Message] = [{"role": "user", "content": "Who is there?"}]
TALK: list[Message] = [*QUESTION, {"role": "assistant", "content": "Nobody."}]


@pytest.fixture
def folder_with(tmp_path: Path) -> Callable[[str], Path]:
    def folder(template: str) -> Path:
        shutil.copytree(embedded_path("student"), tmp_path / "stranger")
        (tmp_path / "stranger" / "chat_template.jinja").write_text(template)
        return tmp_path / "stranger"

    return folder


def test_a_template_that_makes_ten_gigabytes_is_named_with_its_folder(folder_with) -> None:
    folder = folder_with("{% for m in messages %}{{ m.content * 10**9 }}{% endfor %}")
    tokenizer = load_tokenizer(str(folder))
    with pytest.raises(ConfigError, match="MiB") as caught:
        render(tokenizer, QUESTION, None, add_generation_prompt=True)
    assert str(folder) in str(caught.value)
    with pytest.raises(ConfigError, match="MiB"):
        render_samples(tokenizer, TALK, None)


@pytest.mark.slow
def test_a_template_that_loops_is_stopped_and_named_with_its_folder(folder_with) -> None:
    loops = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
    folder = folder_with(loops)
    with pytest.raises(ConfigError, match=r"10\.1 s") as caught:
        render(load_tokenizer(str(folder)), QUESTION, None, add_generation_prompt=True)
    assert str(folder) in str(caught.value)
