"""The shell as its users meet it: real subprocesses, exit codes, and what is printed when something is wrong."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from benchmarks.simulated_provider import Asked, Reply, SimulatedProvider, completion, error
from flows.cli import main
from stillhouse.store.records import read_jsonl, read_trajectories
from stillhouse.store.runs import RunRecord, write_run_record

Cli = Callable[..., subprocess.CompletedProcess[str]]
VERBS = [
    *("distill", "generate", "sft", "on-policy", "evaluate"),
    *("init", "view", "convert", "export", "publish", "serve", "doctor"),
]
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
QUICK = ["--set", "tracking.enabled=false"]


@pytest.fixture
def prompts(tmp_path: Path, embedded_rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in embedded_rows))
    return path


@pytest.fixture
def provider(knowing_teacher: Callable[[Asked], Reply]) -> Iterator[SimulatedProvider]:
    with SimulatedProvider(knowing_teacher) as provider:
        yield provider


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Calls the console script's entry point in this process: what ends before a flow starts needs no new one."""

    def run(*args: str) -> tuple[int, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["stillhouse", *args])
        monkeypatch.setenv("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out + captured.err

    return run


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


def _assert_no_traceback(done: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in done.stdout + done.stderr, done.stderr


def test_help_answers_at_once_and_names_every_verb(cli: Cli, tmp_path: Path) -> None:
    took = []
    for _ in range(3):  # the best of three: other work on the machine is not its fault
        started = time.monotonic()
        done = cli("--help", cwd=tmp_path)
        took.append(time.monotonic() - started)
    assert done.returncode == 0
    assert all(f" {verb} " in done.stdout for verb in VERBS)
    assert min(took) < 2.0, took


def test_help_of_every_verb_imports_nothing_heavy() -> None:
    program = f"""
import sys
from flows.cli import main
from stillhouse.store.records import read_jsonl, read_trajectories
from stillhouse.store.runs import RunRecord, write_run_record
for arguments in {[[], *([verb] for verb in VERBS)]!r}:
    sys.argv = ["stillhouse", *arguments, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (arguments, end.code)
heavy = {{"torch", "transformers", "prefect", "mlflow", "openai", "pyarrow", "pandas", "fastapi"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage") == 1 + len(VERBS)


def test_the_version_is_that_of_the_package(cli: Cli, tmp_path: Path) -> None:
    done = cli("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"stillhouse {version('stillhouse')}\n")


WRONG = "sft:\n  lerning_rate: 1.0e-4\n  num_epochs: 0\n"
EXPLAINED = [
    "wrong.yaml: sft.lerning_rate = 0.0001: unknown key; did you mean 'learning_rate'?",
    "error: wrong.yaml: sft.num_epochs = 0: input should be greater than or equal to 1",
]


def test_a_wrong_config_is_explained_by_file_key_value_and_expectation(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text(WRONG)
    done = cli("distill", "wrong.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert sorted(done.stderr.splitlines()) == sorted(EXPLAINED)
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == [tmp_path / "wrong.yaml"]


@pytest.mark.parametrize("verb", ["generate", "sft", "on-policy", "evaluate", "doctor"])
def test_every_verb_refuses_a_wrong_config_alike(
    shell: Callable[..., tuple[int, str]], tmp_path: Path, verb: str
) -> None:
    (tmp_path / "wrong.yaml").write_text(WRONG)
    code, said = shell(verb, "wrong.yaml")
    assert code == 2
    assert sorted(said.splitlines()) == sorted(EXPLAINED)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["distill", "absent.yaml"], "absent.yaml: cannot be read"),
        (["distill", "good.yaml", "--set", "sft.num_epochs=many"], "sft.num_epochs = 'many'"),
        (["distill", "good.yaml", "--set", "num_epochs"], "expected section.key=value"),
        (["doctor", "--set", "sft.epochs=2"], "sft.epochs = 2: unknown key"),
        (["generate", "good.txt", "-o", "out.csv"], "out.csv: expected a name ending in .jsonl or .parquet"),
        (["generate", "good.txt", "-e", "first"], "expected row numbers from 0"),
        (["generate", "good.txt", "-n", "0"], "prompts.max_prompts = 0"),
        (["convert", "good.jsonl"], "Missing option"),
        (["convert", "good.jsonl", "-o", "good.txt"], "--output good.txt is a file"),
        (["convert", "good.jsonl", "-o", "out", "--from", "distilabel", "-t", "absent.py"], "absent.py"),
        (
            ["convert", "good.yaml", "-o", "out", "--from", "rnow-config"],
            "--from rnow-config: good.yaml has the keys sft",
        ),
        (["convert", "good.jsonl", "-o", "out", "--from", "csv"], "csv"),
        (["export"], "name where the rows go"),
        (["export", "-o", "out.jsonl", "--private"], "--private is for a repository"),
        (["export", "-o", "out.jsonl", "--to", "csv"], "csv"),
        (["publish"], "name where the student goes"),
        (["publish", "-o", "out", "--private"], "--private is for a repository"),
        (["serve", "./absent"], "'./absent' is not a folder"),
        (["serve", "embedded:student", "--dtype", "int4"], "int4"),
        (["serve", "embedded:student", "--api-key-env", "ABSENT_KEY"], "ABSENT_KEY"),
        (["distil"], "No such command"),
    ],
)
def test_wrong_usage_ends_with_code_2_before_anything_starts(
    shell: Callable[..., tuple[int, str]], tmp_path: Path, args: list[str], message: str
) -> None:
    (tmp_path / "good.yaml").write_text("sft:\n  num_epochs: 1\n")
    (tmp_path / "good.txt").write_text("What is 2 + 2?\n")
    (tmp_path / "good.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    code, said = shell(*args)
    assert code == 2
    assert message in said
    assert "Traceback" not in said
    assert not (tmp_path / "runs").exists()


def test_generate_writes_rows_and_asks_nothing_again(
    cli: Cli, tmp_path: Path, prompts: Path, provider: SimulatedProvider
) -> None:
    # The key is found in .env alone.
    (tmp_path / ".env").write_text("KEY_OF_DOTENV=from-dotenv\n")
    authorizations = set()
    known = provider.script

    def script(asked: Asked) -> Reply:
        authorizations.add(asked.authorization)
        return known(asked)

    provider.script = script
    options = ["--base-url", provider.url, "--api-key-env", "KEY_OF_DOTENV", "-m", "simulated", "-c", "2", "-t", "none"]
    options += ["-s", "Answer by a number.", "--temperature", "0.5", "--max-tokens", "99", "--max-turns", "3"]
    options += QUICK
    first = cli("generate", prompts.name, "-o", "out.jsonl", "-n", "3", *options, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    _assert_no_traceback(first)
    assert authorizations == {"Bearer from-dotenv"}
    sent = provider.requests[0]
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("simulated", 0.5, 99)
    assert sent["messages"][0] == {"role": "system", "content": "Answer by a number."}
    assert "tools" not in sent
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    for row in rows:
        assert [m["role"] for m in row["messages"]][:2] == ["system", "user"]
        assert row["metadata"]["teacher"] == "simulated"
    assert "out.jsonl: 3 rows" in first.stdout

    num_asked = len(provider.ledger)
    again = cli("generate", prompts.name, "-o", "out.jsonl", "-n", "3", *options, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    # Two rows of those three, into another format, are at hand as well.
    two = cli("generate", prompts.name, "-o", "out.parquet", "-e", "0,2", *options, cwd=tmp_path)
    assert two.returncode == 0, two.stderr
    assert len(provider.ledger) == num_asked
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == rows
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 2


def test_generate_offers_the_functions_of_a_tools_file_and_export_hands_them_on(
    cli: Cli, shell: Callable[..., tuple[int, str]], tmp_path: Path, provider: SimulatedProvider
) -> None:
    (tmp_path / "prompts.txt").write_text("How warm is it in Rome?\n\nHow warm is it in Oslo?\n")
    (tmp_path / "tools.py").write_text(TOOLS)

    def script(asked: Asked) -> Reply:
        last = asked.body["messages"][-1]
        if last["role"] == "tool":
            return Reply(completion(f"It is {last['content']}."))
        city = last["content"].removesuffix("?").split()[-1]
        return Reply(completion(tool_calls=[("warmth", json.dumps({"city": city}))]))

    provider.script = script
    options = ["--base-url", provider.url, "--api-key-env", "STILLHOUSE_TEST_KEY", "-m", "m", "-t", "tools.py", *QUICK]
    done = cli("generate", "prompts.txt", "-o", "out.jsonl", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {row["messages"][-1]["content"] for row in rows} == {"It is 4 degrees."}
    assert {schema["function"]["name"] for row in rows for schema in row["tools"]} == {"warmth"}
    assert {row["metadata"]["teacher"] for row in rows} == {"m"}
    for form in ("openai", "rnow", "sharegpt"):
        assert shell("export", "-o", f"{form}.jsonl", "--to", form) == (0, f"{form}.jsonl: 2 rows\n")
    assert [row["messages"] for row in read_jsonl(tmp_path / "openai.jsonl")] == [row["messages"] for row in rows]
    # What goes out as rnow's comes back with the teacher's name and its turns.
    code, said = shell("convert", "rnow.jsonl", "-o", "back", "-t", "tools.py")
    assert (code, "2 trajectories" in said) == (0, True)
    back = list(read_trajectories(tmp_path / "back/trajectories.jsonl"))
    assert [(one.model, len(one.turns), one.messages) for one in back] == [("m", 2, row["messages"]) for row in rows]
    code, said = shell("export", "latest", "--push", "somebody/something")
    assert (code, "HF_TOKEN" in said) == (2, True)


def test_a_stage_that_fails_is_told_in_one_line_and_keeps_what_finished(
    cli: Cli, tmp_path: Path, prompts: Path, provider: SimulatedProvider
) -> None:
    known = provider.script
    provider.script = lambda asked: known(asked) if asked.index % 2 else error(400, "not today")
    options = ["--base-url", provider.url, "--api-key-env", "STILLHOUSE_TEST_KEY", "-m", "simulated", *QUICK]
    done = cli("generate", prompts.name, "-o", "out.jsonl", *options, cwd=tmp_path)
    assert done.returncode == 1
    _assert_no_traceback(done)
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "not today" in done.stderr
    assert "failure_budget" in told
    # What finished was paid for once: only the others are asked when the cause is mended.
    num_billed = provider.num_billed
    provider.script = known
    again = cli("generate", prompts.name, "-o", "out.jsonl", *options, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert max(provider.billed.values()) == 1
    assert num_billed < provider.num_billed
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 8


def test_an_endpoint_that_cannot_be_used_is_named_with_the_cause(
    cli: Cli, tmp_path: Path, prompts: Path, provider: SimulatedProvider
) -> None:
    nobody = _free_address()
    options = ["-m", "simulated", "-n", "2", *QUICK]
    once = ["--set", "runtime.max_attempts=1"]
    unreachable = cli(
        "generate",
        prompts.name,
        *options,
        *once,
        "--base-url",
        nobody,
        "--api-key-env",
        "STILLHOUSE_TEST_KEY",
        cwd=tmp_path,
    )
    assert unreachable.returncode == 1
    assert nobody in unreachable.stderr
    missing = cli(
        "generate", prompts.name, *options, "--base-url", provider.url, "--api-key-env", "NO_KEY", cwd=tmp_path
    )
    assert missing.returncode == 1
    assert "NO_KEY is not set" in missing.stderr
    assert provider.ledger == []
    provider.script = lambda asked: error(401, "Incorrect API key provided", code="invalid_api_key")
    refused = cli(
        "generate",
        prompts.name,
        *options,
        "--base-url",
        provider.url,
        "--api-key-env",
        "BAD_KEY",
        cwd=tmp_path,
        env={"BAD_KEY": "not-this-one"},
    )
    assert refused.returncode == 1
    assert "BAD_KEY" in refused.stderr
    assert provider.url in refused.stderr
    assert len(provider.ledger) <= 2
    for done in (unreachable, missing, refused):
        _assert_no_traceback(done)
        assert "not-this-one" not in done.stdout + done.stderr


def test_input_that_cannot_be_used_is_explained(
    cli: Cli, tmp_path: Path, prompts: Path, provider: SimulatedProvider
) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    empty = cli("generate", "empty.jsonl", *QUICK, cwd=tmp_path)
    assert empty.returncode == 1
    assert "empty.jsonl" in empty.stderr
    absent = cli("generate", "absent.jsonl", *QUICK, cwd=tmp_path)
    assert absent.returncode == 1
    assert "absent.jsonl" in absent.stderr
    # A teacher that is always wrong leaves no row; the message shows where they went.
    provider.script = lambda _asked: Reply(completion("I do not know"))
    options = ["--base-url", provider.url, "--api-key-env", "STILLHOUSE_TEST_KEY", "-m", "m", *QUICK]
    wrong = cli("generate", prompts.name, "-o", "out.jsonl", *options, cwd=tmp_path)
    assert wrong.returncode == 1
    assert "wrong" in wrong.stderr
    assert "8" in wrong.stderr
    assert not (tmp_path / "out.jsonl").exists()
    for done in (empty, absent, wrong):
        _assert_no_traceback(done)
        assert "error: " in done.stderr


def test_a_malformed_row_is_left_out_and_said_so(
    cli: Cli, tmp_path: Path, prompts: Path, provider: SimulatedProvider
) -> None:
    prompts.write_text(prompts.read_text() + '{"prompt": "torn\n')
    options = ["--base-url", provider.url, "--api-key-env", "STILLHOUSE_TEST_KEY", "-m", "m", *QUICK]
    options += ["--set", "prompts.failure_budget=0.5"]
    done = cli("generate", prompts.name, "-o", "out.jsonl", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning: row left out: " in done.stderr
    assert "line 9" in done.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 8


def test_convert_says_what_it_read_wrote_and_left(shell: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "What is 2 + 2?"}]
    rollout = {"completed": True, "success": True, "total_reward": 1.0}
    rollout["conversation"] = [*asked, {"role": "assistant", "content": "4"}]
    folder = tmp_path / "rollouts" / "rollout_1"
    folder.mkdir(parents=True)
    (folder / "sample_1.json").write_text(json.dumps(rollout))
    (folder / "sample_2.json").write_text(json.dumps(rollout | {"completed": "error", "error": "HTTP 500"}))
    (folder / "sample_3.json").write_text(json.dumps(rollout)[:40])
    code, said = shell("convert", "rollouts", "-o", "out", "--teacher", "gpt-5.2")
    assert code == 0
    assert "rollouts as rnow-rollouts: 3 rows in 3 files, 2 left out" in said
    assert "out/trajectories.jsonl: 1 trajectory" in said
    assert "sample_2.json: error = HTTP 500" in said
    assert "sample_3.json: expected a JSON object" in said
    assert [row["model"] for row in read_jsonl(tmp_path / "out/trajectories.jsonl")] == ["gpt-5.2"]
    code, said = shell("convert", "rollouts", "-o", "out", "--include-failed")
    assert (code, "2 trajectories" in said) == (0, True)
    code, said = shell("convert", "rollouts/rollout_1/sample_2.json", "-o", "out")
    assert (code, "none of 1 rows of rnow-rollouts could be converted" in said) == (1, True)
    assert len(list(read_jsonl(tmp_path / "out/trajectories.jsonl"))) == 2  # what stood there stands


def test_export_explains_what_is_no_dataset(shell: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, said = shell("export", "empty", "-o", "out.jsonl")
    assert (code, "expected the folder of a dataset, with train.parquet" in said) == (1, True)
    code, said = shell("export", "-o", "out.jsonl")
    assert (code, "No run has begun in this store" in said) == (1, True)
    record = RunRecord("generate", "2026-01-01T00:00:00+00:00", None, None, "quiet-still", {"rollouts": []})
    write_run_record(tmp_path / "runs/reports/20260101-000000", record)
    code, said = shell("export", "quiet-still", "-o", "out.jsonl")
    assert (code, "it made no dataset; its stages: rollouts" in said) == (1, True)
    write_run_record(tmp_path / "runs/reports/20260101-000000", replace(record, artifacts={"dataset": ["gone"]}))
    code, said = shell("export", "runs/reports/20260101-000000", "-o", "out.jsonl")
    assert (code, "its dataset gone is gone" in said) == (1, True)
    assert not (tmp_path / "out.jsonl").exists()


def test_doctor_says_what_works_and_what_does_not(cli: Cli, tmp_path: Path) -> None:
    well = cli("doctor", cwd=tmp_path)
    assert well.returncode == 0, well.stdout
    lines = well.stdout.splitlines()
    assert all(line.startswith(("ok", "absent")) for line in lines)
    assert {"torch", "device", "store", "teacher", "student", "Prefect"} <= {line.split()[1] for line in lines}
    nobody = _free_address()
    ill = cli("doctor", "--set", f"teacher.base_url={nobody}", "--set", "runtime.api_key_env=NO_KEY", cwd=tmp_path)
    assert ill.returncode == 1
    failed = [line for line in ill.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 2
    assert "NO_KEY is not set" in failed[0]
    assert nobody in failed[1]
    _assert_no_traceback(ill)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_and_stops_when_told(tmp_path: Path, stop: signal.Signals) -> None:
    command = [Path(sys.executable).parent / "stillhouse", "serve", "embedded:teacher", "--port", "0"]
    command += ["--name", "sage", "--api-key-env", "STILLHOUSE_TEST_KEY", "--max-pending", "4", "--device", "cpu"]
    with subprocess.Popen(list(map(str, command)), cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["model"] == "sage"
        body = {"model": "sage", "messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 8}
        url = f"{said['url']}/chat/completions"
        assert httpx.post(url, json=body).status_code == 401
        headers = {"Authorization": f"Bearer {os.environ['STILLHOUSE_TEST_KEY']}"}
        answer = httpx.post(url, json=body, headers=headers, timeout=60)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] > 0
        process.send_signal(stop)
        assert process.wait(20) in {0, -stop}
