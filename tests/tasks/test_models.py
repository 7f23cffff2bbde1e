"""A student with values for its chat template is prompted alike wherever it is."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from stillhouse.chat.samples import render_samples
from stillhouse.chat.template import render
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import RuntimeConfig, StudentConfig
from stillhouse.embedded import embedded_path
from stillhouse.training.model.load import load_student
from tasks.models import base_student, endpoint_of

USER: Any = {"role": "user", "content": "Moss?"}
ANSWER: Any = {"role": "assistant", "content": "A plant."}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant "
    "{% if not enable_thinking %}<think></think>{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "thinker"
    shutil.copytree(embedded_path("student"), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


def test_the_base_has_the_fingerprint_of_its_files_and_another_with_other_prompts(student: str) -> None:
    plain = base_student(StudentConfig(model=student))
    assert plain.fingerprint.startswith("thinker@")
    thinking, silent = (
        base_student(StudentConfig(model=student, chat_template_kwargs={"enable_thinking": value}))
        for value in (True, False)
    )
    assert len({plain.fingerprint, thinking.fingerprint, silent.fingerprint}) == 3


def test_rows_prompts_and_servers_of_a_student_agree(student: str, tmp_path: Path) -> None:
    config = StudentConfig(
        model=student, parameters="full", dtype="float32", chat_template_kwargs={"enable_thinking": True}
    )
    tokenizer = load_student(student, config, torch.device("cpu"), seed=0).tokenizer
    expected = render(tokenizer, [USER], None, add_generation_prompt=True)
    assert tokenizer.decode(expected).endswith("assistant ")
    (row,) = render_samples(tokenizer, [USER, ANSWER], None)
    assert row.token_ids[: len(expected)] == expected
    tokenizer.save_pretrained(tmp_path)
    assert render(load_tokenizer(str(tmp_path)), [USER], None, add_generation_prompt=True) == expected

    async def served(**values: Any) -> httpx.Response:
        async with endpoint_of(base_student(config), None, RuntimeConfig(device="cpu", num_threads=1)) as endpoint:
            body = {"model": student, "messages": [USER], "max_tokens": 1, "return_token_ids": True, **values}
            return await asyncio.to_thread(httpx.post, f"{endpoint.base_url}/chat/completions", json=body)

    async def main() -> tuple[httpx.Response, ...]:
        values = [{}, {"enable_thinking": False}, {"thinking": False}]
        return tuple(await asyncio.gather(*(served(chat_template_kwargs=each) for each in values)))

    by_default, off, unknown = asyncio.run(main())
    assert by_default.json()["prompt_token_ids"] == expected
    assert tokenizer.decode(off.json()["prompt_token_ids"]).endswith("<think></think>")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "chat_template_kwargs")
    assert "never reads 'thinking'; did you mean 'enable_thinking'?" in unknown.json()["error"]["message"]
