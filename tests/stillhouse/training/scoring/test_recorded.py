"""Rollouts that record what the teacher found most probable, and the scores that their rows then come with."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.samples import MessageStart
from stillhouse.chat.tokenizer import load_tokenizer
from stillhouse.config import DatasetConfig, RolloutsConfig, RuntimeConfig, ToolsConfig
from stillhouse.dataset.recorded import read_recorded
from stillhouse.errors import TrainingError
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.journal import open_journal
from stillhouse.inference.scoring.ledger import LEDGER, ScoreLedger
from stillhouse.inference.scoring.scores import SequenceScores, TopLogprobs
from stillhouse.inference.top_tokens import TopTokens
from stillhouse.progress.state import NoProgress
from stillhouse.rollouts.collector import RolloutCollector
from stillhouse.rollouts.plan import EverySample
from stillhouse.tools.toolbox import Toolbox
from stillhouse.training.job import TrainJob
from stillhouse.training.model.token_bytes import token_spellings
from stillhouse.training.run_job import run_job
from stillhouse.training.scoring.recorded import RecordedScores, num_hard
from stillhouse.training.sft.tokens import Samples
from stillhouse.types import JsonObject, Prompt, Sample, Trajectory
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, completion
from tests.provider.logprobs import token_logprobs
from tests.stillhouse.dataset.building import build_dataset
from tests.stillhouse.training.trainings import read_metrics

NewJob = Callable[..., TrainJob]
TOP_K = 8
KL = {"loss": "kl", "top_k": TOP_K, "num_epochs": 1, "batch_size": 4, "log_every_steps": 1}


def collected(
    url: str, prompts: list[Prompt], tools: ToolsConfig, journal: Path, *, is_local: bool, **settings: Any
) -> list[Trajectory]:
    config = RolloutsConfig(**{"record_top_k": TOP_K, "temperature": 1.0, "max_tokens": 48, "max_turns": 6, **settings})

    async def run() -> list[Trajectory]:
        with open_journal(journal) as opened:
            collector = RolloutCollector(
                EverySample(prompts, 1),
                endpoint=Endpoint(url, "teacher", "teacher", capacity=128 if is_local else None),
                config=config,
                toolbox=Toolbox.from_config(tools),
                journal=opened,
                runtime=RuntimeConfig(concurrency=8),
            )
            async with aclosing(collector):
                return [trajectory async for trajectory in collector]

    return asyncio.run(run())


def dataset_of(trajectories: list[Trajectory], folder: Path) -> Path:
    folder.mkdir()
    config = DatasetConfig(validation_fraction=0.2)
    build_dataset(trajectories, {}, config, tokenizer_ref="embedded:student", max_length=512, folder=folder)
    return folder


@pytest.fixture(scope="module")
def answered(
    serve: Callable[[str, str], str], prompts: list[Prompt], calculator: ToolsConfig, tmp_path_factory: Any
) -> list[Trajectory]:
    """The embedded teacher's own conversations, with tool calls, not sampled at the temperature that is recorded."""
    url = serve("embedded:teacher", "teacher")
    journal = tmp_path_factory.mktemp("journal")
    return collected(url, prompts, calculator, journal, is_local=True, temperature=0.9)


@pytest.fixture(scope="module")
def folder(answered: list[Trajectory], tmp_path_factory: Any) -> Path:
    return dataset_of(answered, tmp_path_factory.mktemp("recorded") / "dataset")


@pytest.fixture
def new_job(new_sft_job: NewJob, folder: Path, tmp_path: Path) -> NewJob:
    def make(name: str, method: str = "scores", fields: JsonObject | None = None, **sft: Any) -> TrainJob:
        usual = {"student_ref": "embedded:student", "teacher_ref": "embedded:teacher", "dataset_folder": folder}
        return new_sft_job(tmp_path / name, {**KL, **sft}, method=method, **{**usual, **(fields or {})})

    return make


def scores_of(job: TrainJob) -> tuple[JsonObject, dict[bytes, SequenceScores]]:
    """The facts of the job and the scores of its samples, in their order."""
    facts = run_job(job, NoProgress())
    assert job.sft is not None
    ledger = ScoreLedger(job.output_dir, job.sft.top_k)
    [tokens] = (job.work_dir / "tokens").iterdir()
    samples = [sample for split in ("train", "validation") for sample in Samples(tokens / f"{split}.arrow")]
    keys = [ledger.key(sample) for sample in samples]
    found = ledger.find(keys)
    return facts, {key: found[key] for key in keys}


def was_scored(job: TrainJob) -> bool:
    return any(Path(job.runtime.store).glob(f"{LEDGER}/*"))


def test_recorded_rows_need_no_teacher_and_have_the_numbers_that_it_would_give(new_job: NewJob, folder: Path) -> None:
    recorded, scored = new_job("recorded"), new_job("scored", dataset_weight=0.0, sources=_files(folder))
    facts, with_record = scores_of(recorded)
    assert facts["recorded_rows"] == facts["rows"] > 8
    assert not was_scored(recorded)
    expected_facts, expected = scores_of(scored)
    assert was_scored(scored)
    assert "recorded_rows" not in expected_facts
    assert with_record.keys() == expected.keys()
    for key, scores in with_record.items():
        assert scores.top is not None
        assert expected[key].top is not None
        assert scores.logprobs == pytest.approx(expected[key].logprobs, abs=1e-3)
        assert scores.top.logprobs_NK == pytest.approx(expected[key].top.logprobs_NK, rel=2e-3, abs=2e-3)
        assert np.exp(scores.top.log_tail_N) == pytest.approx(np.exp(expected[key].top.log_tail_N), abs=2e-3)
    assert facts["teacher_nll"] == pytest.approx(expected_facts["teacher_nll"], abs=1e-3)
    assert facts["scored_tokens"] == expected_facts["scored_tokens"]


def _files(folder: Path) -> list[JsonObject]:
    """The rows of a dataset alone, without what was recorded of them."""
    return [{"path": str(folder / name)} for name in ("train.parquet", "validation.parquet")]


def trained(job: TrainJob) -> list[dict[str, float]]:
    """Metrics of the training's steps."""
    run_job(job, NoProgress())
    rows = [row["metrics"] for row in read_metrics(job.work_dir / "metrics.jsonl")]
    return [metrics for metrics in rows if "sft/forward_kl" in metrics]


@pytest.mark.parametrize("changes", [{"top_k": TOP_K + 1}, {"soft_temperature": 2.0}])
def test_more_tokens_or_another_temperature_than_recorded_are_scored(new_job: NewJob, changes: JsonObject) -> None:
    job = new_job("scores", **changes)
    facts, _ = scores_of(job)
    assert "recorded_rows" not in facts
    assert was_scored(job)


def test_what_others_recorded_is_not_taken_for_a_teacher_that_is_named(
    new_job: NewJob, answered: list[Trajectory]
) -> None:
    facts, _ = scores_of(new_job("own", teacher=answered[0].model))
    assert facts["recorded_rows"] == facts["rows"]
    other = new_job("other", teacher="embedded:student")
    assert "recorded_rows" not in scores_of(other)[0]
    assert was_scored(other)


def test_only_rows_that_were_not_recorded_are_scored(
    new_job: NewJob, answered: list[Trajectory], tmp_path: Path
) -> None:
    bare = [replace(turn, top_logprobs=None) for turn in answered[0].turns]
    mixed = dataset_of([replace(answered[0], turns=bare), *answered[1:]], tmp_path / "mixed")
    recorded = {row.id for row in read_recorded(mixed)}
    assert answered[0].rollout_key not in recorded
    job = new_job("scores", fields={"dataset_folder": mixed})
    facts, found = scores_of(job)
    assert facts["recorded_rows"] == len(recorded) == facts["rows"] - 1 == len(found) - 1
    assert was_scored(job)


def test_parts_of_messages_are_learnt_from_what_was_recorded_of_all(new_job: NewJob) -> None:
    whole, calls = new_job("whole"), new_job("calls", train_on=("reasoning", "tool_calls"))
    facts, _ = scores_of(calls)
    assert facts["recorded_rows"] == facts["rows"]
    assert facts["scored_tokens"] < scores_of(whole)[0]["scored_tokens"]
    assert not was_scored(calls)


@pytest.fixture(scope="module")
def student() -> PreTrainedTokenizerBase:
    return load_tokenizer("embedded:student")


def openai_like(student: PreTrainedTokenizerBase, *, merged: bool = False) -> Callable[[ReceivedRequest], Reply]:
    """Answers with the student's tokens by their bytes and without an end-of-turn token, some with others."""
    spellings = token_spellings(student)

    def script(request: ReceivedRequest) -> Reply:
        text = f"The total is {request.index + 10}."
        tokens = [spellings[token] for token in student(text)["input_ids"]]
        if merged or request.index == 3:
            tokens = [b"".join(tokens[:2]), *tokens[2:]]
        body = completion(text)
        body["choices"][0]["logprobs"] = token_logprobs(tokens, request.body["top_logprobs"])
        return Reply(body)

    return script


def far_dataset(script: Callable[[ReceivedRequest], Reply], prompts: list[Prompt], path: Path) -> Path:
    path.mkdir()
    with SimulatedProvider(script) as provider:
        return dataset_of(
            collected(provider.url, prompts, ToolsConfig(), path / "journal", is_local=False), path / "dataset"
        )


def test_tokens_by_their_bytes_serve_a_student_that_cuts_the_text_alike_and_others_learn_hard_targets(
    new_job: NewJob, student: PreTrainedTokenizerBase, prompts: list[Prompt], tmp_path: Path
) -> None:
    far = far_dataset(openai_like(student), prompts, tmp_path / "far")
    facts, found = scores_of(new_job("far", fields={"dataset_folder": far, "teacher_ref": None}))
    assert (facts["recorded_rows"], facts["hard_rows"], facts["rows"]) == (15, 1, 16)
    assert facts["teacher_nll"] == pytest.approx(-np.log(0.75)), "hard targets say nothing of the teacher"
    letters = {student.convert_tokens_to_ids(letter) for letter in "abcdefgh"}
    for scores in found.values():
        assert scores.top is not None
        *_, end = scores.top.ids_NK[:, 0]
        assert end == student.convert_tokens_to_ids("<|im_end|>")
        assert (scores.logprobs[-1], float(scores.top.log_tail_N[-1])) == (0.0, -100.0)
        assert all(len(set(ids.tolist())) == TOP_K for ids in scores.top.ids_NK)
        if scores.logprobs[0]:
            assert set(scores.top.ids_NK[0, 1:].tolist()) <= letters
            assert np.exp(scores.top.logprobs_NK.astype(float)).sum(axis=1)[:-1] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("ids", "num_scored"),
    [
        ([5, 10, 11, 12, 2], 3),
        ([5, 613, 10, 11, 12], 3),
        ([10, 11, 12], 3),
        ([10, 11], 2),
        ([5, 10, 11], None),
        ([10, 11, 13, 2], None),
        ([10, 11, 12, 9], None),
        ([10, 11, 12, 2, 2], None),
        ([5] * 9 + [10, 11, 12], None),
    ],
)
def test_what_a_template_writes_around_the_sampled_tokens_is_a_hard_target(
    student: PreTrainedTokenizerBase, ids: list[int], num_scored: int | None
) -> None:
    tokens = np.array([10, 11, 12], np.int32)
    top = TopLogprobs.rounded(np.array([[10, 20], [11, 20], [12, 20]]), np.log(np.full((3, 2), 0.4)))
    turn = TopTokens(tokens, np.log(np.full(3, 0.4)).astype(np.float32), top, None)
    sample = Sample([1, *ids], [False] + [True] * len(ids), "p")
    scores = RecordedScores(student, 2).scores(sample, [MessageStart(1, 1)], {1: turn})
    assert (scores is None) is (num_scored is None)
    if scores is not None:
        assert scores.top is not None
        assert scores.top.ids_NK[:, 0].tolist() == ids
        assert len(scores.logprobs) - num_hard(scores.top) == num_scored
        assert [bool(logprob) for logprob in scores.logprobs] == [token in (10, 11, 12) for token in ids]


def test_a_dataset_of_which_nothing_serves_the_student_is_refused_without_a_teacher(
    new_job: NewJob, student: PreTrainedTokenizerBase, prompts: list[Prompt], tmp_path: Path
) -> None:
    far = far_dataset(openai_like(student, merged=True), prompts[:4], tmp_path / "far")
    with pytest.raises(TrainingError, match="none of them"):
        run_job(new_job("far", fields={"dataset_folder": far, "teacher_ref": None}), NoProgress())
