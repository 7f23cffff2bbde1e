"""Rows with one prompt and different metadata: counted, then taken once, merged or kept apart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stillhouse.config import PromptsConfig, SamePrompt, load_config
from stillhouse.interop import ConvertOptions, convert, summary_lines
from stillhouse.prompts import parse_prompts
from stillhouse.store.records import read_trajectories

ASKED = [{"role": "user", "content": "What is 2 + 2?"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "4"}]


def rows(messages: list[dict[str, str]]) -> list[dict[str, Any]]:
    facts = [{"ground_truth": "4", "tag": "math"}, {"ground_truth": "four", "level": 2}, {"ground_truth": "4"}]
    return [{"messages": messages, **row} for row in [facts[0], facts[1], facts[0]]]


@pytest.mark.parametrize(
    ("same_prompt", "written", "answers"),
    [("first", (1, 2, 1), ["4"]), ("merge", (1, 2, 1), ["4"]), ("keep", (2, 1, 1), ["4", "four"])],
)
def test_they_are_counted_and_read_back_as_asked(
    tmp_path: Path, write: Callable[..., Path], same_prompt: SamePrompt, written: tuple[int, ...], answers: list[str]
) -> None:
    source = write(tmp_path / "rows.jsonl", *rows(ANSWERED))
    report = convert(source, tmp_path / "out", "openai", ConvertOptions(same_prompt=same_prompt))
    assert (report.prompts, report.repeated_prompts, report.conflicting_prompts) == written
    assert report.num_unmapped == (same_prompt == "first")
    said = "\n".join(summary_lines(report, tmp_path / "out", 100))
    assert "1 with an earlier prompt and other metadata" in said
    assert (f"prompts.same_prompt: {same_prompt}" in said) == (same_prompt != "first")
    config = PromptsConfig(source=str(tmp_path / "out/prompts.jsonl"), same_prompt=same_prompt)
    loaded = parse_prompts(config)
    assert [entry.expected_answer for entry in loaded.metadata.values()] == answers
    assert [entry.metadata.get("level") for entry in loaded.metadata.values()][-1] == (
        None if same_prompt == "first" else 2
    )
    trajectories = list(read_trajectories(tmp_path / "out/trajectories.jsonl"))
    assert len(trajectories) == 3
    assert {one.prompt_id for one in trajectories} == {prompt.id for prompt in loaded.prompts}
    assert len({(one.prompt_id, one.sample_index) for one in trajectories}) == 3


def test_a_converted_config_says_so(tmp_path: Path, write: Callable[..., Path], rnow_body: Any) -> None:
    write(tmp_path / "train.jsonl", *rows(ASKED))
    source = write(tmp_path / "config.yml", yaml.safe_dump(rnow_body))
    convert(source, tmp_path / "out", options=ConvertOptions(same_prompt="keep"))
    config = load_config(tmp_path / "out/config.yaml")
    assert len(parse_prompts(config.prompts).prompts) == 2
    convert(source, tmp_path / "out")
    assert "same_prompt" not in (tmp_path / "out/config.yaml").read_text()
