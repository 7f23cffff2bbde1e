import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stillhouse.errors import TrainingError
from stillhouse.inference.scoring.ledger import LEDGER, ScoreLedger
from stillhouse.progress.state import NoProgress
from stillhouse.serving.models import load_model
from stillhouse.store.fingerprint import file_sha256
from stillhouse.training.job import TrainJob
from stillhouse.training.run_job import run_job
from stillhouse.training.scoring.rows import SCORES_FILE
from stillhouse.training.sft.tokens import Samples
from stillhouse.types import JsonObject
from tests.stillhouse.training.trainings import logged

NewJob = Callable[..., TrainJob]
KL = {"loss": "kl", "top_k": 8, "num_epochs": 6, "batch_size": 4, "learning_rate": 2e-3, "log_every_steps": 1}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": f"What is {n} + 1?"}, {"role": "assistant", "content": f"{n + 1}"}]}
        for n in range(12)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def new_job(new_sft_job: NewJob, rows: Path, tmp_path: Path) -> NewJob:
    def make(method: str = "scores", name: str = "scores", **changes: Any) -> TrainJob:
        sources = [{"path": str(rows), "validation_share": 0.3}]
        fields = {"student_ref": "embedded:student", "teacher_ref": "embedded:teacher", "dataset_folder": None}
        fields |= {name: changes.pop(name) for name in ("scores_folder", "student_ref") if name in changes}
        sft = {**KL, "dataset_weight": 0.0, "sources": sources, **changes}
        job = new_sft_job(tmp_path / name, sft, method=method, **fields)
        return job.model_copy(update={"runtime": job.runtime.model_copy(update={"store": str(tmp_path / "store")})})

    return make


def scored(job: TrainJob) -> JsonObject:
    facts = run_job(job, NoProgress())
    assert (job.output_dir / SCORES_FILE).is_file()
    return facts


def samples_of(job: TrainJob) -> list[Any]:
    [folder] = (job.work_dir / "tokens").iterdir()
    return [sample for split in ("train", "validation") for sample in Samples(folder / f"{split}.arrow")]


def test_every_row_has_the_teachers_most_probable_tokens_at_its_targets(new_job: NewJob):
    job = new_job()
    facts = scored(job)
    samples, ledger = samples_of(job), ScoreLedger(job.output_dir, top_k=8)
    found = ledger.find([ledger.key(sample) for sample in samples])
    assert facts["rows"] == len(samples) == len(found) == 12
    model = load_model("embedded:teacher", device="cpu")
    nll = []
    for sample in samples:
        logprobs = model(torch.tensor([sample.token_ids])).logits[0].log_softmax(-1)
        places = [place for place, is_target in enumerate(sample.loss_mask) if is_target]
        scores = found[ledger.key(sample)]
        known = [float(logprobs[place - 1, sample.token_ids[place]]) for place in places]
        assert scores.logprobs == pytest.approx(known, abs=1e-4)
        assert scores.top is not None
        best = logprobs[[place - 1 for place in places]].topk(8)
        assert scores.top.logprobs_NK == pytest.approx(best.values.numpy(), rel=1e-3, abs=1e-3)
        nll += known
    assert facts["teacher_nll"] == pytest.approx(-np.mean(nll), abs=1e-4)
    assert facts["scored_tokens"] == len(nll)


def test_what_was_scored_is_not_scored_again_and_gives_the_same_file(new_job: NewJob):
    first, again = new_job(name="first"), new_job(name="again")
    scored(first)
    [file] = Path(first.runtime.store).glob(f"{LEDGER}/*/*.arrows")
    before = file.read_bytes()
    scored(again)
    assert list(file.parent.glob("*.arrows")) == [file]
    assert file.read_bytes() == before
    assert file_sha256(first.output_dir / SCORES_FILE) == file_sha256(again.output_dir / SCORES_FILE)


def test_a_server_scores_rows_as_the_model_itself_does(new_job: NewJob, serve: Callable[[str, str], str]):
    served = {"name": "far", "kind": "vllm", "model": "big", "base_url": serve("embedded:teacher", "big")}
    near, far = new_job(name="near"), new_job(name="far", teachers=[served])
    facts = [scored(job) for job in (near, far)]
    assert facts[0]["teacher_nll"] == pytest.approx(facts[1]["teacher_nll"], abs=1e-4)
    ledgers = [ScoreLedger(job.output_dir, top_k=8) for job in (near, far)]
    keys = [ScoreLedger.key(sample) for sample in samples_of(near)]
    for one, other in zip(*(ledger.find(keys).values() for ledger in ledgers), strict=True):
        assert one.top is not None
        assert other.top is not None
        assert one.top.logprobs_NK == pytest.approx(other.top.logprobs_NK, rel=2e-3, abs=2e-3)


def metrics_of(job: TrainJob, name: str) -> list[float]:
    return list(logged(job, name).values())


def test_a_student_learns_the_teachers_distribution_from_the_scores(new_job: NewJob):
    scores = new_job()
    scored(scores)
    job = new_job("sft", "sft", scores_folder=scores.output_dir)
    run_job(job, NoProgress())
    divergences = metrics_of(job, "sft/forward_kl")
    assert divergences[-1] < divergences[0] / 2
    assert metrics_of(job, "sft/loss") == pytest.approx(divergences)


def test_hard_targets_are_added_with_their_weight(new_job: NewJob):
    scores = new_job()
    scored(scores)
    job = new_job("sft", "sft", scores_folder=scores.output_dir, hard_weight=2.0, num_epochs=1)
    run_job(job, NoProgress())
    soft, hard, loss = (metrics_of(job, f"sft/{name}")[0] for name in ("forward_kl", "nll", "loss"))
    assert loss == pytest.approx(soft + 2.0 * hard, rel=1e-4)


def test_rows_without_scores_say_how_to_get_them(new_job: NewJob, rows: Path):
    scores = new_job()
    scored(scores)
    with rows.open("a") as file:
        messages = [{"role": "user", "content": "New?"}, {"role": "assistant", "content": "Yes."}]
        file.write(json.dumps({"messages": messages}) + "\n")
    job = new_job("sft", "sft", scores_folder=scores.output_dir, num_epochs=1)
    with pytest.raises(TrainingError, match=r"runtime\.refresh: \[scores\]"):
        run_job(job, NoProgress())
