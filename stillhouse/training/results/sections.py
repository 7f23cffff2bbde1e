"""Sections of a student's card: evaluation, training with its metrics, data and config."""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from stillhouse.chat.refs import is_hub_id, model_identity
from stillhouse.prompts.sources import HUGGING_FACE
from stillhouse.report.format import count, decimal, interval, metric, percent
from stillhouse.report.markdown import as_yaml, code, fenced, plain, table
from stillhouse.store.records import read_jsonl
from stillhouse.training.monitoring.metrics import METRICS_FILE
from stillhouse.training.results.adapter import Adapter
from stillhouse.training.results.record import StudentRecord
from stillhouse.types import JsonObject

DATASET_CARD_FILE: Final = "dataset-card.md"
METHODS: Final = {"sft": "supervised fine-tuning", "on_policy": "on-policy distillation"}
"""Full names of the methods."""


def public_name(ref: str) -> str:
    """Return the public name of a model or source of data; a local file or folder goes by its last name."""
    return ref if is_hub_id(ref) or ref.startswith(("embedded:", HUGGING_FACE)) else Path(ref).name


def evaluation_section(evaluations: Mapping[str, JsonObject]) -> Iterator[str]:
    """Yield the metrics of the models compared; nothing where there are none."""
    if not evaluations:
        return
    rows = [
        (
            plain(model),
            percent(facts.get("accuracy")),
            interval(facts.get("accuracy_low"), facts.get("accuracy_high")),
            count(facts.get("num_prompts")),
            decimal(facts.get("mean_completion_tokens")),
            _figure(facts.get("teacher_kl")),
        )
        for model, facts in evaluations.items()
    ]
    yield "## Evaluation\n"
    yield "On held-out prompts:\n"
    yield table(("model", "accuracy", "interval", "prompts", "tokens", "teacher_kl"), rows)


def training_section(folder: Path, record: StudentRecord, adapter: Adapter | None) -> Iterator[str]:
    """Yield what was trained, and a summary of its metrics."""
    yield "## Training\n"
    yield table(("what", "value"), _training(folder, record, adapter))
    metrics = folder / METRICS_FILE
    summaries = summarize_metrics(list(read_jsonl(metrics))) if metrics.is_file() else []
    if summaries:
        yield "Its metrics, each a mean over the steps since the row before or a measurement at its step:\n"
        rows = [
            (code(name), metric(first), _figure(best), _figure(best_step), metric(last))
            for name, first, best, best_step, last in summaries
        ]
        yield table(("metric", "first", "best", "at step", "last"), rows)


def _training(folder: Path, record: StudentRecord, adapter: Adapter | None) -> Iterator[tuple[str, str]]:
    student, trained = record.config["student"], record.config[record.method]
    first = record.stages[0]
    # By its content where that is known; of a continued adapter only the base's name is.
    identity = first.config["student_ref"] if first.base == first.started_from else public_name(first.base)
    yield "base model", code(identity)
    yield "this student", code(model_identity(str(folder)).rpartition("@")[2])
    yield "method", METHODS[record.method]
    if adapter is not None:
        yield "adapter", f"{adapter.variant}, rank {adapter.rank}, alpha {adapter.alpha:g}"
        yield "layers with an adapter", ", ".join(code(name) for name in adapter.targets)
        yield "trained parameters", count(adapter.num_parameters)
    if record.merged is not None:
        shape = f"{student['lora_variant']}, rank {student['lora_rank']}, alpha {student['lora_alpha']:g}"
        yield "adapter", f"{shape}, merged into the weights"
        merged = record.merged
        yield (
            "merged weights",
            f"{merged['dtype']}; their logits differ from those of base and adapter by {merged['difference']:.2g} of "
            f"the logits' standard deviation (at most {merged['tolerance']:.2g} is taken for rounding), and those by "
            f"{merged['effect']:.2g} from the base's",
        )
    yield "type of computation", student["dtype"]
    if student["parameters"] == "qlora":
        yield "frozen weights while training", "rounded to 4 bits"
    yield "optimiser steps", count(record.facts.get("steps"))
    if "best_step" in record.facts:
        yield "kept weights", f"of the lowest validation loss, after {count(record.facts['best_step'])} steps"
    yield "tokens trained on", count(record.facts.get("trained_tokens"))
    yield "seed", str(trained["seed"])


def data_section(folder: Path, record: StudentRecord) -> Iterator[str]:
    # Rounds of self-training learn the rows of those before once more.
    rows = list(dict.fromkeys(_data(record)))
    if not rows:
        return
    yield "## Data\n"
    yield table(("training", "data", "rows", "tokens", "supervised", "fingerprint"), rows)
    if (folder / DATASET_CARD_FILE).is_file():
        yield f"How the dataset came about is told in `{DATASET_CARD_FILE}`.\n"


def _data(record: StudentRecord) -> Iterator[tuple[str, ...]]:
    for stage in record.stages:
        data = {"sft": "dataset", "on_policy": "prompts"}[stage.method]
        if stage.data:
            counts = [count(stage.data.get(name)) for name in ("rows", "tokens", "supervised_tokens")]
            yield (METHODS[stage.method], data, *counts, code(stage.data["fingerprint"]))
        sources = stage.config[stage.method].get("sources", ())
        for source, fingerprint in zip(sources, stage.config.get("sources", ()), strict=True):
            name = f"{code(public_name(source['path']))}, weight {source['weight']:g}"
            yield (METHODS[stage.method], name, "", "", "", code(fingerprint))


def config_section(record: StudentRecord) -> Iterator[str]:
    """Yield the config of student and method, without paths of this machine."""
    student, trained = record.config["student"], dict(record.config[record.method])
    if "sources" in trained:
        trained["sources"] = [{**source, "path": public_name(source["path"])} for source in trained["sources"]]
    if trained.get("teacher"):
        trained["teacher"] = public_name(trained["teacher"])
    if trained.get("teachers"):
        trained["teachers"] = [
            {**teacher, "model": teacher["model"] and public_name(teacher["model"])} for teacher in trained["teachers"]
        ]
    config = {"student": {**student, "model": public_name(student["model"])}, record.method: trained}
    yield "## Config\n"
    yield fenced("yaml", as_yaml(config))


def _figure(value: float | None) -> str:
    return "" if value is None else metric(value)


_FALLING: Final = ("loss", "nll", "kl", "bits_per_byte", "perplexity")
_RISING: Final = ("accuracy", "reward")
_LEFT_OUT: Final = ("_s", "_gib", "mfu", "learning_rate", "padding_share", "supervised_share", "epoch")
"""Suffixes of metrics of the machine or the config."""


class MetricSummary(NamedTuple):
    name: str
    first: float
    best: float | None
    """Over trained weights, not those that training started from; None where neither high nor low is better."""
    best_step: int | None
    last: float


def summarize_metrics(rows: Sequence[JsonObject]) -> list[MetricSummary]:
    """Return summaries of all metrics but those of the machine, in order of appearance, of rows of `metrics.jsonl`."""
    values: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row["metrics"].items():
            if not name.endswith(_LEFT_OUT):
                values.setdefault(name, []).append((row["step"], value))
    summaries = []
    for name, points in values.items():
        best_step, best = None, None
        trained = [point for point in points if point[0] > 0] or points
        if name.endswith((*_FALLING, *_RISING)):
            choose = min if name.endswith(_FALLING) else max
            best_step, best = choose(trained, key=itemgetter(1))
        summaries.append(MetricSummary(name, points[0][1], best, best_step, points[-1][1]))
    return summaries
