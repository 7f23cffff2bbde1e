"""Teachers that are connected to the fake server."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.config import OnPolicyTeacher, RuntimeConfig
from stillhouse.inference.scoring.scores import SequenceScores
from stillhouse.training.on_policy.teachers.served.connect import connect
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.types import Sample

Requests = list[Sample]
Scores = list[list[float]]


class Far:
    """The fake server, and teachers connected to it that share a ledger."""

    def __init__(self, server: Any, tokenizer: PreTrainedTokenizerBase, work_dir: Path) -> None:
        self.server, self._tokenizer, self._work_dir = server, tokenizer, work_dir

    def connect(
        self, kind: str = "vllm", temperature: float = 1.0, runtime: RuntimeConfig | None = None, **settings: object
    ) -> ServedTeacher:
        fields = {"name": "far", "kind": kind, "model": "big", "base_url": self.server.url, **settings}
        teacher = OnPolicyTeacher.model_validate(fields)
        runtime = runtime or RuntimeConfig(store=str(self._work_dir))
        return connect(teacher, 1.0, temperature, self._tokenizer, None, runtime, max_outage_s=0.0)

    @staticmethod
    def logprobs(scores: "Future[list[SequenceScores]]") -> Scores:
        return [scored.logprobs for scored in scores.result(120)]

    def score(self, requests: Requests, kind: str = "vllm", temperature: float = 1.0, **settings: object) -> Scores:
        teacher = self.connect(kind, temperature, **settings)
        try:
            return self.logprobs(teacher.start(requests))
        finally:
            teacher.close()

    def truths(self, requests: Requests, temperature: float = 1.0) -> Scores:
        return [
            [
                self.server.truth(request.token_ids, place, temperature)
                for place, is_sampled in enumerate(request.loss_mask)
                if is_sampled
            ]
            for request in requests
        ]


@pytest.fixture
def far(scoring_server: Any, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Far:
    return Far(scoring_server, tokenizer, tmp_path)
