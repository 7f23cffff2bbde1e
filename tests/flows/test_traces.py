"""From a folder of an agent's sessions to a student."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

from stillhouse.store.records import read_jsonl, write_jsonl
from tests.stillhouse.interop.traces.claude_lines import KEYS, session
from tests.stillhouse.interop.traces.test_claude_code import TOOLS


def test_sessions_of_claude_code_become_a_student(
    tmp_path: Path, shell: Callable[..., tuple[int, str]], smoke_config
) -> None:
    from flows.distill import distill

    project = tmp_path / "projects" / "-home-ada"
    project.mkdir(parents=True)
    for number in range(1, 18):
        write_jsonl(project / f"{number}.jsonl", session(number))
    leaking = json.dumps(session(99)).replace("198", KEYS[1])
    write_jsonl(project / "leaking.jsonl", json.loads(leaking))
    tools = tmp_path / "tools.py"
    tools.write_text(TOOLS)
    code, output = shell("convert", "projects", "-o", "converted", "-t", "tools.py")
    assert (code, "projects as claude-code: 18 rows in 18 files, 1 left out" in output) == (0, True), output
    assert "a conversation with private data" in output

    converted = tmp_path / "converted"
    published = distill(
        smoke_config(
            tmp_path / "store",
            prompts__source=str(converted / "prompts.jsonl"),
            rollouts__trajectories_file=str(converted / "trajectories.jsonl"),
            tools__builtin=[],
            tools__file=str(tools),
            sft__loss="kl",
            sft__teacher="embedded:teacher",
            on_policy__enabled=False,
            prompts__held_out_fraction=0.0,
            tracking__enabled=False,
            runtime__launcher="inline",
            evaluation__enabled=False,
        )
    )
    assert published.students["sft"].facts["steps"] >= 2
    assert published.students["sft"].facts["final"]["sft/forward_kl"] > 0.0
    rows = [row for path in (tmp_path / "store").rglob("train.parquet") for row in pq.read_table(path).to_pylist()]
    assert rows
    assert all(len(json.loads(row["metadata"])["source_spans"]) == 2 for row in rows)
    assert sum(len(row["turns"]) if isinstance(row["turns"], list) else row["turns"] for row in rows) == 2 * len(rows)
    kept = [file for file in tmp_path.rglob("*") if file.is_file() and project not in file.parents]
    assert not any(KEYS[1].encode() in file.read_bytes() for file in kept)
    assert len(list(read_jsonl(converted / "trajectories.jsonl"))) == 17
