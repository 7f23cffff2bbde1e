import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

# Without torch, which takes seconds to import.
SCORE = """
import sys
from contextlib import ExitStack
from pathlib import Path
from stillhouse.inference.model_server import ModelServer
from stillhouse.inference.rate_limit import Caps, Controller, RateControl
from stillhouse.inference.scoring.completions_api import VllmApi
from stillhouse.inference.scoring.ledger import ScoreLedger
from stillhouse.inference.scoring.scorer import Scorer
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.types import Sample


ledger = ScoreLedger(Path(sys.argv[2]), top_k=3)
server = ModelServer(sys.argv[1], None, 10.0)
controller = Controller(RateControl(2, Caps(2)))
scorer = Scorer(server, VllmApi("big", top_k=3), ledger, controller, batch_tokens=40, temperature=1.0)
teacher = ServedTeacher("far", 1.0, None, scorer, server, ExitStack())
requests = [Sample([number + 3] * 20, [False] + [True] * 19, "p") for number in range(40)]
print(sum(sum(scores.logprobs) for scores in teacher.start(requests).result()), flush=True)
teacher.close()
server.close()
assert "torch" not in sys.modules
"""
IN_FLIGHT = 2 * 2  # sequences of a request, requests at once


def test_a_process_that_is_killed_while_it_scores_asks_for_nothing_twice(scoring_server: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCORE, scoring_server.url, str(tmp_path / "scores")]
    is_killed, is_half_done = threading.Event(), threading.Event()

    def hold(answer: Any) -> Any:
        if len(scoring_server.asked) >= 15:
            is_half_done.set()
            is_killed.wait()
        return answer

    scoring_server.spoil = hold
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        is_half_done.wait()
        process.kill()
    assert len(scoring_server.asked) < 40
    is_killed.set()
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    sequences = [[number + 3] * 20 for number in range(40)]
    expected = sum(scoring_server.truth(ids, place) for ids in sequences for place in range(1, 20))
    assert float(answer) == pytest.approx(expected)
    assert sorted({ids[0] for ids in scoring_server.asked}) == [ids[0] for ids in sequences]
    # What was under way when it was killed, its answer reached nobody.
    assert len(scoring_server.asked) <= 40 + IN_FLIGHT
