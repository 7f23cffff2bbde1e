"""The whole DAG on real parts at its smallest size, once, and once more from the cache."""

import asyncio
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stillhouse.store import file_sha256
from stillhouse.store.records import read_prompts, read_trajectories
from stillhouse.store.runs import read_run_record
from tasks.publish import Published
from tasks.run.summary import SUMMARY_COLUMNS

STAGES = ["prompts", "rollouts", "labels", "duplicates", "dataset", "sft", "on_policy"]
MODELS = ["base", "sft", "on_policy", "teacher"]


class Runs(NamedTuple):
    store: Path
    first: Published
    second: Published
    second_started: list[list[str]]
    """Command lines of the processes that the second run started."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, smoke_config) -> Runs:
    from flows.distill import distill

    store = tmp_path_factory.mktemp("distill") / "store"
    config = smoke_config(store)
    first = distill(config)
    started: list[list[str]] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "subprocess.Popen":
            started.append([str(part) for part in arguments[1]])

    sys.addaudithook(watch)  # cannot be taken out again, so it is told to stop
    try:
        second = distill(config)
    finally:
        watching = False
    return Runs(store, first, second, started)


def _held_out_and_train(store: Path) -> tuple[set[str], set[str]]:
    sets = [{p.id for p in read_prompts(file)} for file in (store / "artifacts" / "prompts").glob("*/prompts.jsonl")]
    assert len(sets) == 2
    smaller, larger = sorted(sets, key=len)
    return smaller, larger


def test_every_stage_runs_and_every_model_is_measured(runs: Runs) -> None:
    assert list(runs.first.cached) == [*STAGES, *(f"evaluation of {model}" for model in MODELS), "comparison"]
    assert not any(runs.first.cached.values())
    assert list(runs.first.evaluations) == MODELS
    assert [row[0] for row in runs.first.summary] == ["base student", *STAGES, "comparison", "evaluation"]
    assert runs.first.promotion is None
    # Checkpoints are removed once the student is in the store.
    assert list((runs.store / "training").iterdir()) == []


def test_the_figures_of_evaluation_make_sense(runs: Runs) -> None:
    held_out, _ = _held_out_and_train(runs.store)
    for name, facts in runs.first.evaluations.items():
        assert facts["num_prompts"] == len(held_out) > 0, name
        assert 0 <= facts["accuracy_low"] <= facts["accuracy"] <= facts["accuracy_high"] <= 1, name
        assert facts["completion_tokens"] > 0, name
    assert runs.first.evaluations["teacher"]["accuracy"] >= 0.9
    assert runs.first.evaluations["teacher"]["teacher_kl"] is None
    # So few steps improve nothing for sure; what is sure is that each student is some way from its teacher.
    assert all(runs.first.evaluations[name]["teacher_kl"] > 0 for name in MODELS[:3])


def test_held_out_prompts_are_in_no_stage_before_evaluation(runs: Runs) -> None:
    held_out, train = _held_out_and_train(runs.store)
    artifacts = runs.store / "artifacts"
    sampled = {t.prompt_id for file in (artifacts / "rollouts").glob("*/*.jsonl") for t in read_trajectories(file)}
    sharded = {p.id for file in (artifacts / "shards").glob("*/*.jsonl") for p in read_prompts(file)}
    from stillhouse.dataset.read import read_rows

    assert runs.first.dataset is not None
    folder = Path(runs.first.dataset.uri)
    rows = {row["prompt_id"] for split in ("train", "validation", "rejected") for row in read_rows(folder, split)}
    assert sampled == sharded == rows == train
    assert not held_out & train
    measured = {t.prompt_id for file in (artifacts / "evaluation").glob("*/*.jsonl") for t in read_trajectories(file)}
    assert measured == held_out
    record = json.loads((Path(runs.first.students["on_policy"].uri) / "student.json").read_text())
    prompts = [file for file in artifacts.glob("prompts/*/*.jsonl") if file_sha256(file) == record["config"]["prompts"]]
    assert [{prompt.id for prompt in read_prompts(file)} for file in prompts] == [train]


def test_students_are_models_that_load_and_differ_from_each_other(runs: Runs) -> None:
    from stillhouse.chat.tokenizer import load_tokenizer
    from stillhouse.serving.models import load_model

    weights = []
    for artifact in runs.first.students.values():
        model = load_model(artifact.uri, device="cpu")
        assert load_tokenizer(artifact.uri).encode("12 + 30")
        weights.append(model.get_input_embeddings().weight)
    assert not weights[0].equal(weights[1])


def test_mlflow_holds_a_finished_parent_run_with_nested_runs_and_the_report(runs: Runs) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{runs.store / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "stillhouse"]
    found = client.search_runs([experiment.experiment_id])
    assert {run.info.status for run in found} == {"FINISHED"}
    parents = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    nested = [run for run in found if "mlflow.parentRunId" in run.data.tags]
    assert len(parents) == 2
    names = [*STAGES, *(f"evaluation of {model}" for model in MODELS), "comparison"]
    assert sorted(run.info.run_name for run in nested) == sorted(names)
    first = min(parents, key=lambda run: run.info.start_time)
    assert first.info.run_name.startswith("distill, embedded:student, ")
    assert first.data.tags["mlflow.source.name"] == "flows/distill.py"
    (second,) = [run for run in parents if run is not first]
    assert second.data.tags["stillhouse.cached"].split(", ") == list(runs.second.cached)
    assert second.data.tags["stillhouse.sft.run_id"] in {run.info.run_id for run in nested}
    own = [tag for tag in first.data.tags if not tag.startswith("mlflow.source.git")]
    assert len(own) <= 12, own
    assert {run.data.tags["mlflow.parentRunId"] for run in nested} == {first.info.run_id}
    assert first.data.metrics["teacher/accuracy"] == runs.first.evaluations["teacher"]["accuracy"]
    differences = runs.first.evaluations["teacher"]["accuracy"] - runs.first.evaluations["base"]["accuracy"]
    assert first.data.metrics["teacher/accuracy_difference"] == pytest.approx(differences)
    assert 0.0 < first.data.metrics["teacher/accuracy_p"] < 0.05
    assert first.data.params["sft.learning_rate"] == "0.0005"
    assert first.inputs.dataset_inputs[0].dataset.digest
    assert "report/report.html" in [file.path for file in client.list_artifacts(first.info.run_id, "report")]
    dataset = [file.path for file in client.list_artifacts(first.info.run_id, "dataset")]
    assert dataset == ["dataset/README.md", "dataset/report.html"]
    (sft,) = [run for run in nested if run.info.run_name == "sft"]
    assert {"sft/loss", "sft/token_accuracy", "sft/details/grad_norm"} <= sft.data.metrics.keys()
    assert "sft/grad_norm" not in sft.data.metrics
    steps = [point.step for point in client.get_metric_history(sft.info.run_id, "sft/loss")]
    assert len(steps) > 2
    assert steps == sorted(set(steps))


def test_the_report_needs_nothing_beside_it(runs: Runs) -> None:
    page = Path(runs.first.report).read_text()
    assert "<svg" in page
    assert "Prompt by prompt against the base student" in page
    for attribute in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert attribute.startswith(("#", "data:", "http://127.0.0.1")), attribute
    assert "url(http" not in page
    assert "@import" not in page


def test_the_same_command_again_takes_everything_from_the_cache_and_starts_no_server_and_no_training(
    runs: Runs,
) -> None:
    assert all(runs.second.cached.values())
    assert list(runs.second.cached) == list(runs.first.cached)
    assert _fingerprints(runs.second) == _fingerprints(runs.first)
    assert runs.second.evaluations == runs.first.evaluations
    assert not [line for line in runs.second_started if "stillhouse" in " ".join(line)]
    place = SUMMARY_COLUMNS.index("cached")
    cached = {row[0]: row[place] for row in runs.second.summary}
    assert cached == {"base student": "", **dict.fromkeys([*STAGES, "comparison", "evaluation"], "yes")}
    assert {row[place] for row in runs.first.summary} == {""}


def _fingerprints(published: Published) -> dict[str, str]:
    assert published.dataset is not None
    artifacts = {"dataset": published.dataset, **published.students}
    return {name: artifact.fingerprint for name, artifact in artifacts.items()}


def test_mlflow_holds_conversations_of_each_model_and_a_table_of_its_answers(runs: Runs) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{runs.store / 'mlflow.db'}")
    (experiment,) = [e.experiment_id for e in client.search_experiments() if e.name == "stillhouse"]
    nested = "tags.`mlflow.parentRunId` != ''"
    inner = {run.info.run_id for run in client.search_runs([experiment], nested)}
    parents = [run.info.run_id for run in client.search_runs([experiment]) if run.info.run_id not in inner]
    held_out, _ = _held_out_and_train(runs.store)
    stages = ["rollouts", *(f"evaluation of {model}" for model in MODELS)]
    # The second run, all of whose stages were cached, shows the same.
    for parent in parents:
        traces = client.search_traces(locations=[experiment], run_id=parent, max_results=500)
        counts = Counter(trace.info.tags["stage"] for trace in traces)
        assert counts == {"rollouts": 20} | dict.fromkeys(stages[1:], min(20, len(held_out)))
        for model in MODELS:
            table = json.loads(Path(client.download_artifacts(parent, f"evaluation/{model}.json")).read_text())
            assert table["columns"][:4] == ["question", "answer", "expected", "verdict"]
            verdicts = [row[3] for row in table["data"]]
            accuracy = runs.first.evaluations[model]["accuracy"]
            assert verdicts.count("right") == pytest.approx(accuracy * len(held_out))
            shown = [t for t in traces if t.info.tags["stage"] == f"evaluation of {model}"]
            values = [a.value for t in shown for a in t.info.assessments if a.name == "verdict"]
            assert Counter(values) == Counter(verdicts[:20])


def test_prefect_holds_stages_as_assets_with_what_they_were_made_of(runs: Runs) -> None:
    records = sorted(map(read_run_record, runs.store.glob("reports/*/run.json")), key=lambda record: record.created_at)
    first, second = (record.prefect_flow_run_id for record in records)
    made = asyncio.run(_asset_events(first, "prefect.asset.materialization.succeeded", 12))
    sources = {
        event["resource"]["prefect.resource.id"]: {
            one["prefect.resource.id"] for one in event["related"] if one["prefect.resource.role"] == "asset"
        }
        for event in made
    }

    def assets(*names: str) -> set[str]:
        return {f"stillhouse://stillhouse/{name}" for name in names}

    assert sources["stillhouse://stillhouse/prompts"] == set()
    assert sources["stillhouse://stillhouse/rollouts"] == assets("prompts")
    assert sources["stillhouse://stillhouse/dataset"] == assets("labels", "duplicates")
    assert sources["stillhouse://stillhouse/sft"] == assets("dataset")
    assert sources["stillhouse://stillhouse/on_policy"] == assets("prompts", "sft")
    assert sources["stillhouse://stillhouse/evaluation-of-sft"] == assets("prompts", "sft")
    assert sources["stillhouse://stillhouse/comparison"] == assets(
        "prompts", *(f"evaluation-of-{model}" for model in MODELS)
    )
    (dataset,) = [one for one in made if one["resource"]["prefect.resource.id"].endswith("/dataset")]
    assert runs.first.dataset is not None
    assert dataset["payload"]["fingerprint"] == runs.first.dataset.fingerprint
    assert dataset["payload"]["kept"] == runs.first.dataset.num_rows
    # All stages of the second run were cached.
    used = asyncio.run(_asset_events(second, "prefect.asset.*", 12))
    assert {event["event"] for event in used} == {"prefect.asset.referenced"}
    assert {event["resource"]["prefect.resource.id"] for event in used} == sources.keys()


async def _asset_events(flow_run: str | None, name: str, num: int) -> list[dict[str, Any]]:
    """Wait for `num` events of a flow run, which are sent in the background."""
    from prefect import get_client

    related = {"resources_in_roles": [[f"prefect.flow-run.{flow_run}", "flow-run"]]}
    names = {"prefix": [name[:-1]]} if name.endswith("*") else {"name": [name]}
    async with get_client() as client:
        while True:
            body = {"filter": {"related": related, "event": names}, "limit": 50}
            found = (await client.request("POST", "/events/filter", json=body)).json()["events"]
            if len(found) >= num:
                return found
            await asyncio.sleep(0.2)
