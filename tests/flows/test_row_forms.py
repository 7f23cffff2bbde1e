"""A first user's first file: rows in the forms of other programs, through the console script."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stillhouse.store.records import read_jsonl
from stillhouse.testing import ReceivedRequest, Reply, SimulatedProvider, completion

Shell = Callable[..., tuple[int, str]]
QUESTIONS: list[dict[str, Any]] = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(2)]


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
