"""Jobs in this process, where what is new about them is neither killed nor relayed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from stillhouse.config import ToolsConfig
from stillhouse.errors import ConfigError
from stillhouse.progress.state import NoProgress
from stillhouse.training.job import TrainJob
from stillhouse.training.run_job import run_job
from stillhouse.training.sft.tokens import Samples
from tests.stillhouse.training.trainings import logged

NewJob = Callable[..., TrainJob]


@pytest.fixture
def new_job(new_sft_job, calculator: ToolsConfig, tmp_path: Path) -> NewJob:
    def make(name: str, **changes: object) -> TrainJob:
        sft = {"num_epochs": 2, "batch_size": 4, "learning_rate": 1e-3, "seed": 3, **changes}
        return new_sft_job(tmp_path / name, sft, tools=calculator)

    return make


@pytest.fixture
def verifiable(dataset_folder: Path, tmp_path: Path) -> Path:
    """The dataset, with answers to verify in its validation rows."""
    folder = tmp_path / "verifiable"
    shutil.copytree(dataset_folder, folder)
    table = pq.read_table(folder / "validation.parquet")
    for name, value in (("expected_answer", "8"), ("verifier", "numeric")):
        column = pa.array([value] * len(table), pa.string())
        table = table.set_column(table.schema.get_field_index(name), name, column)
    pq.write_table(table, folder / "validation.parquet")
    return folder


def weights(job: TrainJob) -> bytes:
    return (job.output_dir / "model.safetensors").read_bytes()


def test_answers_sampled_on_the_way_are_kept_and_change_no_bit_of_the_student(new_job, verifiable: Path):
    plain = new_job("plain")
    run_job(plain, NoProgress())
    job = new_job("sampled", generate_every_steps=2, num_generations=3)
    job = job.model_copy(update={"dataset_folder": verifiable})
    run_job(job, NoProgress())
    measured = logged(job, "sft/generation_accuracy")
    answers = [json.loads(line) for line in (job.work_dir / "generations.jsonl").read_text().splitlines()]
    assert {answer["step"] for answer in answers} == set(measured)
    assert 0 in measured
    assert len(answers) == 3 * len(measured)
    assert weights(job) == weights(plain)


def test_answers_need_validation_rows_with_something_to_verify(new_job, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    job = new_job("none", generate_every_steps=2, dataset_weight=0.0, sources=[{"path": str(rows)}])
    with pytest.raises(ConfigError, match="expected answer"):
        run_job(job.model_copy(update={"dataset_folder": None}), NoProgress())


def test_a_running_mean_is_what_is_validated_and_written(new_job):
    plain, averaged = new_job("plain"), new_job("averaged", ema_decay=0.9)
    for job in (plain, averaged):
        run_job(job, NoProgress())
    assert logged(plain, "sft/validation_loss") != logged(averaged, "sft/validation_loss")
    assert weights(plain) != weights(averaged)
    # The steps themselves are the same: only what is looked at and kept differs.
    assert logged(plain, "sft/loss") == logged(averaged, "sft/loss")


def test_rows_longer_than_the_student_has_positions_are_cut(new_job, tmp_path: Path):
    rows = [{"prompt": "Count.", "completion": "one two " * 2000}, {"prompt": "Say two.", "completion": "Two."}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = new_job("long", dataset_weight=0.0, sources=[{"path": str(tmp_path / "rows.jsonl")}])
    job = job.model_copy(update={"student": job.student.model_copy(update={"max_length": 10**6})})
    assert run_job(job, NoProgress())["truncated_rows"] == 1


def test_a_student_that_scales_or_caps_its_logits_learns_and_is_saved_as_it_was_validated(new_job, scaled_model: str):
    job = new_job("scaled", learning_rate=3e-3, num_epochs=4, microbatch_tokens=2048)
    job = job.model_copy(update={"student_ref": scaled_model})
    run_job(job, NoProgress())
    losses = list(logged(job, "sft/validation_loss").values())
    assert losses[-1] < losses[0] - 0.3
    [file] = job.work_dir.glob("tokens/*/validation.arrow")
    saved = AutoModelForCausalLM.from_pretrained(job.output_dir).eval()
    total, count = 0.0, 0
    for sample in Samples(file):
        ids, mask = torch.tensor(sample.token_ids), torch.tensor(sample.loss_mask)
        with torch.no_grad():
            logits = saved(input_ids=ids[None, :-1]).logits[0]
        total += cross_entropy(logits[mask[1:]], ids[1:][mask[1:]], reduction="sum").item()
        count += int(mask[1:].sum())
    assert losses[-1] == pytest.approx(total / count, abs=1e-4)
