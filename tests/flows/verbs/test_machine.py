"""`stillhouse serve` and `stillhouse doctor` as processes of their own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from stillhouse.inference import Journal
from stillhouse.inference.journal.journal import JOURNAL_FILE
from stillhouse.store import digest


def test_doctor_says_what_works_and_what_does_not(cli, shell, tmp_path: Path, unused_url: str) -> None:
    well = cli("doctor", cwd=tmp_path)
    assert well.returncode == 0, well.stdout
    lines = well.stdout.splitlines()
    assert all(line.startswith(("ok", "absent")) for line in lines)
    assert {"torch", "device", "store", "teacher", "student", "Prefect"} <= {line.split()[1] for line in lines}
    code, text = shell("doctor", "--set", f"teacher.base_url={unused_url}", "--set", "runtime.api_key_env=NO_KEY")
    assert code == 1
    failed = [line for line in text.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 2
    assert "NO_KEY is not set" in failed[0]
    assert unused_url in failed[1]
    assert "Traceback" not in text


def test_doctor_checks_a_store_and_names_the_remedy_for_its_journal(cli, shell, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Journal(store / JOURNAL_FILE) as journal:
        for number in range(30):
            asyncio.run(journal.put_trajectory(digest(number), b"answer" * 200))
    choice = ("--set", f"runtime.store={store}")
    code, text = shell("doctor", "--store", *choice)
    assert code == 0, text
    data = (store / JOURNAL_FILE).read_bytes()
    (store / JOURNAL_FILE).write_bytes(bytes(4096) + data[4096:])
    ill = cli("doctor", "--store", *choice, cwd=tmp_path)
    assert (ill.returncode, ill.stderr) == (1, "")
    (failed,) = [line for line in ill.stdout.splitlines() if line.startswith("FAILED")]
    assert f"`sqlite3 {store / JOURNAL_FILE} .recover | sqlite3 " in failed


@pytest.mark.parametrize("stop", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_serve_answers_and_stops_when_told(tmp_path: Path, stop: signal.Signals) -> None:
    command = [Path(sys.executable).parent / "stillhouse", "serve", "embedded:teacher", "--port", "0"]
    command += ["--name", "sage", "--api-key-env", "STILLHOUSE_TEST_KEY", "--max-pending", "4", "--device", "cpu"]
    with subprocess.Popen(list(map(str, command)), cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        assert started["model"] == "sage"
        body = {"model": "sage", "messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 8}
        url = f"{started['url']}/chat/completions"
        assert httpx.post(url, json=body).status_code == 401
        headers = {"Authorization": f"Bearer {os.environ['STILLHOUSE_TEST_KEY']}"}
        answer = httpx.post(url, json=body, headers=headers, timeout=60)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] > 0
        process.send_signal(stop)
        assert process.wait(120) in {0, -stop}


@pytest.mark.slow
def test_doctor_says_whether_a_pair_fits(cli, tmp_path: Path) -> None:
    config = Path(__file__).resolve().parents[3] / "configs" / "smoke.yaml"
    choice = ("--pair", "--prompts", "4", "--set", f"runtime.store={tmp_path / 'store'}")
    well = cli("doctor", config, *choice, cwd=tmp_path)
    assert well.returncode == 0, well.stdout + well.stderr
    *findings, empty, verdict = well.stdout.splitlines()
    assert (empty, verdict) == ("", "go")
    assert all(line.startswith(("fine", "unknown")) for line in findings)
    assert any(line.startswith("fine     cost: training") for line in findings)
    swapped = ("--set", "student.model=embedded:teacher", "--set", "teacher.model=embedded:student")
    ill = cli("doctor", config, *choice, *swapped, "--prompts", "12", cwd=tmp_path)
    assert ill.returncode == 1, ill.stdout + ill.stderr
    assert ill.stdout.splitlines()[-1] == "no: teacher: better"
    assert cli("doctor", config, "--pair", "--store", cwd=tmp_path).returncode == 2
