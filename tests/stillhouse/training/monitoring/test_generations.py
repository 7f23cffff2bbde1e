import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from stillhouse.config import StudentConfig, ToolsConfig
from stillhouse.serving.generator import Generator
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.model.load import load_student
from stillhouse.training.model.student import Student
from stillhouse.training.monitoring.generations import Generations
from stillhouse.training.monitoring.metrics import NoListener
from stillhouse.training.on_policy.sampling.sampler import Sampler, SamplingSettings
from stillhouse.training.trajectories import SampledTrajectory
from stillhouse.types import JsonObject, Prompt, PromptMetadata

NUM_PROMPTS = 6
Metadata = dict[str, PromptMetadata]
NewGenerations = Callable[[ToolsConfig, Metadata], "tuple[Generations, Listener]"]


class Listener(NoListener):
    """Remembers the tables."""

    def __init__(self) -> None:
        self.tables: dict[str, list[JsonObject]] = {}

    def log_table(self, rows: Sequence[JsonObject], file: str) -> None:
        self.tables.setdefault(file, []).extend(rows)


@pytest.fixture(scope="module")
def student() -> Student:
    """Knows how to call the calculator and answers some prompts right."""
    config = StudentConfig(parameters="full", dtype="float32", max_length=512)
    return load_student("embedded:student", config, torch.device("cpu"), seed=0)


@pytest.fixture
def random_calculator(tmp_path: Path) -> ToolsConfig:
    """A tool of the user's that draws from Python's generator."""
    file = tmp_path / "tools.py"
    file.write_text(
        "import random\n"
        "from stillhouse.tools import tool\n\n"
        "@tool\n"
        "def calculator(expression: str) -> str:\n"
        '    """Draws a number.\n\n    Args:\n        expression: ignored.\n    """\n'
        "    return str(random.randint(1, 9))\n"
    )
    return ToolsConfig(file=str(file))


@pytest.fixture
def new_generations(student: Student, prompts: list[Prompt], tmp_path: Path) -> NewGenerations:
    """Makes what samples the same prompts now and then, and the listener that hears of it."""

    def make(tools: ToolsConfig, metadata: Metadata) -> tuple[Generations, Listener]:
        settings = SamplingSettings(max_tokens=48, max_turns=3)
        sampler = Sampler(student.tokenizer, Toolbox.from_config(tools), settings, 512)

        def sample(prompts: Sequence[Prompt]) -> list[SampledTrajectory]:
            return sampler.sample(Generator(student.causal_lm), prompts, round_index=0)

        listener, chosen = Listener(), prompts[:NUM_PROMPTS]
        return Generations(
            student, sample, chosen, metadata, every_steps=10, work_dir=tmp_path, listener=listener
        ), listener

    return make


def rows_of(work_dir: Path) -> list[JsonObject]:
    return [json.loads(line) for line in (work_dir / "generations.jsonl").read_text().splitlines()]


def test_answers_are_verified_counted_and_kept_to_be_read(
    new_generations: NewGenerations, calculator: ToolsConfig, prompts: list[Prompt], metadata: Metadata, tmp_path: Path
):
    generations, listener = new_generations(calculator, dict(list(metadata.items())[: NUM_PROMPTS - 1]))
    metrics = generations.measure(7)
    rows = rows_of(tmp_path)
    assert listener.tables == {"generations.json": list(rows)}
    assert [row["prompt_id"] for row in rows] == [prompt.id for prompt in prompts[:NUM_PROMPTS]]
    assert [row["prompt"] for row in rows] == [prompt.messages[0]["content"] for prompt in prompts[:NUM_PROMPTS]]
    assert rows[-1]["verified"] is None
    assert rows[-1]["expected_answer"] is None
    verdicts = [row["verified"] for row in rows[:-1]]
    assert set(verdicts) == {True, False}
    for row in rows[:-1]:
        answer = row["completion"].removesuffix("<|im_end|>").removesuffix(".")
        assert row["verified"] == (row["stop_reason"] == "answered" and answer.endswith(row["expected_answer"]))
        assert row["step"] == 7
    assert any("<tool_response>" in row["completion"] for row in rows)
    assert metrics == {
        "generation_accuracy": sum(verdicts) / len(verdicts),
        "generation_truncated_share": sum(row["stop_reason"] == "length" for row in rows) / NUM_PROMPTS,
        "generation_mean_tokens": sum(row["num_tokens"] for row in rows) / NUM_PROMPTS,
    }
    assert generations.measure(8) == metrics, "the same weights give the same answers at every step"
    assert [{**row, "step": 7} for row in rows_of(tmp_path)[NUM_PROMPTS:]] == rows


def test_without_an_expected_answer_there_is_no_accuracy(new_generations: NewGenerations, calculator: ToolsConfig):
    metrics = new_generations(calculator, {})[0].measure(0)
    assert set(metrics) == {"generation_truncated_share", "generation_mean_tokens"}


@pytest.mark.parametrize("is_training", [True, False])
def test_training_goes_on_as_if_nothing_had_been_sampled(
    new_generations: NewGenerations, student: Student, random_calculator: ToolsConfig, tmp_path: Path, is_training: bool
):
    def draws(before: Callable[[], object]) -> list[float]:
        random.seed(0)
        torch.manual_seed(0)
        before()
        return [random.random(), torch.rand(1).item()]

    generations, _ = new_generations(random_calculator, {})
    student.model.train(is_training)
    assert draws(lambda: generations.measure(1)) == draws(lambda: None)
    assert any("<tool_response>" in row["completion"] for row in rows_of(tmp_path))
    assert student.model.training is is_training


def test_rows_behind_the_checkpoint_are_cut_and_a_new_listener_gets_the_others(
    new_generations: NewGenerations, calculator: ToolsConfig, tmp_path: Path
):
    rows = [{"step": step, "prompt": "p"} for step in (2, 4, 6)]
    (tmp_path / "generations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 8, "pro')
    generations, listener = new_generations(calculator, {})
    generations.restore(4, replay=False)
    assert listener.tables == {}
    generations.restore(4, replay=True)
    assert rows_of(tmp_path) == listener.tables["generations.json"] == rows[:2]
