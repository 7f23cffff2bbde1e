"""A first user's first file: rows in the forms of other programs, through the console script."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stillhouse.store.records import read_jsonl, read_trajectories
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion

Shell = Callable[..., tuple[int, str]]
QUESTIONS: list[dict[str, Any]] = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(2)]


def test_convert_names_each_odd_row_with_its_line_and_converts_the_others(shell: Shell, tmp_path: Path) -> None:
    rows = [
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "chatgpt", "value": "yo"}]},
        {"conversations": None},
        {"conversation": [{"from": "human", "value": "ho"}, {"from": "gpt", "value": "ya", "loss": False}]},
        {"conversations": [{"from": "human", "value": 5}]},
        {"system": "Brief.", "messages": [{"role": "user", "content": "q"}, {"role": "model", "content": "a"}]},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, output = shell("convert", "rows.jsonl", "-o", "out")
    assert (code, "Traceback" in output) == (0, False)
    assert "5 rows, 3 left out" in output
    said = [
        [message["content"] for message in one.messages]
        for one in read_trajectories(tmp_path / "out/trajectories.jsonl")
    ]
    assert said == [["hi", "yo"], ["Brief.", "q", "a"]]
    assert {row["place"] for row in read_jsonl(tmp_path / "out/unmapped.jsonl")} == {
        f"rows.jsonl, line {number}" for number in (2, 3, 4)
    }


def test_questions_of_a_json_file_are_asked_and_the_log_says_so(
    shell: Shell, tmp_path: Path, provider: SimulatedProvider
) -> None:
    def script(request: ReceivedRequest) -> Reply:
        return Reply(completion(str(int(request.body["messages"][-1]["content"].split()[2]) + 1)))

    provider.script = script
    (tmp_path / "rows.json").write_text(json.dumps(QUESTIONS, indent=1))
    options = ["-m", "simulated", "--base-url", provider.url, "--api-key-env", "STILLHOUSE_TEST_KEY"]
    code, output = shell("generate", "rows.json", "-o", "out.jsonl", *options, "--set", "tracking.enabled=false")
    assert (code, "the prompt is their `question`" in output) == (0, True), output
    rows = list(read_jsonl(tmp_path / "out.jsonl"))
    assert sorted(row["metadata"]["expected_answer"] for row in rows) == ["1", "2"]
    assert {row["messages"][0]["content"] for row in rows} == {row["question"] for row in QUESTIONS}
