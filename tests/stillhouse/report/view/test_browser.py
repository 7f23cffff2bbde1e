"""The page in headless Chromium."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stillhouse.types import StopReason, Trajectory, Turn

if TYPE_CHECKING:
    from playwright.sync_api import Page


Make = Callable[..., Trajectory]
MakePage = Callable[..., Path]
Visit = Callable[..., "Page"]

FAILED: dict[str, Any] = {
    "stop_reason": StopReason.ERROR,
    "error": {"kind": "transient", "message": "the connection was reset", "status": 502},
}


def _listed(page: "Page") -> list[str]:
    return page.locator("[role=option] .question").all_inner_texts()


def _settled(page: "Page", pattern: str) -> None:
    """Wait until the line of counts reads so; the page's policy forbids to wait by a script."""
    page.locator("#count").filter(has_text=re.compile(pattern)).wait_for(timeout=20_000)


def _open(page: "Page") -> str:
    """Return what the reader shows, folded parts included."""
    page.wait_for_selector("article.trajectory")
    return page.locator("#reader").evaluate("element => element.textContent")


@pytest.mark.slow
def test_ten_thousand_trajectories_are_searched_and_scrolled_with_a_document_of_a_few_hundred_nodes(
    make_trajectory: Make, make_page: MakePage, visit: Visit
) -> None:
    rows = [make_trajectory(index, answer=f"The answer is {index * 7}. " + "so " * 100) for index in range(10_000)]
    page = visit(make_page(rows))
    _settled(page, "^10,000 trajectories")
    page.keyboard.press("j")
    page.wait_for_selector("article")
    elements = page.locator("*:not(script)")
    assert elements.count() < 400
    assert _listed(page)[0] == "What is question 0?"

    page.focus("#list")
    page.keyboard.press("End")
    page.get_by_text("What is question 9999?").first.wait_for()
    assert elements.count() < 400
    page.keyboard.press("k")
    assert page.locator("[role=option][aria-selected=true] .question").inner_text() == "What is question 9998?"

    page.keyboard.press("/")
    page.keyboard.type('"answer is 69972."')
    _settled(page, "^1 of 10,000(?!.*searching)")
    assert _listed(page) == ["What is question 9996?"]
    page.keyboard.press("Enter")
    page.keyboard.press("j")
    assert "The answer is 69972." in _open(page)


def test_trajectories_are_filtered_by_outcome_tool_stop_reason_and_score(
    make_trajectory: Make, make_page: MakePage, visit: Visit
) -> None:
    def chat(index: int, **facts: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"q{index}"}, {"role": "assistant", "content": "a"}]
        return {"id": f"r{index}", "messages": messages, "stop_reason": "answered", "teacher": "m", **facts}

    called = {"function": {"name": "search", "arguments": "{}"}, "id": "c", "type": "function"}
    rows: list[Any] = [
        chat(0, verified=True, kept=True, score=0.9),
        chat(1, verified=False, kept=False, drop_reasons=["wrong"], score=0.2),
        chat(2, verified=None, kept=True),
        chat(3, stop_reason="max_turns", verified=False, kept=False, drop_reasons=["max_turns"], score=0.0),
        {**chat(4, verified=True, kept=True, score=1.0), "messages": [
            {"role": "user", "content": "q4"}, {"role": "assistant", "tool_calls": [called]}]},
        make_trajectory(5, question="q5", **FAILED),
    ]  # fmt: skip
    page = visit(make_page(rows))

    def shown(**chosen: str) -> list[str]:
        for name in ("outcome", "kept", "stop", "tool"):
            page.select_option(f"#by-{name}", chosen.get(name, ""))
        for name in ("min", "max"):
            page.fill(f"#by-{name}", chosen.get(name, ""))
        return _listed(page)

    assert shown() == ["q0", "q1", "q2", "q3", "q4", "q5"]
    assert shown(outcome="right") == ["q0", "q4"]
    assert shown(outcome="wrong") == ["q1", "q3"]
    # The one that is open is always one of the list.
    page.locator("#reader article.trajectory", has_text="q1").wait_for(timeout=20_000)
    assert shown(outcome="unverified") == ["q2"]
    assert shown(outcome="failed") == ["q5"]
    assert shown(kept="kept") == ["q0", "q2", "q4"]
    assert shown(kept="dropped", outcome="wrong") == ["q1", "q3"]
    assert shown(stop="max_turns") == ["q3"]
    assert shown(tool="search") == ["q4"]
    assert shown(tool="(none)") == ["q0", "q1", "q2", "q3"]
    assert shown(min="0.2") == ["q0", "q1", "q4"]
    assert shown(min="0.1", max="0.9") == ["q0", "q1"]
    assert "min=0.1" in page.url
    assert shown(outcome="failed", kept="kept") == []
    page.locator("#reader", has_text="Choose a trajectory").wait_for(timeout=20_000)
    page.select_option("#by-sort", "best")
    assert shown(outcome="right") == ["q4", "q0"]
    page.get_by_role("button", name="Clear").click()
    assert len(_listed(page)) == 6
    assert page.locator("#by-outcome").input_value() == ""


def test_the_order_is_by_length_cost_turns_or_waiting(make_trajectory: Make, make_page: MakePage, visit: Visit) -> None:
    def turn(tokens: int, usd: float, waited: float | None) -> Turn:
        return Turn("stop", {"completion_tokens": tokens}, waited, "m", cost_usd=usd)

    rows = [
        make_trajectory(0, question="long", answer="word " * 500, turns=[turn(1, 0.1, 1.0)]),
        make_trajectory(1, question="dear", turns=[turn(2, 9.0, 2.0)]),
        make_trajectory(2, question="slow", turns=[turn(3, 0.2, 90.0)]),
        make_trajectory(3, question="turns", turns=[turn(1, 0.1, 0.1), turn(1, 0.1, 0.1)]),
        make_trajectory(4, question="untold", turns=[turn(1, 0.1, None)]),
    ]
    page = visit(make_page(rows))
    for order, first in [("longest", "long"), ("cost", "dear"), ("slowest", "slow"), ("turns", "turns")]:
        page.select_option("#by-sort", order)
        assert _listed(page)[0] == first
    page.select_option("#by-sort", "slowest")
    assert _listed(page)[-1] == "untold"
    page.select_option("#by-sort", "sampled")
    assert _listed(page) == ["long", "dear", "slow", "turns", "untold"]


def test_a_trajectory_is_readable_with_reasoning_and_system_prompt_folded(
    make_trajectory: Make, make_page: MakePage, visit: Visit
) -> None:
    failing = {"role": "tool", "tool_call_id": "call_0", "content": '{"error": "division by zero"}'}
    trajectory = make_trajectory(answer='{"total": 42, "unit": "jars"}')
    messages = [*trajectory.messages[:3], failing, trajectory.messages[4]]
    page = visit(make_page([replace(trajectory, messages=messages)]))
    page.keyboard.press("j")
    text = _open(page)
    # Arguments and structured output are set out as JSON.
    assert '"a": [\n    1,\n    2\n  ]' in text
    assert '"total": 42,\n' in text
    assert "10 \u2192 5 tokens" in text
    assert "Groq, qwen3-32b-2026" in text
    assert "$0.0010" in text
    assert "500 ms" in text
    assert "tool calls" in text

    def is_seen(words: str) -> bool:
        return page.locator("#reader .text", has_text=words).first.is_visible()

    assert not is_seen("Let me think deeply.")
    assert not is_seen("Be brief.")
    assert is_seen("division by zero")
    assert page.locator(".message.failure .flag").inner_text() == "error"
    page.get_by_text("Reasoning, 20 characters").click()
    assert is_seen("Let me think deeply.")
    page.keyboard.press("f")
    assert not is_seen("division by zero")
    page.keyboard.press("f")
    assert is_seen("Be brief.")


def test_an_address_leads_to_one_trajectory_and_one_list(
    make_trajectory: Make, make_page: MakePage, visit: Visit
) -> None:
    path = make_page([make_trajectory(index) for index in range(500)])
    page = visit(path, f"#t={444:064x}")
    assert "What is question 444?" in _open(page)
    chosen = page.locator("[role=option][aria-selected=true]")
    assert chosen.get_attribute("aria-posinset") == "445"
    assert page.locator("#list").get_attribute("aria-activedescendant") == chosen.get_attribute("id")
    # Filtered, searched and sorted as the one who sent the address saw it.
    page = visit(path, "#q=%22question+44%22&sort=turns")
    _settled(page, "^11 of 500")
    assert page.locator("#query").input_value() == '"question 44"'
    page.keyboard.press("j")
    _open(page)
    assert f"t={44:064x}" in page.url
    page.keyboard.press("Escape")
    assert f"{44:064x}" not in page.url
    page = visit(path, "#t=absent")
    assert "No trajectory absent" in page.locator("#reader").inner_text()


HOSTILE = [
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\"><svg onload=alert(1)>",
    "<!--<script>",
    "{{ title }} ${document.title='owned'} ]]>",
    "javascript:alert(1)",
    "\x00\x1b[31mred\x07\u2028\u2029\ufeff",
    "\U0001f9ea\U0001f468\u200d\U0001f469\u200d\U0001f467 caf\u0301e",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "safe\u202etxt.exe",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_a_model_wrote_is_text(text: str, make_trajectory: Make, make_page: MakePage, visit: Visit) -> None:
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": text}}
    trajectory = make_trajectory(
        messages=[
            {"role": "user", "content": text},
            {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": text, "content": text},
            {"role": "tool", "tool_call_id": text, "content": '{"error": "' + "x" + '"}'},
        ],
        tools=[{"type": "function", "function": {"name": text, "description": text}}],
        error={"kind": text, "message": text},
        model=text,
        rollout_key=text,
    )
    page = visit(make_page([trajectory]))
    page.keyboard.press("j")
    shown = _open(page)
    assert page.title() == "A run"
    assert page.locator("#reader img, #reader svg, #reader script, .list img, .list script").count() == 0
    pictures = str.maketrans({"\x00": "\u2400", "\x1b": "\u241b", "\x07": "\u2407", "\u202e": "\u27e8U+202E\u27e9"})
    assert text.translate(pictures) in shown
    assert page.locator("option", has_text="owned").count() <= 1


def test_even_a_script_that_got_into_the_page_is_stopped_by_its_policy(
    make_trajectory: Make, make_page: MakePage, browser: Any
) -> None:
    path = make_page([make_trajectory()])
    html = path.read_text(encoding="utf-8")
    path.write_text(html.replace("<noscript>", "<script>document.title='owned'</script><noscript>"), encoding="utf-8")
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(path.as_uri())
    page.wait_for_selector("[role=option]")
    assert page.title() == "A run"
    assert len(said) == 1
    assert "Content Security Policy" in said[0]
    page.close()


BROKEN: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": [{"role": "assistant"}]},
    {"messages": [{"content": None}, {"role": "narrator", "content": "hm"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "part"}, {"type": "image_url"}, 3, None]}]},
    {"messages": [{"role": "assistant", "tool_calls": [None, {}, {"function": None}, {"function": {"name": 3}}, "x"]}]},
    {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": 7}}]}]},
    {"messages": [{"role": "tool", "content": "[1, 2"}], "tools": [None, {"function": {}}], "metadata": "text"},
    {"messages": [{"role": "assistant", "content": "y" * 50_000, "reasoning_details": [{"type": "opaque"}]}]},
]


def test_odd_trajectories_are_shown_as_far_as_they_go(make_page: MakePage, visit: Visit) -> None:
    page = visit(make_page(BROKEN))
    for row in range(len(BROKEN)):
        if row > 0:
            page.keyboard.press("j")
        page.locator("#reader code", has_text=re.compile(f"^row-{row + 1}$")).wait_for()
        assert f"row-{row + 1}" in _open(page)
    page.get_by_text("Show all 50,000 characters").click()
    assert "y" * 50_000 in _open(page)


def test_a_page_without_trajectories_says_so(make_page: MakePage, visit: Visit) -> None:
    page = visit(make_page([]), empty=True)
    assert "There is no trajectory on this page." in page.locator("#reader").inner_text()
    assert page.locator("#count").inner_text() == "0 trajectories"


def _luminance(css: str) -> float:
    """Return the relative luminance of WCAG 2.2."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", css)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tokens_are_coloured_by_their_advantage_and_have_their_figures(
    scheme: str, make_page: MakePage, visit: Visit
) -> None:
    levels = range(-5, 6)
    tokens: list[Any] = [{"text": "<b>read\n"}]
    tokens += [{"text": f"t{i} ", "id": 40 + i, "advantage": i * abs(i) / 25, "kl": None} for i in levels]
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    page = visit(make_page([{"id": "r", "messages": messages, "tokens": tokens}]))
    page.emulate_media(color_scheme=scheme)
    page.keyboard.press("j")
    _open(page)
    assert page.locator(".tokens").count() == 0, "made only where somebody looks"
    page.get_by_text("Tokens by advantage, 11 sampled").click()
    spans = page.locator(".tokens span")
    assert [spans.nth(i).get_attribute("class") for i in range(12)] == [
        *("read", "t n5", "t n4", "t n3", "t n2", "t n1", "t", "t p1", "t p2", "t p3", "t p4", "t p5")
    ]
    assert spans.nth(0).text_content() == "<b>read\u23ce\n"
    assert spans.nth(1).get_attribute("title") == "id 35  advantage -1"
    assert spans.nth(2).get_attribute("title") == "id 36  advantage -0.640"
    for place in (*range(6), *range(7, 12)):
        ink, behind = (
            _luminance(spans.nth(place).evaluate(f"element => getComputedStyle(element).{name}"))
            for name in ("color", "backgroundColor")
        )
        # WCAG 2.2, 1.4.3: the contrast of text is at least 4.5 to 1.
        assert (max(ink, behind) + 0.05) / (min(ink, behind) + 0.05) >= 4.5, place


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_dark_on_light_or_light_on_dark_as_the_reader_prefers(
    scheme: str, make_trajectory: Make, make_page: MakePage, visit: Visit
) -> None:
    page = visit(make_page([make_trajectory()]))
    page.emulate_media(color_scheme=scheme)
    page.keyboard.press("j")
    _open(page)

    paper = _luminance(page.locator("body").evaluate("element => getComputedStyle(element).backgroundColor"))
    assert (paper > 0.5) == (scheme == "light")
    for selector in ("#reader h2", ".option .facts", ".turn", "dt", ".preview", ".pill", ".json .key", ".fold summary"):
        ink = _luminance(page.locator(selector).first.evaluate("element => getComputedStyle(element).color"))
        # WCAG 2.2, 1.4.3: the contrast of text is at least 4.5 to 1.
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, selector


def test_a_narrow_window_shows_the_list_or_the_trajectory(
    make_trajectory: Make, make_page: MakePage, visit: Visit
) -> None:
    page = visit(make_page([make_trajectory(index) for index in range(3)]))
    page.set_viewport_size({"width": 400, "height": 800})
    page.get_by_role("button", name="Back to the list").click()
    assert not page.locator("#reader").is_visible()
    page.get_by_text("What is question 1?").click()
    page.wait_for_selector("article")
    assert not page.locator("#list").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.get_by_role("button", name="Back to the list").click()
    assert page.locator("#list").is_visible()


def test_the_page_opens_on_a_trajectory_where_there_is_room_for_it(
    make_trajectory: Make, make_page: MakePage, visit: Visit
) -> None:
    page = visit(make_page([make_trajectory(0), make_trajectory(1)]))
    assert "What is question 0?" in _open(page)
    page.keyboard.press("Escape")
    page.wait_for_selector("p.empty")
    page.set_viewport_size({"width": 390, "height": 800})
    page.evaluate("location.hash = ''")
    page.reload()
    page.wait_for_selector("[role=option]")
    assert page.locator("#reader").is_hidden()


def test_answers_of_several_models_to_one_prompt_stand_side_by_side(
    make_trajectory: Make, make_page: MakePage, visit: Visit
) -> None:
    asked = {"prompt_id": "p", "question": "How many?"}
    rows = [make_trajectory(0, answer="Seven.", model="small", **asked), make_trajectory(1)]
    rows += [make_trajectory(2, answer="Eight.", model="large", **asked)]
    rows += [make_trajectory(3, answer="Nine.", model="large", sample_index=1, **asked)]
    page = visit(make_page(rows))
    page.get_by_role("button", name="Compare 2 answers").click()
    columns = page.locator(".column")
    columns.nth(1).wait_for()
    # Another sample of a model is compared when it is the one that is open.
    texts = columns.all_inner_texts()
    assert [("Seven." in text, "Eight." in text) for text in texts] == [(True, False), (False, True)]
    # What they were asked stands above them once.
    assert page.locator("article .system").count() == 1
    page.reload()
    columns.nth(1).wait_for()
    columns.nth(1).get_by_role("button", name="large").click()
    page.locator(".column.chosen").filter(has_text="Eight.").wait_for()
    page.keyboard.press("c")
    page.get_by_role("button", name="Compare 2 answers").wait_for()
    page.keyboard.press("k")
    assert "question 1" in _open(page)
    assert page.get_by_role("button", name="Compare").count() == 0
