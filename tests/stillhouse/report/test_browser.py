"""The page in a real browser."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stillhouse.report import ReportData, SampleTrajectory, write_report
from stillhouse.types import Message

pytestmark = pytest.mark.slow


def opened(browser: Any, path: Path) -> tuple[Any, list[str]]:
    """Return the page and the messages on its console."""
    page = browser.new_page()
    console: list[str] = []
    page.on("console", lambda message: console.append(message.text))
    page.goto(path.as_uri())
    return page, console


@pytest.mark.parametrize("name", ["full", "only_evaluation", "no_kept_row"])
def test_a_report_renders_without_a_word_on_the_console(
    browser: Any, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    page, console = opened(browser, write_report(tmp_path, request.getfixturevalue(name)))
    assert console == []
    assert page.get_by_text("Stillhouse report").is_visible()


def test_even_an_unescaped_script_is_stopped_by_the_page_itself_and_reported(
    browser: Any, full: ReportData, tmp_path: Path
) -> None:
    path = write_report(tmp_path, full)
    html = path.read_text(encoding="utf-8")
    path.write_text(html.replace("<main>", "<main><script>document.title='owned'</script>"), encoding="utf-8")
    page, console = opened(browser, path)
    assert page.title() == "distill, demo.yaml"
    assert len(console) == 1
    assert "Content Security Policy" in console[0]


def test_long_tool_results_and_system_prompts_are_folded_and_open_on_a_click(
    browser: Any, full: ReportData, tmp_path: Path
) -> None:
    result = "a line of a page\n" * 200
    messages: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What does the page say?"},
        {"role": "tool", "tool_call_id": "c", "content": result},
    ]
    trajectory = SampleTrajectory(messages=messages, stop_reason="answered", verified=None, stage="teacher")
    page, _ = opened(browser, write_report(tmp_path, replace(full, trajectories=[trajectory])))
    page.locator(".trajectory > summary").click()
    texts = page.locator(".message .text")
    assert [texts.nth(index).is_visible() for index in range(3)] == [False, True, False]
    page.locator(".message.tool > summary").click()
    assert texts.nth(2).is_visible()
