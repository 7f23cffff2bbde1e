"""The page of `stillhouse view` against the one everybody writes: every trajectory in the document, folded.

Claims
    quick    10,000 trajectories are listed in half a second and the whole file is read in another tenth, where the
             plain page takes seconds; all their text is searched in about a second at first, then from memory.
    small    the document holds a few hundred nodes, however many trajectories there are, in a file half as large.

Measured
    10,000 trajectories of two turns with a tool call, reasoning and about 4 kB of words drawn at random, which compress
    worse than what models write. Headless Chromium opens each page from disk, in turns, in a fresh context. Shown: from
    navigation until the first trajectory can be seen. Loaded: until the whole file is read. Searched: from a word in
    one of ten trajectories until the last match is known and listed; the plain page hides what does not match.

Learnt
    Two cores that others use as well, five rounds. Listed after 0.44 s (0.35..0.53); the plain page, which is drawn
    as it is read, after 0.32 s (0.20..0.36). Whole after 0.47 s against 2.4 s, a fifth (0.19..0.24). 423 nodes against
    120,000, 23.9 MB against 47.3. The first search takes 0.8 s (0.6..1.0) against 0.26 s: the plain page has everything
    in memory by then, which is what it spent its seconds on.
"""

import html
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.frame.rounds import argument_parser, publish, ratio, spread
from stillhouse.report.view.page import write_page
from stillhouse.report.view.rows import ViewRow

_WORDS: Final = 60
_NEEDLE: Final = "juniper"


@dataclass(frozen=True, slots=True)
class Visit:
    """One page opened once."""

    megabytes: float
    shown_s: float
    loaded_s: float
    num_nodes: int
    searched_s: float


def trajectories(count: int) -> Iterator[ViewRow]:
    """Rows whose text is the same at each call."""
    random_words = random.Random(0)
    words = ["".join(random_words.choices("abcdefghijklmnop", k=random_words.randint(2, 9))) for _ in range(5000)]

    def text(num_words: int) -> str:
        return " ".join(random_words.choices(words, k=num_words))

    for index in range(count):
        call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": f'{{"q": "{text(4)}"}}'}}
        needle = f" {_NEEDLE}" if index % 10 == 0 else ""
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You are a careful assistant. " * 8},
            {"role": "user", "content": f"{text(_WORDS)}?"},
            {"role": "assistant", "reasoning_content": text(2 * _WORDS), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": text(4 * _WORDS)},
            {"role": "assistant", "content": text(2 * _WORDS) + needle},
        ]
        figures = {
            "turns": 2,
            "tool_calls": 1,
            "tool_errors": 0,
            "completion_tokens": 300,
            "usd": 0.01,
            "latency_s": 2.0,
        }
        body = {"id": f"{index:064x}", "messages": messages, "tools": [], "turns": None, "stop_reason": "answered"}
        unknown: dict[str, Any] = {
            "model": "m",
            "tag": None,
            "metadata": None,
            "providers": [],
            "error": None,
            "drop_reasons": [],
        }
        yield ViewRow("", "right", None, 1.0, figures, {**body, **unknown, "expected_answer": None})


def write_plain_page(path: Path, rows: Iterator[ViewRow]) -> None:
    """Every message of every trajectory as an element of the document."""
    with path.open("w", encoding="utf-8") as file:
        file.write("<!doctype html><meta charset=utf-8><style>div { white-space: pre-wrap }</style>")
        for row in rows:
            messages = row.body["messages"]
            file.write(f"<details><summary>{html.escape(messages[1]['content'][:160])}</summary>")
            for message in messages:
                file.write(f"<h4>{message['role']}</h4><div>{html.escape(str(message))}</div>")
            file.write("</details>")


def visit_ours(context: Any, path: Path) -> Visit:
    """Opens and searches the page of `stillhouse view`."""
    page = context.new_page()
    started = time.perf_counter()
    page.goto(path.as_uri(), wait_until="commit")
    page.locator("[role=option]").first.wait_for()
    shown = time.perf_counter()
    page.wait_for_load_state("load")
    loaded = time.perf_counter()
    num_nodes = page.evaluate("document.querySelectorAll('*').length")
    searched_at = time.perf_counter()
    page.fill("#query", _NEEDLE)
    # Its policy forbids to wait by a script: the line of counts tells.
    while "of" not in (count_text := page.inner_text("#count")) or "searching" in count_text:
        time.sleep(0.005)
    return Visit(
        path.stat().st_size / 1e6, shown - started, loaded - started, num_nodes, time.perf_counter() - searched_at
    )


def visit_plain(context: Any, path: Path) -> Visit:
    """Opens and searches the plain page."""
    page = context.new_page()
    started = time.perf_counter()
    page.goto(path.as_uri(), wait_until="commit")
    page.locator("summary").first.wait_for()
    shown = time.perf_counter()
    page.wait_for_load_state("load")
    loaded = time.perf_counter()
    num_nodes = page.evaluate("document.querySelectorAll('*').length")
    searched_at = time.perf_counter()
    page.evaluate(
        """needle => {
            for (const one of document.querySelectorAll("details"))
                one.hidden = !one.textContent.toLowerCase().includes(needle);
            return new Promise(done => requestAnimationFrame(() => setTimeout(done)));
        }""",
        _NEEDLE,
    )
    return Visit(
        path.stat().st_size / 1e6, shown - started, loaded - started, num_nodes, time.perf_counter() - searched_at
    )


def compare(count: int, num_rounds: int, folder: Path) -> dict[str, list[Visit]]:
    """Visits of both pages, in turns.

    Raises:
        FileNotFoundError: there is no Chromium on this machine.
    """
    from playwright.sync_api import sync_playwright

    if (chromium := shutil.which("chromium") or shutil.which("google-chrome")) is None:
        raise FileNotFoundError("no Chromium on this machine: apt-get install chromium")
    pages = {"ours": folder / "ours.html", "plain": folder / "plain.html"}
    write_page(pages["ours"], "Benchmark", "benchmarks", trajectories(count), count)
    write_plain_page(pages["plain"], trajectories(count))
    visits: dict[str, list[Visit]] = {name: [] for name in pages}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for round_index in range(num_rounds + 1):
            for name, visit in (("ours", visit_ours), ("plain", visit_plain)):
                context = browser.new_context()
                seen = visit(context, pages[name])
                context.close()
                if round_index:
                    visits[name].append(seen)
        browser.close()
    return visits


def lines_of(visits: dict[str, list[Visit]]) -> list[str]:
    """The figures as printed: both sides, and ours over the plain page's."""
    lines = []
    for figure in ("megabytes", "shown_s", "loaded_s", "num_nodes", "searched_s"):
        ours, plain = ([getattr(visit, figure) for visit in visits[name]] for name in ("ours", "plain"))
        lines.append(f"{figure:<11} ours {spread(ours)}, plain {spread(plain)}, ratio {ratio(ours, plain)}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        visits = compare(chosen.rows, chosen.rounds, Path(folder))
    figures = {name: [asdict(visit) for visit in seen] for name, seen in visits.items()}
    publish(lines_of(visits), figures, chosen.json)


if __name__ == "__main__":
    main()
