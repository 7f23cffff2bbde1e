"""Stages that run again after a change of config or files, and those that do not."""

import json
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stillhouse.config import DistillConfig
from stillhouse.errors import FailureBudgetExceeded
from stillhouse.types import Artifact
from tasks.publish import Published
from tests.provider import ReceivedRequest, Reply, SimulatedProvider, error

Rows = list[dict[str, Any]]
NUM_PROMPTS = 8
NUM_ANSWERS = 12
"""Every second prompt takes two turns."""


class Workshop(NamedTuple):
    """A store that went through SFT once, with its dataset, and the teacher behind it."""

    folder: Path
    provider: SimulatedProvider
    config: Callable[..., DistillConfig]
    base: Published
    dataset: Artifact
    shards: dict[str, Artifact]
    """Its rollouts artifacts by folder name; other tests add shards of another size beside them."""

    @property
    def store(self) -> Path:
        return self.folder / "store"


def _write(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def workshop(
    tmp_path_factory: pytest.TempPathFactory,
    smoke_config,
    embedded_rows: Rows,
    knowing_teacher,
    little_training: dict[str, Any],
) -> Iterator[Workshop]:
    from flows.train_sft import train_sft

    folder = tmp_path_factory.mktemp("cache-rules")
    prompts = _write(folder / "prompts.jsonl", embedded_rows)
    with SimulatedProvider(knowing_teacher) as provider:

        def config(**changes: Any) -> DistillConfig:
            given = {**little_training, "prompts__source": str(prompts), "teacher__base_url": provider.url}
            # Four shards: as many kinds of damage as one run repairs.
            return smoke_config(folder / "store", **{**given, "runtime__shard_size": 2, **changes})

        base = train_sft(config())
        assert not any(base.cached.values())
        assert provider.num_billed == NUM_ANSWERS
        assert base.dataset is not None
        yield Workshop(folder, provider, config, base, base.dataset, _rollouts(folder / "store"))


@contextmanager
def _nothing_asked(provider: SimulatedProvider) -> Iterator[None]:
    before = len(provider.ledger)
    yield
    assert len(provider.ledger) == before


@contextmanager
def _captured_log() -> Iterator[list[str]]:
    """Yield what Stillhouse's loggers say; Prefect's pages and the terminal show it."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("stillhouse")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def _rollouts(store: Path) -> dict[str, Artifact]:
    """Return every rollouts artifact of a store, by its folder's name."""
    return {
        file.parent.name: Artifact.model_validate(json.loads(file.read_bytes())["artifact"])
        for file in (store / "artifacts" / "rollouts").glob("*/manifest.json")
    }


def _generate(config: DistillConfig) -> Published:
    from flows.generate import generate

    return generate(config)


def _num_rows(published: Published) -> int:
    assert published.dataset is not None
    return published.dataset.num_rows


def _run_again(published: Published) -> list[str]:
    return [stage for stage, cached in published.cached.items() if not cached]


def test_the_same_config_again_is_a_hit_in_every_stage_and_in_every_flow(workshop: Workshop) -> None:
    from flows.train_sft import train_sft

    with _nothing_asked(workshop.provider):
        again, data_alone = train_sft(workshop.config()), _generate(workshop.config())
    assert all(again.cached.values())
    assert list(again.cached) == ["prompts", "rollouts", "labels", "duplicates", "dataset", "sft"]
    assert again.students == workshop.base.students
    assert all(data_alone.cached.values())
    assert data_alone.dataset == workshop.dataset


def test_another_learning_rate_trains_again_on_the_same_data(workshop: Workshop) -> None:
    from flows.train_sft import train_sft

    with _nothing_asked(workshop.provider):
        published = train_sft(workshop.config(sft__learning_rate=1e-5))
    assert _run_again(published) == ["sft"]
    assert published.students["sft"].fingerprint != workshop.base.students["sft"].fingerprint


def test_another_filter_makes_the_dataset_again_from_the_same_rollouts(workshop: Workshop) -> None:
    with _nothing_asked(workshop.provider):
        published = _generate(workshop.config(dataset__filters__turns=(None, 1)))
    assert _run_again(published) == ["dataset"]
    assert (workshop.dataset.num_rows, _num_rows(published)) == (8, 4)


def test_another_expected_answer_labels_its_shard_alone_and_repeats_no_rollout(
    workshop: Workshop, embedded_rows: Rows
) -> None:
    num_labels = len(list(workshop.store.glob("artifacts/labels/*")))
    corrected = json.loads(json.dumps(embedded_rows))
    corrected[3]["metadata"]["expected_answer"] = "-1"
    source = _write(workshop.folder / "corrected.jsonl", corrected)
    with _nothing_asked(workshop.provider):
        published = _generate(workshop.config(prompts__source=str(source)))
    assert _run_again(published) == ["prompts", "labels", "duplicates", "dataset"]
    assert published.dataset is not None
    assert (published.dataset.facts["right"], published.dataset.facts["wrong"]) == (7, 1)
    assert len(list(workshop.store.glob("artifacts/labels/*"))) == num_labels + 1


def test_one_prompt_more_asks_for_that_prompt_alone(workshop: Workshop, embedded_rows: Rows) -> None:
    more = [*embedded_rows, {"prompt": embedded_rows[1]["prompt"] + " "}]
    source = _write(workshop.folder / "more.jsonl", more)
    before = len(workshop.provider.ledger)
    workshop.provider.script, known = lambda _asked: error(400, "who knows"), workshop.provider.script
    try:
        published = _generate(workshop.config(prompts__source=str(source), runtime__failure_budget=0.5))
    finally:
        workshop.provider.script = known
    assert len(workshop.provider.ledger) == before + 1
    assert _num_rows(published) == 8


def test_what_only_concerns_the_machine_or_the_record_changes_no_result(workshop: Workshop) -> None:
    changes = {"runtime__concurrency": 2, "runtime__max_attempts": 1, "tracking__enabled": False}
    with _nothing_asked(workshop.provider):
        published = _generate(workshop.config(**changes))
    assert all(published.cached.values())


def test_other_shards_are_filled_from_the_journal(workshop: Workshop) -> None:
    with _nothing_asked(workshop.provider):
        published = _generate(workshop.config(runtime__shard_size=3))
    assert published.cached["rollouts"] is False
    assert _num_rows(published) == workshop.dataset.num_rows


def test_a_damaged_dataset_and_damaged_rollouts_are_made_again_without_asking_and_the_log_names_each(
    workshop: Workshop,
) -> None:
    folder = Path(workshop.dataset.uri)
    files = json.loads((folder / "manifest.json").read_bytes())["files"]
    assert files.keys() >= {"train.parquet", "rejected.parquet", "README.md", "report.html"}
    (folder / "rejected.parquet").unlink()
    deleted, altered, missing, unreadable = (Path(shard.uri) for shard in workshop.shards.values())
    (deleted / "trajectories.jsonl").unlink()
    file = altered / "trajectories.jsonl"
    file.write_bytes(file.read_bytes().replace(b"answered", b"answerad", 1))
    shutil.rmtree(missing)
    (unreadable / "manifest.json").write_bytes(b"{}")
    with _nothing_asked(workshop.provider), _captured_log() as log:
        published = _generate(workshop.config())
    assert _run_again(published) == ["rollouts", "dataset"]
    after = _rollouts(workshop.store)
    for name, shard in workshop.shards.items():
        assert (after[name].fingerprint, after[name].facts["requests"]) == (shard.fingerprint, 0)
    warnings = [line for line in log if line.startswith("rollouts: the cached result cannot be used")]
    assert len(warnings) == 4
    assert all(any(str(folder) in line for line in warnings) for folder in (deleted, altered, missing))
    assert any(f"{unreadable / 'manifest.json'} cannot be read" in line for line in warnings)
    (warning,) = [line for line in log if line.startswith("dataset: the cached result cannot be used")]
    assert str(folder / "rejected.parquet") in warning
    assert published.dataset is not None
    assert published.dataset.fingerprint == workshop.dataset.fingerprint


@pytest.mark.slow
def test_one_changed_bit_in_the_weights_of_a_student_trains_it_again(workshop: Workshop) -> None:
    from flows.train_sft import train_sft

    path = Path(workshop.base.students["sft"].uri) / "model.safetensors"
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with _nothing_asked(workshop.provider), _captured_log() as log:
        published = train_sft(workshop.config())
    assert _run_again(published) == ["sft"]
    assert [line for line in log if "cached result cannot be used" in line and f"{path} was altered" in line]
    assert path.read_bytes() == data


def test_damaged_records_of_results_make_the_stage_run_again(workshop: Workshop) -> None:
    records = [path for path in (workshop.store / "results" / "rollouts").iterdir() if path.is_file()]
    contents = (b"", b"{}", b"[]", b"\xff")
    assert len(records) >= len(contents)
    for index, record in enumerate(records):
        record.write_bytes(contents[index % len(contents)])
    with _nothing_asked(workshop.provider):
        published = _generate(workshop.config())
    assert _run_again(published) == ["rollouts"]


def _change_one_bit(store: Path, kind: bytes) -> bytes:
    """Damage the first record of a kind in the journal, and in nothing else; return the key of its rollout."""
    with closing(sqlite3.connect(store / "journal.sqlite3")) as journal, journal:
        row, place, body = journal.execute(
            "SELECT rowid, place, body FROM entry WHERE substr(place, 33, 1) = ? ORDER BY place", (kind,)
        ).fetchone()
        middle = len(body) // 2
        changed = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        journal.execute("UPDATE entry SET body = ? WHERE rowid = ?", (changed, row))
    return bytes(place[:32])


def test_one_changed_bit_in_a_stored_answer_is_reported_and_asked_again_once(workshop: Workshop) -> None:
    rollouts = {_change_one_bit(workshop.store, kind).hex() for kind in (b"0", b"1")}
    assert len(rollouts) == 1
    before = len(workshop.provider.ledger)
    with _captured_log() as log:
        published = _generate(workshop.config(runtime__refresh=["rollouts"]))
    assert _num_rows(published) == workshop.dataset.num_rows
    warnings = [line for line in log if "do not match their digest" in line]
    # The lines of the plan read the journal, too.
    assert len(set(warnings)) == 2
    assert all(next(iter(rollouts)) in line and str(workshop.store) in line for line in warnings)
    assert len(workshop.provider.ledger) - before == 1
    before_refresh = _rollouts(workshop.store)
    with _nothing_asked(workshop.provider), _captured_log() as log:
        published = _generate(workshop.config(runtime__refresh=["rollouts"]))
    assert not [line for line in log if "do not match" in line]
    assert _run_again(published) == ["rollouts"]
    after = _rollouts(workshop.store)
    assert {name: shard.fingerprint for name, shard in after.items()} == {
        name: shard.fingerprint for name, shard in before_refresh.items()
    }


def test_too_many_failures_end_the_stage_and_the_next_run_asks_only_for_those(
    tmp_path: Path, smoke_config, embedded_rows: Rows, knowing_teacher, little_training: dict[str, Any]
) -> None:
    refused = {embedded_rows[1]["prompt"], embedded_rows[5]["prompt"], embedded_rows[7]["prompt"]}

    def moody(request: ReceivedRequest) -> Reply:
        if request.body["messages"][0]["content"] in refused:
            return error(400, "not today")
        return knowing_teacher(request)

    source = _write(tmp_path / "prompts.jsonl", embedded_rows)
    with SimulatedProvider(moody) as provider:
        given = {**little_training, "prompts__source": str(source), "teacher__base_url": provider.url}
        config = smoke_config(tmp_path / "store", **given)
        with pytest.raises(FailureBudgetExceeded, match=r"(?s)of 4 .*not today") as caught:
            _generate(config)
        assert "Prefect" not in str(caught.value)
        # Explained failures are not tried again by the task's retries, and other shards were finished.
        assert len(provider.ledger) == NUM_ANSWERS
        assert provider.num_billed == NUM_ANSWERS - len(refused)

        provider.script = knowing_teacher
        published = _generate(config)
        assert len(provider.ledger) == NUM_ANSWERS + len(refused)
        assert provider.num_billed == NUM_ANSWERS
        assert max(provider.billed.values()) == 1
        assert _num_rows(published) == NUM_PROMPTS

        provider.script = lambda _asked: error(500, "must not be asked")
        assert all(_generate(config).cached.values())
