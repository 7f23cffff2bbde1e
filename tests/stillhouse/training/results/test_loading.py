import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import torch

from stillhouse.processes.guarded_process import GuardedProcess
from stillhouse.serving.models import load_model

Rows = list[list[int]]
_LOGITS = """
import json, sys, torch
with torch.no_grad():
    logits = model(input_ids=torch.tensor([{row}])).logits[0]
print("LOGITS", json.dumps(logits.tolist()))
assert not any(name.partition(".")[0] == "stillhouse" for name in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", [".", "merged"])
def test_the_code_in_the_card_loads_what_stillhouse_serves(
    make_student: Callable[..., Path], rows: Rows, part: str
) -> None:
    folder = make_student(merge=True, use_dora=True) / part
    (program,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    code = program + _LOGITS.format(row=rows[0])
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOGITS ")]
    seen = torch.tensor(json.loads(line.removeprefix("LOGITS ")))
    served = load_model(str(folder), device="cpu")
    torch.testing.assert_close(seen, served(torch.tensor([rows[0]])).logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_adapter_and_merged_weights_answer_the_same_over_http(make_student: Callable[..., Path]) -> None:
    folder = make_student(merge=True)
    question = [{"role": "user", "content": "How much are 3 kettles at 12 coins?"}]
    answers = []
    for part in (folder, folder / "merged"):
        args = [str(part), "--name", "student", "--device", "cpu", "--num-threads", "1"]
        with GuardedProcess("stillhouse.serving", args) as server:
            url = json.loads(server.lines.readline())["url"]
            body = {"model": "student", "messages": question, "temperature": 0.0, "max_tokens": 12}
            answer = httpx.post(f"{url}/chat/completions", json=body, timeout=60.0).raise_for_status().json()
            answers.append((answer["choices"][0]["message"], answer["usage"]["completion_tokens"]))
    assert answers[0] == answers[1]
    assert answers[0][1] > 0
