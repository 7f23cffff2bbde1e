"""`stillhouse generate`: what it asks for, writes and says, and how it fails."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from stillhouse.store.records import read_jsonl, read_trajectories
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion, error

Shell = Callable[..., tuple[int, str]]
TOOLS = '''
from stillhouse.tools import tool


@tool
def warmth(city: str) -> str:
    """Tells how warm a city is.

    Args:
        city: its name.
    """
    return f"{len(city)} degrees"
'''


@pytest.fixture
def prompts(tmp_path: Path, embedded_rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in embedded_rows))
    return path


def options_of(url: str, key: str) -> list[str]:
    return ["-m", "simulated", "--base-url", url, "--api-key-env", key, "--set", "tracking.enabled=false"]


@pytest.fixture
def generate(shell, provider: SimulatedProvider) -> Shell:
    """Run `stillhouse generate ARGS` against `provider`, unless another endpoint is named; show no traceback."""

    def run(*args: str, url: str = provider.url, key: str = "STILLHOUSE_TEST_KEY") -> tuple[int, str]:
        code, output = shell("generate", *args, *options_of(url, key))
        assert "Traceback" not in output, output
        return code, output

    return run


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_generate_writes_rows_and_asks_nothing_again(
    cli, generate, tmp_path: Path, prompts: Path, provider: SimulatedProvider
) -> None:
    # The key is found in .env alone.
    (tmp_path / ".env").write_text("KEY_OF_DOTENV=from-dotenv\n")
    authorizations = set()
    known = provider.script

    def script(request: ReceivedRequest) -> Reply:
        authorizations.add(request.authorization)
        return known(request)

    provider.script = script
    options = ["-c", "2", "-t", "none", "-s", "Answer by a number.", "--temperature", "0.5"]
    options += ["--max-tokens", "99", "--max-turns", "3"]
    endpoint = options_of(provider.url, "KEY_OF_DOTENV")
    first = cli("generate", prompts.name, "-o", "out.jsonl", "-n", "3", *options, *endpoint, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert authorizations == {"Bearer from-dotenv"}
    sent = provider.requests[0]
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("simulated", 0.5, 99)
    assert sent["messages"][0] == {"role": "system", "content": "Answer by a number."}
    assert "tools" not in sent
    rows = rows_of(tmp_path / "out.jsonl")
    assert len(rows) == 3
    for row in rows:
        assert [m["role"] for m in row["messages"]][:2] == ["system", "user"]
        assert row["metadata"]["teacher"] == "simulated"
    assert "out.jsonl: 3 rows" in first.stdout

    num_asked = len(provider.ledger)
    code, output = generate(prompts.name, "-o", "out.jsonl", "-n", "3", *options)
    assert code == 0, output
    # Two of those three rows, in another format, are in the journal as well.
    code, output = generate(prompts.name, "-o", "out.parquet", "-e", "0,2", *options)
    assert code == 0, output
    assert len(provider.ledger) == num_asked
    assert rows_of(tmp_path / "out.jsonl") == rows
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 2


def test_a_model_of_openais_needs_no_address_and_a_name_that_may_be_local_is_refused(
    shell, monkeypatch: pytest.MonkeyPatch, prompts: Path, provider: SimulatedProvider
) -> None:
    seen: list[str] = []
    known = provider.script
    provider.script = lambda request: seen.append(request.authorization) or known(request)
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
    monkeypatch.setenv("OPENAI_API_KEY", "openai-key")
    command = ["generate", prompts.name, "-n", "2", "--set", "tracking.enabled=false", "--set", "teacher.client=openai"]
    code, output = shell(*command, "-o", "out.jsonl", "-m", "gpt-5-mini")
    assert code == 0, output
    assert set(seen) == {"Bearer openai-key"}
    num_asked = len(seen)
    assert {body["model"] for body in provider.requests} == {"gpt-5-mini"}
    code, output = shell(*command, "-m", "Qwen/Qwen3-8B")
    assert (code, "which-endpoint" in output) == (2, True), output
    assert len(seen) == num_asked


def without_null(messages: list[Any]) -> list[dict[str, Any]]:
    """Return the messages without the null content beside calls, which rnow has no word for."""
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


@pytest.mark.slow
def test_generate_offers_the_functions_of_a_tools_file_and_export_hands_them_on(
    generate, shell, tmp_path: Path, provider: SimulatedProvider
) -> None:
    (tmp_path / "prompts.txt").write_text("How warm is it in Rome?\n\nHow warm is it in Oslo?\n")
    (tmp_path / "tools.py").write_text(TOOLS)

    def script(request: ReceivedRequest) -> Reply:
        last = request.body["messages"][-1]
        if last["role"] == "tool":
            return Reply(completion(f"It is {last['content']}."))
        city = last["content"].removesuffix("?").split()[-1]
        return Reply(completion(tool_calls=[("warmth", json.dumps({"city": city}))]))

    provider.script = script
    code, output = generate("prompts.txt", "-o", "out.jsonl", "-t", "tools.py")
    assert code == 0, output
    rows = rows_of(tmp_path / "out.jsonl")
    assert {row["messages"][-1]["content"] for row in rows} == {"It is 4 degrees."}
    assert {schema["function"]["name"] for row in rows for schema in row["tools"]} == {"warmth"}
    assert {row["metadata"]["teacher"] for row in rows} == {"simulated"}
    for form in ("openai", "rnow", "sharegpt"):
        assert shell("export", "-o", f"{form}.jsonl", "--to", form) == (0, f"{form}.jsonl: 2 rows\n")
    num_asked = len(provider.ledger)
    for form in ("openai", "rnow", "sharegpt"):
        code, output = generate("prompts.txt", "-o", "again.jsonl", "--to", form, "-t", "tools.py")
        assert (code, "again.jsonl: 2 rows" in output) == (0, True), output
        assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / f"{form}.jsonl").read_bytes()
    assert len(provider.ledger) == num_asked
    conversations = [row["messages"] for row in rows]
    assert [row["messages"] for row in read_jsonl(tmp_path / "openai.jsonl")] == conversations
    # What goes out as rnow's comes back with the teacher's name and its turns.
    code, output = shell("convert", "rnow.jsonl", "-o", "back", "-t", "tools.py")
    assert (code, "2 trajectories" in output) == (0, True)
    back = list(read_trajectories(tmp_path / "back/trajectories.jsonl"))
    assert [without_null(one.messages) for one in back] == [without_null(messages) for messages in conversations]
    assert {(one.model, len(one.turns)) for one in back} == {("simulated", 2)}
    # The command that convert names makes a dataset of it and asks nobody.
    command = output.replace("\\\n", "").partition("  stillhouse ")[2].split()
    code, output = shell(*command, "--set", "tracking.enabled=false")
    assert (code, "train.jsonl: 2 rows" in output, len(provider.ledger)) == (0, True, num_asked), output
    made = [without_null(row["messages"]) for row in rows_of(tmp_path / "train.jsonl")]
    assert made == [without_null(messages) for messages in conversations]
    code, output = shell("export", "latest", "--push", "somebody/something")
    assert (code, "HF_TOKEN" in output) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "out.txt"], "expected a name ending in .jsonl or .parquet, or a form by --to"),
        (["--to", "rnow"], "name that by --output"),
        (["-o", ".", "--to", "rnow"], "is a folder; the form rnow is one file"),
        (["-o", ".", "--to", "hf"], "is there already"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_asked(
    generate: Shell, prompts: Path, provider: SimulatedProvider, options: list[str], message: str
) -> None:
    code, output = generate(prompts.name, *options)
    assert (code, message in output) == (2, True), output
    assert provider.ledger == []


def test_a_stage_that_fails_is_told_in_one_line(generate: Shell, prompts: Path, provider: SimulatedProvider) -> None:
    known = provider.script
    provider.script = lambda request: known(request) if request.index % 2 else error(400, "not today")
    # One at a time, so that an answer comes before the refusals look alike.
    code, output = generate(prompts.name, "-o", "out.jsonl", "-c", "1")
    assert code == 1
    (error_line,) = [line for line in output.splitlines() if line.startswith("error[")]
    assert "not today" in output
    assert "failure_budget" in error_line


def test_what_cannot_be_reached_or_read_is_named(
    generate, tmp_path: Path, prompts: Path, provider: SimulatedProvider, unused_url: str
) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    nobody = generate(prompts.name, "-n", "2", "--set", "runtime.max_attempts=1", url=unused_url)
    no_key = generate(prompts.name, "-n", "2", key="NO_KEY")
    no_prompts = generate("empty.jsonl")
    named = (unused_url, "NO_KEY is not set", "empty.jsonl")
    for (code, output), name in zip((nobody, no_key, no_prompts), named, strict=True):
        assert code == 1
        assert "error[" in output
        assert name in output
    assert provider.ledger == []


def test_where_no_row_is_kept_the_message_says_where_they_went(
    generate, tmp_path: Path, prompts: Path, provider: SimulatedProvider
) -> None:
    provider.script = lambda _asked: Reply(completion("I do not know"))
    code, output = generate(prompts.name, "-o", "out.jsonl")
    assert code == 1
    assert "error[" in output
    assert "wrong" in output
    assert output.count("teacher 'simulated' answered 'I do not know'; expected '") == 2
    assert "stillhouse view" in output
    assert not (tmp_path / "out.jsonl").exists()


def test_questions_of_a_json_file_are_asked_and_the_log_says_so(
    generate: Shell, tmp_path: Path, provider: SimulatedProvider
) -> None:
    def script(request: ReceivedRequest) -> Reply:
        return Reply(completion(str(int(request.body["messages"][-1]["content"].split()[2]) + 1)))

    provider.script = script
    questions = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(2)]
    (tmp_path / "rows.json").write_text(json.dumps(questions, indent=1))
    code, output = generate("rows.json", "-o", "out.jsonl")
    assert (code, "the prompt is their `question`" in output) == (0, True), output
    rows = rows_of(tmp_path / "out.jsonl")
    assert {(row["messages"][0]["content"], row["metadata"]["expected_answer"]) for row in rows} == {
        (row["question"], row["answer"]) for row in questions
    }


def test_a_malformed_row_is_left_out_and_said_so(generate, tmp_path: Path, prompts: Path) -> None:
    prompts.write_text(prompts.read_text() + '{"prompt": "torn\n')
    code, output = generate(prompts.name, "-o", "out.jsonl", "--set", "runtime.failure_budget=0.5")
    assert code == 0, output
    assert "warning: row left out: " in output
    assert "line 9" in output
    assert len(rows_of(tmp_path / "out.jsonl")) == 8
