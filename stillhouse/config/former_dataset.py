"""The section `dataset` as version 0.1 had it, which is what the keys of stored labels and datasets are made of."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stillhouse.config.dataset import DatasetConfig, LabelsConfig, SelectionConfig

_SWITCHES: Final = ("language", "privacy", "rewards", "student_nll")
_BANDS: Final = ("turns", "answer_chars", "student_nll", "student_pass_rate")
_FILTERS: Final[dict[str, Any]] = {
    **{"drop_wrong": True, "keep_unverified": True, "drop_refusals": False, "check_format": True},
    **{"max_tool_errors": None, "max_tokens": None, "max_repetition": None, "min_compression_ratio": None},
    **{f"{end}_{name}": None for name in _BANDS for end in ("min", "max")},
    **{"languages": [], "drop_private": [], "min_scores": {}, "max_scores": {}},
    **{"duplicates": "keep", "contamination_ngrams": 8},
}
"""The filters at their defaults. One that is not among them enters a key where it is set."""


def former_sections(dataset: "DatasetConfig") -> dict[str, Any]:
    """Return the sections of a `DatasetConfig` whose form is another now."""
    return {
        "labels": former_labels(dataset.labels, dataset.measured),
        "duplicates": dataset.comparison.identity(),
        "contamination": {"sets": dataset.contamination, "ngrams": list(dataset.overlap_lengths)},
        "filters": _former_filters(dataset.filters.model_dump(mode="json", exclude_defaults=True)),
        "selection": _former_selection(dataset.selection),
    }


def former_labels(labels: "LabelsConfig", measured: Sequence[str]) -> dict[str, Any]:
    """Return the section `labels`, in which what is measured on request had switches."""
    later = [name for name in measured if name not in (*_SWITCHES, "near_duplicates")]
    return {
        **labels.model_dump(mode="json", exclude={"measure"}),
        **{name: name in measured for name in _SWITCHES},
        **{"answer_schema": {}, "answer_pattern": None},
        **({"measure": later} if later else {}),
    }


def _former_filters(limits: dict[str, Any]) -> dict[str, Any]:
    bands = {name: limits.pop(name) for name in _BANDS if name in limits}
    scores = limits.pop("scores", {})
    for at, end in enumerate(("min", "max")):
        limits |= {f"{end}_{name}": band[at] for name, band in bands.items()}
        limits[f"{end}_scores"] = {name: band[at] for name, band in scores.items() if band[at] is not None}
    return {**_FILTERS, **limits}


def _former_selection(selection: "SelectionConfig") -> dict[str, Any]:
    lowest, highest = selection.pass_rate or (None, None)
    return {
        **selection.identity({"pass_rate"}),
        **{"min_pass_rate": lowest, "max_pass_rate": highest, "score": selection.score},
        "prefer": selection.prefer if selection.score is None else "score",
    }
