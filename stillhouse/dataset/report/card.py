"""The dataset card: contents, origin, dropped rows and reasons.

The front matter lets the Hugging Face hub load the folder as a dataset. No dates: equal content gives an equal card.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from stillhouse.dataset.report.origin import Origin, lineage_rows
from stillhouse.dataset.report.sections import effective_steps, interval_of, tag_accuracies
from stillhouse.dataset.report.summary import DatasetSummary
from stillhouse.dataset.schema import COLUMNS, DATASET_FILES, Column
from stillhouse.dataset.select.reasons import MEANINGS
from stillhouse.report.format import count, dollars, percent
from stillhouse.report.markdown import as_yaml, code, fenced, plain, table

_CONFIGS: Final = {"default": ("train", "validation"), "rejected": ("rejected",)}


def dataset_card(summary: DatasetSummary, origin: Origin) -> str:
    files = [(name, count(file.num_rows), code(file.sha256)) for name, file in summary.files.items()]
    # `datasets` refuses files without rows.
    data_files = {
        name: [{"split": split, "path": path} for split in splits if summary.files[path := f"{split}.parquet"].num_rows]
        for name, splits in _CONFIGS.items()
    }
    configs = [{"config_name": name, "data_files": paths} for name, paths in data_files.items() if paths]
    loading = [
        "from datasets import load_dataset  # 4.7 or later\n\n",
        'folder = "."  # this folder, or the name of the dataset on the hub\n',
        *(f'{config["config_name"]} = load_dataset(folder, "{config["config_name"]}")\n' for config in configs),
    ]
    parts = [
        f"---\n{as_yaml({'configs': configs})}---\n",
        "# Teacher trajectories\n",
        _overview(summary),
        "The same with pictures, distributions and rows to read is in `report.html`.\n",
        fenced("python", "".join(loading)),
        "## Funnel\n",
        table(("step", "trajectories left", "student tokens", "sampled tokens"), _funnel_rows(summary)),
        *_reasons(summary),
        *_accuracy(summary),
        "## Origin\n",
        table(("what", "value"), [(plain(name), code(value)) for name, value in lineage_rows(summary, origin)]),
        "The section `dataset` of the config:\n",
        fenced("yaml", as_yaml(origin.config.model_dump(mode="json"))),
        "## Files\n",
        table(("file", "rows", "SHA-256"), files),
        "## Columns\n",
        "JSON columns carry Arrow's JSON type: `datasets` (4.7 or later) gives objects, pandas and DuckDB give text.\n",
        _columns(COLUMNS),
    ]
    return "\n".join(parts)


def _overview(summary: DatasetSummary) -> str:
    facts, accuracy = summary.facts(), summary.verdicts.overall()
    share = "" if accuracy is None else f" ({percent(accuracy.share)} of those verified)"
    sentences = [
        f"{count(summary.num_kept)} of {count(summary.num_rollouts)} trajectories are kept: {count(facts['train'])} to "
        f"train on, {count(facts['validation'])} to validate with; the others are in `{DATASET_FILES[-1]}` with their "
        "reasons.",
        f"Repeated rollouts left out: {count(summary.num_repeated)}.",
        f"Answers: {count(facts['right'])} right{share}, {count(facts['wrong'])} wrong, {count(facts['unverified'])} "
        "unverified.",
    ]
    if facts["tokens"] is not None:
        sentences.append(
            f"The kept rows hold {count(facts['tokens'])} tokens of the student, {count(facts['supervised_tokens'])} "
            "of them supervised."
        )
    if facts["candidate_cost_usd"] is not None:
        each = facts["cost_usd_per_kept_row"]
        sentences.append(
            f"All rollouts cost {dollars(facts['candidate_cost_usd'])}, which is {dollars(each)} for each kept row."
        )
    sentences.append(
        f"Rows that repeat another: {count(facts['exact_duplicates'])} exactly, {count(facts['near_duplicates'])} "
        "nearly."
    )
    if facts["contaminated"] is not None:
        sentences.append(f"Rows that overlap with evaluation sets: {count(facts['contaminated'])}.")
    return " ".join([*sentences, "Splits are grouped by prompt."]) + "\n"


def _funnel_rows(summary: DatasetSummary) -> Iterable[Sequence[str]]:
    rendered = summary.total("num_tokens") is not None
    sampled = summary.total("completion_tokens") is not None
    yield "rollouts", count(summary.num_rollouts), "", ""
    for step, _ in effective_steps(summary.funnel):
        tokens = count(step.student_tokens if rendered else None), count(step.completion_tokens if sampled else None)
        yield step.name, count(step.num_rows), *tokens


def _reasons(summary: DatasetSummary) -> list[str]:
    if not summary.drop_reasons:
        return []
    rows = [(f"`{name}`", count(number), MEANINGS[name]) for name, number in summary.drop_reasons.items()]
    return [
        "A trajectory is dropped for every reason that holds, so these add up to more than were dropped:\n",
        table(("reason", "trajectories", "meaning"), rows),
    ]


def _accuracy(summary: DatasetSummary) -> list[str]:
    tags, num_more = tag_accuracies(summary)
    if not tags:
        return []
    rows = [(plain(name), percent(tag.share), interval_of(tag), count(tag.right + tag.wrong)) for name, tag in tags]
    return [
        "## Accuracy of the teacher\n",
        table(("tag", "right", "95 % interval", "verified"), rows),
        *([f"{num_more:,} rarer tags are not listed.\n"] if num_more else []),
    ]


def _columns(columns: Sequence[Column]) -> str:
    rows = [
        (f"`{name}`", f"list of {kind.value[0]}" if kind.is_list else kind.value[0], meaning)
        for name, kind, meaning, *_ in columns
    ]
    return table(("column", "type", "meaning"), rows)
