"""The dataset card: what is in the folder, how it came about, what was dropped and why.

Front matter in the form the Hugging Face hub reads, so that the folder loads as a dataset. No dates: equal content
gives an equal card.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import yaml

from stillhouse.config import DatasetConfig
from stillhouse.dataset.labels import MEANINGS
from stillhouse.dataset.schema import COLUMNS
from stillhouse.dataset.tally import Tally


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card tells."""

    tally: Tally
    config: DatasetConfig
    max_tokens: int
    student: str | None
    """Identity of the model whose chat template rendered the rows; None where none did."""
    lineage: dict[str, str]
    """Names and fingerprints of the inputs."""
    files: dict[str, tuple[int, str]]
    """Rows and SHA-256 of each file."""


def dataset_card(facts: CardFacts) -> str:
    """The card in Markdown."""
    parts = [
        f"---\n{_front_matter(facts)}---\n",
        "# Teacher trajectories\n",
        _summary(facts),
        "## Funnel\n",
        _table(("step", "trajectories left"), facts.tally.funnel()),
        "A trajectory is dropped for every reason that holds, so these add up to more than were dropped:\n",
        _table(("reason", "trajectories", "meaning"), _reason_rows(facts.tally)),
        "## Origin\n",
        _table(("what", "value"), _origin_rows(facts)),
        "The section `dataset` of the config:\n",
        f"```yaml\n{_yaml(facts.config.model_dump(mode='json'))}```\n",
        "## Files\n",
        _table(("file", "rows", "SHA-256"), [(name, rows, f"`{sha}`") for name, (rows, sha) in facts.files.items()]),
        "## Columns\n",
        "JSON columns carry Arrow's JSON type: `datasets` (4.7 or later) gives objects, pandas and DuckDB give text.\n",
        _table(("column", "type", "meaning"), [(f"`{c.name}`", _type_name(c.kind.value), c.meaning) for c in COLUMNS]),
    ]
    return "\n".join(parts)


def _front_matter(facts: CardFacts) -> str:
    # `datasets` refuses a split whose file has no rows.
    named = {"default": ("train", "validation"), "rejected": ("rejected",)}
    configs = []
    for config_name, splits in named.items():
        data_files = [{"split": split, "path": path} for split in splits if facts.files[path := f"{split}.parquet"][0]]
        if data_files:
            configs.append({"config_name": config_name, "data_files": data_files})
    return _yaml({"configs": configs})


def _summary(facts: CardFacts) -> str:
    tally = facts.tally
    right, wrong = tally.verified[True], tally.verified[False]
    accuracy = f" ({right / (right + wrong):.1%} of those verified)" if right + wrong else ""
    return (
        f"{tally.kept} of {tally.num_rollouts} trajectories are kept: {tally.splits['train']} to train on, "
        f"{tally.splits['validation']} to validate with; the others are in `rejected.parquet` with their reasons. "
        f"Duplicates left out: {tally.duplicates}. Answers: {right} right{accuracy}, {wrong} wrong, "
        f"{tally.verified[None]} unverified. {_tokens(facts)}Splits are grouped by prompt.\n"
    )


def _tokens(facts: CardFacts) -> str:
    if facts.student is None:
        return ""
    tally = facts.tally
    return f"The kept rows hold {tally.tokens} tokens of the student, {tally.supervised_tokens} of them supervised. "


def _reason_rows(tally: Tally) -> list[tuple[str, int, str]]:
    return [(f"`{reason}`", tally.reasons[reason.value], meaning) for reason, meaning in MEANINGS.items()]


def _origin_rows(facts: CardFacts) -> list[tuple[str, str]]:
    teachers = ", ".join(f"`{name}` ({count})" for name, count in sorted(facts.tally.teachers.items()))
    return [
        ("teacher (trajectories)", teachers),
        *_render_rows(facts),
        ("Stillhouse", version("stillhouse")),
        *((name, f"`{fingerprint}`") for name, fingerprint in sorted(facts.lineage.items())),
    ]


def _render_rows(facts: CardFacts) -> list[tuple[str, str]]:
    if facts.student is None:
        return [("student whose chat template was checked", "none: dataset.labels.render is off")]
    return [
        ("student whose chat template was checked", f"`{facts.student}`"),
        ("longest row kept", f"{facts.max_tokens} tokens"),
    ]


def _type_name(kind: Sequence[str]) -> str:
    return f"list of {kind[0]}" if len(kind) > 1 else kind[0]


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=False)
