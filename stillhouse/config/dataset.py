"""Sections of the dataset: what is measured of each trajectory, and which trajectories are kept.

What is measured costs time or requests: `labels`, `judge`, `contamination`, and what a filter goes by. The limits in
`filters`, `selection` and the split follow from what was measured and cost seconds.
"""

import re
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field, WithJsonSchema, create_model, model_validator

from stillhouse.config.rollouts import TeacherConfig
from stillhouse.config.section import Section
from stillhouse.config.suggest import nearest
from stillhouse.labels import LABELS, LIMITS, ON_REQUEST
from stillhouse.labels.declare import between


def _is_label(name: str) -> str:
    if name not in ON_REQUEST:
        meant = nearest(name, ON_REQUEST)
        hint = f"did you mean {meant!r}?" if meant else f"expected one of {', '.join(ON_REQUEST)}"
        raise ValueError(f"no label that is measured on request; {hint}")
    return name


class LabelsConfig(Section):
    """Measurements of each trajectory on this machine. A filter that is set has what it goes by measured."""

    measure: tuple[
        Annotated[str, AfterValidator(_is_label), WithJsonSchema({"type": "string", "enum": list(ON_REQUEST)})], ...
    ] = ()
    """Labels to measure although no filter goes by them, to see them in the report before a limit is set."""
    render: bool = True
    """Render each row with the student's chat template: its length in tokens, what is supervised, template errors. Off
    only for data whose student is not chosen yet."""
    file: str | None = None
    """Path of a Python file whose functions under `@label` score trajectories or give reasons against them."""
    student_samples: int = Field(default=0, ge=0)
    """Trajectories of the student to sample for each prompt, for its pass rate; 0 samples none. 4 to 8 tell what it
    always or never solves; on a CPU that takes longer than all other labels."""


class Criterion(Section):
    """One line of a judge's rubric."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Name of the score it gives, `judge/NAME` in the column `scores`."""
    question: str = Field(min_length=1)
    """Question that the judge answers by a grade. Ask one thing, and say what the highest and the lowest grade mean."""
    best: int = Field(default=5, ge=1)
    """Highest grade; the lowest is 0. Scores are grades divided by this. 1 is a yes or no, 3 to 5 leave a judge
    room."""


class JudgeConfig(Section):
    """A language model that grades trajectories against a rubric, through the rollout engine."""

    form_first = ("enabled", "model", "rubric")

    enabled: bool = False
    """Run the judge: at least one request for each trajectory."""
    model: TeacherConfig = TeacherConfig()
    """The judge, its endpoint and prices; it spends from the run's budget."""
    rubric: tuple[Criterion, ...] = ()
    """Criteria to grade; empty only verifies the answers of prompts under the verifier `judge`."""
    instructions: str | None = None
    """Added to the judge's instructions; None adds nothing. Say there what a good answer is in your field."""
    num_samples: int = Field(default=1, ge=1)
    """Judgements of each trajectory; scores are their mean and verdicts their majority. 1 is enough to filter by; 3 or
    5, at a `temperature` above 0, where single verdicts decide."""
    temperature: float | None = Field(default=None, ge=0.0)
    """Sampling temperature; None leaves it to the model. 0 is greedy, which suits a judge that takes it and is asked
    once; above 0 only where `num_samples` is above 1."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens of one judgement, its reasoning included; raise it for a reasoning model."""


class DuplicatesConfig(Section):
    """How alike rows are found."""

    threshold: float = Field(default=0.85, gt=0.0, le=1.0)
    """Jaccard similarity of shingles from which two texts count as near-duplicates. 0.8 to 0.9 finds reworded copies;
    lower, tasks of one template with other figures count as copies."""
    earlier: tuple[str, ...] = ()
    """Datasets to compare with as well: folders that `dataset` wrote, or their Parquet files."""


class Comparison(DuplicatesConfig):
    """Settings of finding duplicates, with what filters imply."""

    near: bool = False
    """Find near-duplicates by MinHash as well, not only rows that are equal after normalisation."""


_LIMITS: Final[dict[str, Any]] = {limit.key: limit.field for limit in LIMITS}


class FiltersConfig(create_model("Limits", __base__=Section, **_LIMITS)):  # type: ignore[misc]
    """Limits of the labels. Null and empty set no limit; a row for which a label has no value passes."""

    def key_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        # A limit that is declared later changes no key.
        return self.model_dump(mode="json", exclude_defaults=True)


_ORDERS: Final = r"^(first|shortest|fewest_tool_calls|score:.+)$"


def _is_order(value: str) -> str:
    if re.match(_ORDERS, value) is None:
        raise ValueError("expected first, shortest, fewest_tool_calls or score:NAME")
    return value


class SelectionConfig(Section):
    """Rows to keep among those that pass the filters."""

    pass_rate: between(float, ge=0.0, le=1.0) = None  # type: ignore[valid-type]
    """Lowest and highest share of right trajectories among the prompt's verified ones, such as `[0.1, 0.9]`; null sets
    no limit. Below, the prompt is too hard or its expected answer wrong; above, it is too easy. Needs
    `rollouts.num_samples` above 1."""
    rows_per_prompt: int | None = Field(default=None, ge=1)
    """Most rows of one prompt; None keeps all. 1 to 4 keep easy prompts, of which all samples pass, from filling the
    dataset."""
    prefer: Annotated[str, AfterValidator(_is_order)] = Field(default="first", json_schema_extra={"pattern": _ORDERS})
    """Order of a prompt's rows, right before unverified: by sample index (`first`), by tokens (`shortest`), by tool
    calls (`fewest_tool_calls`), or by a score, highest first (`score:NAME`)."""
    quotas: dict[str, Annotated[int, Field(ge=0)]] = {}
    """Most rows by tag, to even out domains."""
    target_rows: int | None = Field(default=None, ge=1)
    """Keep exactly this many rows, and sample the teacher only until they are complete; None keeps what passes."""
    max_candidates: int | None = Field(default=None, ge=1)
    """Most rollouts to sample for `target_rows`; None allows `rollouts.num_samples` for each prompt. Twice to three
    times `target_rows` keeps a filter that passes little from spending the budget."""

    @property
    def score(self) -> str | None:
        """Return the score that rows are preferred by."""
        return self.prefer.removeprefix("score:") if self.prefer.startswith("score:") else None

    @model_validator(mode="after")
    def _bounds_a_target(self) -> Self:
        if self.max_candidates is not None and self.target_rows is None:
            raise ValueError("max_candidates bounds target_rows, which is not set: set it, or leave both out")
        return self


_OVERLAPS: Final = (8, 13)
"""Lengths in words of the overlaps with evaluation sets that are looked for in any case."""


class DatasetConfig(Section):
    """From trajectories to training rows. Labels measure; `kept` follows from labels and this section."""

    form_first = ("validation_fraction",)

    labels: LabelsConfig = LabelsConfig()
    """Measurements of each trajectory on this machine."""
    judge: JudgeConfig = JudgeConfig()
    """A language model that grades trajectories."""
    duplicates: DuplicatesConfig = DuplicatesConfig()
    """How rows that repeat others are found."""
    contamination: dict[str, str] = {}
    """Evaluation sets whose text must not be trained on, as `NAME: FILE`; txt, jsonl, csv or Parquet. Name every
    benchmark that the student will be reported on."""
    filters: FiltersConfig = FiltersConfig()
    """Limits of the labels."""
    selection: SelectionConfig = SelectionConfig()
    """Choices among the rows that pass the filters."""
    validation_fraction: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of prompts whose rows are kept out of training to measure validation loss. 0.05 from 1,000 rows on; below,
    0.1, or 0 to train on all."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.filters.student_pass_rate is not None and not self.labels.student_samples:
            raise ValueError(
                "filters.student_pass_rate goes by what labels.student_samples measures, which is 0: set it"
            )
        return self

    @property
    def limits(self) -> dict[str, Any]:
        """Return the filters that are set, by key."""
        return {limit.key: value for limit in LIMITS if (value := getattr(self.filters, limit.key)) != limit.off}

    @property
    def score_names(self) -> list[str]:
        """Return the names of the scores that filters and selection go by, sorted."""
        preferred = self.selection.score
        return sorted({*self.filters.scores, *([] if preferred is None else [preferred])})

    @property
    def measured(self) -> tuple[str, ...]:
        """Return the labels of `ON_REQUEST` that a limit or a score goes by, or that `labels.measure` names."""
        return tuple(label.on_request for label in LABELS if label.on_request and label.is_wanted(self))

    @property
    def comparison(self) -> Comparison:
        """Return the settings of finding duplicates."""
        near = "near_duplicates" in self.measured
        return Comparison(near=near, threshold=self.duplicates.threshold, earlier=self.duplicates.earlier)

    @property
    def overlap_lengths(self) -> tuple[int, ...]:
        """Return the lengths in words of the overlaps with evaluation sets to look for, ascending."""
        wanted = self.filters.contamination_ngrams
        return tuple(sorted({*_OVERLAPS, wanted})) if self.contamination and wanted is not None else _OVERLAPS
