import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
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


NewScored = Callable[..., ScoredTrajectory]
Write = Callable[..., "Page"]


@pytest.fixture
def new_scored(tokenizer: PreTrainedTokenizerBase) -> NewScored:
    """Makes two completions with tool output between them. The teacher likes the first and not the second."""

    def make(
        reward: float | None = None, *, kl: float = 0.5, advantage: float = 0.0, second: str = SECOND
    ) -> ScoredTrajectory:
        parts = [tokenizer.encode(text, add_special_tokens=False) for text in (PROMPT, FIRST, TOOL, second)]
        ids = [token_id for part in parts for token_id in part]
        mask = [number in (1, 3) for number, part in enumerate(parts) for _ in part]
        sampling = [-1.0 if is_sampled else 0.0 for is_sampled in mask]
        teacher = [{1: kl - 1, 3: -kl - 1}.get(number, 0.0) for number, part in enumerate(parts) for _ in part]
        trajectory = SampledTrajectory(
            "key", "p", 0, [{"role": "user", "content": PROMPT}], [], [Turn("stop", {}, None, "student")] * 2,
            StopReason.LENGTH, "student", token_ids=ids, loss_mask=mask, sampling_logprobs=sampling, num_tool_calls=1,
        )  # fmt: skip
        sample = ScoredSample(
            ids, mask, "p", sampling_logprobs=sampling, advantages=[advantage * is_sampled for is_sampled in mask],
            teacher="maths", kl_coef=2.0, teacher_logprobs=teacher,
        )  # fmt: skip
        rewarded = TrajectoryReward(reward, {} if reward is None else {"correct": reward})
        return ScoredTrajectory(trajectory, sample, rewarded, ALGORITHM.advantages_when_sampled(sample))

    return make


class Page(HTMLParser):
    """Text, class and title of every element of the tokens, and all names of elements."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.spans: list[tuple[str, str, str]] = []
        self.text = ""
        self._open: list[list[str]] = []
        self.html = path.read_text(encoding="utf-8")
        self.feed(self.html)

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
        for span in self._open:
            span[0] += data

    def of(self, kind: str) -> list[tuple[str, str, str]]:
        return [span for span in self.spans if span[1].split()[:1] == [kind]]


@pytest.fixture
def write(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Callable[..., Page]:
    """Writes a page of trajectories."""

    def written(*scored: ScoredTrajectory) -> Page:
        path = tmp_path / "page.html"
        write_page(path, "Step 1", [Selected("best", trajectory) for trajectory in scored], tokenizer)
        return Page(path)

    return written


def test_tokens_are_coloured_by_their_advantage_and_have_their_figures(new_scored: NewScored, write: Write) -> None:
    page = write(new_scored(1.0))
    tokens = page.of("t")
    assert "".join(text for text, _, _ in tokens) == FIRST + SECOND.replace("\n", "\u23ce\n")
    assert [kind for _, kind, _ in tokens] == ["t p5"] * (len(tokens) - 2) + ["t n5"] * 2
    text, _, title = tokens[-2]
    assert title.startswith(f"{text!r}  id ")
    assert title.endswith("advantage -1.000  student -1.000  maths -1.500  KL +0.500")
    assert [text for text, _, _ in page.of("read")] == [TOOL]
    for fact in ("best", "reward 1", "correct 1", "length", PROMPT):
        assert fact in " ".join(page.text.split())


def test_a_small_advantage_has_a_faint_colour_and_none_has_none(new_scored: NewScored, write: Write) -> None:
    kinds = [kind for _, kind, _ in write(*(new_scored(kl=kl) for kl in (2.0, 0.2, 0.0))).of("t")]
    assert list(dict.fromkeys(kinds)) == ["t p5", "t n5", "t p2", "t n2", "t"]


def test_with_an_exact_divergence_there_are_no_figures_of_the_teacher(new_scored: NewScored, write: Write) -> None:
    scored = new_scored(advantage=-0.25)
    exact = replace(scored.sample, teacher_logprobs=None)
    page = write(scored._replace(sample=exact, advantages=ALGORITHM.advantages_when_sampled(exact)))
    assert {kind for _, kind, _ in page.of("t")} == {"t n5"}
    assert page.of("t")[0][2].endswith("advantage -0.250  student -1.000")
    assert "compared over the whole vocabulary" in page.text


def test_the_middle_of_a_very_long_trajectory_is_left_out(
    new_scored: NewScored, write: Write, tokenizer: PreTrainedTokenizerBase
) -> None:
    scored = new_scored(second="1" * 4000)
    page = write(scored)
    num_after_prompt = len(scored.sample.token_ids) - scored.sample.loss_mask.index(True)
    assert page.of("gap")[0][0] == f"{num_after_prompt - 3000:,} tokens left out"
    assert len(page.of("t")) + len(tokenizer.encode(TOOL, add_special_tokens=False)) == 3000


def test_a_completion_is_shown_as_text_and_the_page_runs_and_loads_nothing(new_scored: NewScored, write: Write) -> None:
    failed = TrajectoryReward(None, {}, {"judged": '"><script>alert(2)</script>'})
    page = write(new_scored(second="<script>alert(1)</script>")._replace(reward=failed))
    assert not page.names & {"script", "img", "iframe", "b"}
    assert "default-src 'none'" in page.html
    (style,) = re.findall(r"<style>(.*?)</style>", page.html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in page.html, "the browser drops any other style"
    assert not re.search(r"https?://", page.html)
    assert page.of("part")[0][2] == failed.errors["judged"]


def chosen(rollouts: Sequence[ScoredTrajectory], seed: int = 0) -> list[tuple[str, int]]:
    return [(selected.reason, rollouts.index(selected.scored)) for selected in select(rollouts, seed=seed)]


def test_best_worst_and_some_others_are_chosen_by_reward_then_by_advantage(new_scored: NewScored) -> None:
    rewards = [0, 1, None, 1, 0, 0.5]
    selected = chosen([new_scored(reward, advantage=number) for number, reward in enumerate(rewards)])
    assert selected[:4] == [("best", 3), ("best", 1), ("worst", 0), ("worst", 4)]
    assert sorted(selected[4:]) == [("random", 2), ("random", 5)]


def test_without_rewards_the_advantage_alone_decides(new_scored: NewScored) -> None:
    rollouts = [new_scored(advantage=number) for number in (2, 0, 1)]
    assert chosen(rollouts) == [("best", 0), ("best", 2), ("worst", 1)]


def test_the_others_are_drawn_by_seed(new_scored: NewScored) -> None:
    rollouts = [new_scored(advantage=number) for number in range(12)]
    first, again, other = (chosen(rollouts, seed)[4:] for seed in (0, 0, 1))
    assert first == again != other


class Listener:
    """Remembers files."""

    def __init__(self) -> None:
        self.files: list[tuple[str, str | None]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...

    def log_table(self, rows: Sequence[JsonObject], file: str) -> None: ...

    def log_artifact(self, file: Path, subfolder: str | None = None) -> None:
        assert file.exists()
        self.files.append((file.name, subfolder))


@pytest.mark.parametrize(
    ("every_steps", "updates_per_batch", "steps"), [(5, 1, [0, 5, 10]), (5, 3, [0, 3, 9]), (2, 4, [0, 4, 8])]
)
def test_a_page_is_written_for_each_batch_that_a_due_step_trains_on(
    new_scored: NewScored,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    every_steps: int,
    updates_per_batch: int,
    steps: list[int],
) -> None:
    listener, scored = Listener(), new_scored()
    overlong = SampledTrajectory(
        "key", "q", 0, [], [], [], StopReason.CONTEXT_OVERFLOW, "student", token_ids=[1], loss_mask=[False],
        sampling_logprobs=[0.0],
    )  # fmt: skip
    config = OnPolicyConfig(show_every_steps=every_steps, num_passes=updates_per_batch)
    pages = TrajectoryPages(tokenizer, tmp_path, listener, choose_algorithm(config, has_teacher=True))
    for index in range(0, 12 // updates_per_batch):
        rewards = [TrajectoryReward(None), scored.reward]
        pages.show(index, [overlong, scored.trajectory], [scored.sample], rewards)
    assert listener.files == [(f"step-{step:08d}.html", "trajectories") for step in steps]


def test_a_batch_that_sampled_nothing_has_no_page(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    listener = Listener()
    TrajectoryPages(tokenizer, tmp_path, listener, ALGORITHM).show(0, [], [], [])
    assert listener.files == []


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_colour(theme: int) -> None:
    sheets = (REPORT_FOLDER / "theme.css", Path(trajectory_page.__file__).with_suffix(".css"))
    themes = [sheet.read_text().split(":root {")[theme + 1] for sheet in sheets]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", "".join(themes)))
    backgrounds = {"ink": [*(f"{sign}{level}" for sign in "np" for level in range(1, 6)), "raised"], "muted": ["read"]}
    for text, behind in ((text, name) for text, names in backgrounds.items() for name in names):
        dim, bright = sorted((luminance(colours[text]), luminance(colours[behind])))
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, (text, behind)
