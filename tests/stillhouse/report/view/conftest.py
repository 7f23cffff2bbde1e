"""Trajectories as rollouts leave them, and a browser to read them with."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stillhouse.report.view.page import write_page
from stillhouse.report.view.rows import read_view_rows
from stillhouse.report.view.sources import find_source
from stillhouse.store.records import write_jsonl
from stillhouse.types import StopReason, Trajectory, Turn

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def make_trajectory() -> Callable[..., Trajectory]:
    """Return a trajectory that asked the calculator and answered; `changes` are fields of it."""

    def make(index: int = 0, *, question: str | None = None, answer: str = "It is 42.", **changes: Any) -> Trajectory:
        call = {"id": "call_0", "type": "function", "function": {"name": "calculator", "arguments": '{"a":[1,2]}'}}
        facts = {"model": "qwen3-32b-2026", "provider": "Groq", "request_id": "req-7"}
        fields: dict[str, Any] = {
            "rollout_key": f"{index:064x}",
            "prompt_id": f"p{index}",
            "sample_index": 0,
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": question if question is not None else f"What is question {index}?"},
                {"role": "assistant", "reasoning_content": "Let me think deeply.", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_0", "content": "42"},
                {"role": "assistant", "content": answer},
            ],
            "tools": [{"type": "function", "function": {"name": "calculator", "parameters": {}}}],
            "turns": [
                Turn("tool_calls", {"prompt_tokens": 10, "completion_tokens": 5}, 0.5, cost_usd=0.001, **facts),
                Turn("stop", {"prompt_tokens": 20, "completion_tokens": 7}, 1.5, cost_usd=0.002, **facts),
            ],
            "stop_reason": StopReason.ANSWERED,
            "model": "qwen3-32b",
        }
        return Trajectory(**{**fields, **changes})

    return make


@pytest.fixture(scope="session")
def make_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the page of trajectories, or of rows in any form; `name` is the kind of file they lie in."""

    def make(rows: list[Any], *, max_rows: int = 100_000, name: str = "trajectories.jsonl") -> Path:
        folder = tmp_path_factory.mktemp("view")
        write_jsonl(folder / name, rows)
        source = find_source(str(folder / name), folder)
        write_page(folder / "page.html", "A run", "runs", read_view_rows(source), max_rows)
        return folder / "page.html"

    return make


@pytest.fixture
def visit(browser: "Browser") -> Iterator[Callable[..., "Page"]]:
    """Open a page whose list is there. The page must not say a word on the console nor ask for anything."""
    console: list[str] = []
    requests: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")

    def open_page(path: Path, fragment: str = "", *, empty: bool = False) -> "Page":
        page = context.new_page()
        page.on("console", lambda message: console.append(message.text))
        page.on("pageerror", lambda error: console.append(str(error)))
        page.on("dialog", lambda dialog: console.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + fragment)
        page.wait_for_selector("p.empty" if empty else "[role=option]")
        return page

    yield open_page
    # Closing cuts off what a page still reads ahead, which it says.
    said = [*console]
    context.close()
    assert said == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
