import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse import report
from stillhouse.config import OnPolicyConfig
from stillhouse.training.on_policy.algorithms import choose_algorithm
from stillhouse.training.on_policy.monitoring import trajectory_page
from stillhouse.training.on_policy.monitoring.trajectory_page import (
    ScoredTrajectory,
    Selected,
    TrajectoryPages,
    select,
    write_page,
)
from stillhouse.training.on_policy.rewards import TrajectoryReward
from stillhouse.training.on_policy.scored import ScoredSample
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject, StopReason, Turn

REPORT_FOLDER = Path(report.__file__).parent
ALGORITHM = choose_algorithm(OnPolicyConfig(), has_teacher=True)
PROMPT, FIRST, TOOL, SECOND = "2 + 2?", "<b>call</b>", "five & six", "4\n"


def scored_trajectory(
    tokenizer: PreTrainedTokenizerBase,
    reward: float | None = None,
    *,
    kl: float = 0.5,
    advantage: float = 0.0,
    second: str = SECOND,
) -> ScoredTrajectory:
    """Two completions with tool output between them. The teacher likes the first and not the second."""
    parts = [tokenizer.encode(text, add_special_tokens=False) for text in (PROMPT, FIRST, TOOL, second)]
    ids = [token_id for part in parts for token_id in part]
    mask = [number in (1, 3) for number, part in enumerate(parts) for _ in part]
    sampling = [-1.0 if is_sampled else 0.0 for is_sampled in mask]
    signs = [{1: kl, 3: -kl}.get(number, 0.0) for number, part in enumerate(parts) for _ in part]
    teacher = [known + sign for known, sign in zip(sampling, signs, strict=True)]
    fixed = [advantage if is_sampled else 0.0 for is_sampled in mask]
    trajectory = SampledTrajectory(
        "key", "p", 0, [{"role": "user", "content": PROMPT}], [], [Turn("stop", {}, None, "student")] * 2,
        StopReason.LENGTH, "student", token_ids=ids, loss_mask=mask, sampling_logprobs=sampling, num_tool_calls=1,
    )  # fmt: skip
    sample = ScoredSample(
        ids, mask, "p", sampling_logprobs=sampling, advantages=fixed, teacher="maths", kl_coef=2.0,
        teacher_logprobs=teacher,
    )  # fmt: skip
    parts_of_reward = {} if reward is None else {"correct": reward}
    reward_of = TrajectoryReward(reward, parts_of_reward)
    return ScoredTrajectory(trajectory, sample, reward_of, ALGORITHM.advantages_when_sampled(sample))


class Page(HTMLParser):
    """Text, class and title of every element of the tokens, and all names of elements."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.spans: list[tuple[str, str, str]] = []
        self.text = ""
        self._open: list[list[str]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag == "span":
            facts = dict(attrs)
            self._open.append(["", facts.get("class") or "", facts.get("title") or ""])

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            text, kind, title = self._open.pop()
            self.spans.append((text, kind, title))

    def handle_data(self, data: str) -> None:
        self.text += data
        for one in self._open:
            one[0] += data

    def of(self, kind: str) -> list[tuple[str, str, str]]:
        return [span for span in self.spans if span[1].split()[:1] == [kind]]


def test_tokens_are_coloured_by_their_advantage_and_tell_their_figures(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    write_page(tmp_path / "page.html", "Step 1", [Selected("best", scored_trajectory(tokenizer, 1.0))], tokenizer)
    page = Page(tmp_path / "page.html")
    tokens = page.of("t")
    assert "".join(text for text, _, _ in tokens) == FIRST + SECOND.replace("\n", "\u23ce\n")
    assert [kind for _, kind, _ in tokens] == ["t p5"] * (len(tokens) - 2) + ["t n5"] * 2
    written = repr(tokens[-2][0])
    assert tokens[-2][2].startswith(written + "  id ")
    assert tokens[-2][2].endswith("advantage -1.000  student -1.000  maths -1.500  KL +0.500")
    assert [text for text, _, _ in page.of("read")] == [TOOL]
    for fact in ("best", "reward 1", "correct 1", "length", PROMPT):
        assert fact in " ".join(page.text.split())


def test_a_small_advantage_has_a_faint_colour_and_none_has_none(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    chosen = [Selected("best", scored_trajectory(tokenizer, kl=kl)) for kl in (2.0, 0.2, 0.0)]
    write_page(tmp_path / "page.html", "Step 1", chosen, tokenizer)
    kinds = [kind for _, kind, _ in Page(tmp_path / "page.html").of("t")]
    assert list(dict.fromkeys(kinds)) == ["t p5", "t n5", "t p2", "t n2", "t"]


def test_with_an_exact_divergence_there_are_no_figures_of_the_teacher(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    one = scored_trajectory(tokenizer, advantage=-0.25)
    exact = replace(one.sample, teacher_logprobs=None)
    advantages = ALGORITHM.advantages_when_sampled(exact)
    chosen = [Selected("best", one._replace(sample=exact, advantages=advantages))]
    write_page(tmp_path / "page.html", "Step 1", chosen, tokenizer)
    page = Page(tmp_path / "page.html")
    assert {kind for _, kind, _ in page.of("t")} == {"t n5"}
    assert page.of("t")[0][2].endswith("advantage -0.250  student -1.000")
    assert "compared over the whole vocabulary" in page.text


def test_the_middle_of_a_very_long_trajectory_is_left_out(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    one = scored_trajectory(tokenizer, second="1" * 4000)
    write_page(tmp_path / "page.html", "Step 1", [Selected("best", one)], tokenizer)
    page = Page(tmp_path / "page.html")
    num_after_prompt = len(one.sample.token_ids) - one.sample.loss_mask.index(True)
    assert page.of("gap")[0][0] == f"{num_after_prompt - 3000:,} tokens left out"
    assert len(page.of("t")) + len(tokenizer.encode(TOOL, add_special_tokens=False)) == 3000


def test_what_a_model_writes_is_text_and_the_page_runs_and_loads_nothing(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    one = scored_trajectory(tokenizer, second="<script>alert(1)</script>")
    failed = TrajectoryReward(None, {}, {"judged": '"><script>alert(2)</script>'})
    write_page(tmp_path / "page.html", "Step 1", [Selected("worst", one._replace(reward=failed))], tokenizer)
    page = Page(tmp_path / "page.html")
    assert not page.names & {"script", "img", "iframe", "b"}
    html = (tmp_path / "page.html").read_text()
    assert "default-src 'none'" in html
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in html, "the browser drops any other style"
    assert not re.search(r"https?://", html)
    assert page.of("part")[0][2] == failed.errors["judged"]


def test_best_worst_and_some_others_are_chosen_by_reward_then_by_advantage(tokenizer: PreTrainedTokenizerBase) -> None:
    rollouts = [
        scored_trajectory(tokenizer, reward, advantage=number) for number, reward in enumerate([0, 1, None, 1, 0, 0.5])
    ]
    chosen = select(rollouts, seed=0)
    places = [rollouts.index(one.scored) for one in chosen]
    assert places[:4] == [3, 1, 0, 4]
    assert sorted(places) == [0, 1, 2, 3, 4, 5]
    assert [one.reason for one in chosen] == ["best", "best", "worst", "worst", "random", "random"]


def test_without_rewards_the_advantage_alone_decides(tokenizer: PreTrainedTokenizerBase) -> None:
    rollouts = [scored_trajectory(tokenizer, advantage=number) for number in (2, 0, 1)]
    assert [(one.reason, rollouts.index(one.scored)) for one in select(rollouts, seed=0)] == [
        ("best", 0),
        ("best", 2),
        ("worst", 1),
    ]


def test_the_others_are_drawn_by_seed(tokenizer: PreTrainedTokenizerBase) -> None:
    rollouts = [scored_trajectory(tokenizer, advantage=number) for number in range(12)]
    drawn = [[rollouts.index(one.scored) for one in select(rollouts, seed=seed)][4:] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


class Heard:
    """A listener that remembers files."""

    def __init__(self) -> None:
        self.files: list[tuple[str, str | None]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...

    def log_table(self, rows: Sequence[JsonObject], file: str) -> None: ...

    def log_artifact(self, file: Path, subfolder: str | None = None) -> None:
        assert file.exists()
        self.files.append((file.name, subfolder))


@pytest.mark.parametrize(
    ("every_steps", "updates_per_batch", "steps"),
    [(5, 1, [0, 5, 10]), (5, 3, [0, 3, 9]), (2, 4, [0, 4, 8])],
)
def test_a_page_is_written_for_each_batch_that_a_due_step_trains_on(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, every_steps: int, updates_per_batch: int, steps: list[int]
) -> None:
    heard, one = Heard(), scored_trajectory(tokenizer)
    overlong = SampledTrajectory(
        "key", "q", 0, [], [], [], StopReason.CONTEXT_OVERFLOW, "student", token_ids=[1], loss_mask=[False],
        sampling_logprobs=[0.0],
    )  # fmt: skip
    config = OnPolicyConfig(show_every_steps=every_steps, num_passes=updates_per_batch)
    pages = TrajectoryPages(tokenizer, tmp_path, heard, choose_algorithm(config, has_teacher=True))
    for index in range(0, 12 // updates_per_batch):
        trajectories = [overlong, one.trajectory]
        pages.show(index, trajectories, [one.sample], [TrajectoryReward(None), one.reward])
    assert heard.files == [(f"step-{step:08d}.html", "trajectories") for step in steps]


def test_a_batch_that_sampled_nothing_has_no_page(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    heard = Heard()
    TrajectoryPages(tokenizer, tmp_path, heard, ALGORITHM).show(0, [], [], [])
    assert heard.files == []


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_colour(theme: int) -> None:
    sheets = (REPORT_FOLDER / "theme.css", Path(trajectory_page.__file__).with_suffix(".css"))
    themes = [sheet.read_text().split(":root {")[theme + 1] for sheet in sheets]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", "".join(themes)))
    backgrounds = {"ink": [*(f"{sign}{level}" for sign in "np" for level in range(1, 6)), "raised"], "muted": ["read"]}
    for text, behind in backgrounds.items():
        for one in behind:
            bright, dim = sorted((luminance(colours[text]), luminance(colours[one])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, (text, one)
