"""Sections of the dataset: what is measured of each trajectory, and which trajectories are kept.

Everything under `labels`, `judge`, `duplicates` and `contamination` decides what is measured and costs time or
requests; `filters`, `selection` and the split follow from what was measured and cost seconds.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from stillhouse.config.rollouts import TeacherConfig
from stillhouse.config.section import Section
from stillhouse.types import JsonObject


class LabelsConfig(Section):
    """What is measured of each trajectory on this machine."""

    render: bool = True
    """Render each row with the student's chat template: its length in tokens, what is supervised, template errors. Off
    only for data whose student is not chosen yet."""
    language: bool = False
    """Identify the language of the answer, for `filters.languages`."""
    privacy: bool = False
    """Look for personal data (e-mail addresses, telephone numbers, cards, bank accounts) and leaked secrets, for
    `filters.drop_private`. Switch it on for prompts that users wrote."""
    answer_schema: JsonObject = {}
    """JSON schema that the final answer should meet; empty asks for none. For answers that a program reads;
    `rollouts.response_schema` asks the teacher for them."""
    answer_pattern: str | None = None
    """Regular expression that the final answer should contain; None asks for none."""
    file: str | None = None
    """Path of a Python file whose functions under `@label` score trajectories or give reasons against them."""
    rewards: bool = False
    """Score with the functions of `tools.rewards_file`, for `filters.min_scores` and `selection.prefer`."""
    student_nll: bool = False
    """Measure the student's mean negative log-likelihood of the supervised tokens, in nats: how new a row is to it. One
    forward pass a row."""
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
    removed = {"failure_budget": 0.1}

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
    temperature: float = Field(default=0.0, ge=0.0)
    """Sampling temperature; 0 is greedy. Above 0 only where `num_samples` is above 1."""
    max_tokens: int = Field(default=1024, ge=1)
    """Most tokens of one judgement, its reasoning included; raise it for a reasoning model."""


class DuplicatesConfig(Section):
    """How alike rows are found."""

    near: bool = False
    """Find near-duplicates by MinHash as well, not only rows that are equal after normalisation. For prompts gathered
    from several places."""
    threshold: float = Field(default=0.85, gt=0.0, le=1.0)
    """Jaccard similarity of shingles from which two texts count as near-duplicates. 0.8 to 0.9 finds reworded copies;
    lower, tasks of one template with other figures count as copies."""
    shingle_words: int = Field(default=5, ge=1)
    """Words of one shingle. 5 suits paragraphs; try 3 for texts of a sentence or two."""
    num_permutations: int = Field(default=128, ge=16)
    """Hashes of a signature; more find near-duplicates more surely and cost more. 128 estimates a similarity of 0.85 to
    within 0.03."""
    earlier: tuple[str, ...] = ()
    """Datasets to compare with as well: folders that `dataset` wrote, or their Parquet files."""


class ContaminationConfig(Section):
    """Evaluation sets whose text must not be trained on."""

    sets: dict[str, str] = {}
    """Evaluation sets as `NAME: FILE`; txt, jsonl, csv or Parquet. Name every benchmark that the student will be
    reported on."""
    ngrams: tuple[Annotated[int, Field(ge=1)], ...] = (8, 13)
    """Lengths in words of the overlaps looked for. 13 is GPT-3's; 8 finds more copies, and more phrases that are merely
    common."""


def _check_bands(section: Any, *names: str) -> None:
    for name in names:
        least, most = getattr(section, f"min_{name}"), getattr(section, f"max_{name}")
        if least is not None and most is not None and least > most:
            raise ValueError(f"min_{name} = {least} is above max_{name} = {most}: no row could pass")


class FiltersConfig(Section):
    """Which labels a row may have. None and empty set no limit; a row for which a label has no value passes."""

    drop_wrong: bool = True
    """Drop trajectories whose answer is verified as wrong. Off for a verifier that you do not trust yet."""
    keep_unverified: bool = True
    """Keep trajectories that nothing verifies. Off, prompts without an expected answer give no row."""
    max_tool_errors: int | None = Field(default=None, ge=0)
    """Most failed tool calls. 0 leaves clean rows alone; 1 or 2 let the student see how the teacher recovers."""
    min_turns: int | None = Field(default=None, ge=1)
    """Fewest turns. 2 drops answers that used no tool."""
    max_turns: int | None = Field(default=None, ge=1)
    """Most turns. The longest are often loops: see the distribution in the dataset's report."""
    min_answer_chars: int | None = Field(default=None, ge=1)
    """Fewest characters of the final answer, against empty and one-word answers."""
    max_answer_chars: int | None = Field(default=None, ge=1)
    """Most characters of the final answer; the student learns the lengths it sees."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most student tokens of a row; None leaves it to the student's `max_length`."""
    languages: tuple[Annotated[str, Field(pattern=r"^[a-z]{2}$")], ...] = ()
    """ISO 639-1 codes of the languages an answer may have, such as `de`; empty allows any. Short answers are often
    taken for another language: look at what is dropped."""
    drop_refusals: bool = False
    """Drop answers that refuse, or that mention being a language model. Look at those it drops once: it goes by
    phrases."""
    max_repetition: float | None = Field(default=None, ge=0.0, le=1.0)
    """Largest share of sampled text in word n-grams that came before. Set it above what the dataset's report shows for
    rows you like: loops stand far apart."""
    min_compression_ratio: float | None = Field(default=None, gt=0.0)
    """Smallest size of the sampled text after gzip, as a share of its size before; loops compress far. Prose has 0.3 or
    more, a long loop less than 0.1."""
    check_format: bool = True
    """Drop answers that miss `labels.answer_schema` or `labels.answer_pattern`, or whose think tags do not match."""
    drop_private: tuple[Literal["secret", "email", "phone", "card", "iban", "ip", "id"], ...] = ()
    """Kinds of private data whose rows are dropped. `secret` always; the others where prompts or pages come from
    people, since a model may repeat what it learnt."""
    min_scores: dict[str, float] = {}
    """Lowest scores by name: `judge/NAME`, `reward`, `reward/NAME`, or a function of `labels.file`. Begin without, and
    see the scores of rows you would drop in the dataset's report."""
    max_scores: dict[str, float] = {}
    """Highest scores by name, for scores of which less is better, such as a length or a penalty."""
    min_student_nll: float | None = Field(default=None, ge=0.0)
    """Lowest negative log-likelihood of the student, in nats per token; below it, the row is known already. Begin with
    the lowest tenth in the dataset's report."""
    max_student_nll: float | None = Field(default=None, ge=0.0)
    """Highest negative log-likelihood of the student, in nats per token; above, rows are often broken or in another
    language."""
    min_student_pass_rate: float | None = Field(default=None, ge=0.0, le=1.0)
    """Lowest share of the student's own answers to the prompt that are right; above 0 drops what it never solves."""
    max_student_pass_rate: float | None = Field(default=None, ge=0.0, le=1.0)
    """Highest share of them; below 1 drops what it always solves, from which it learns least."""
    duplicates: Literal["keep", "exact", "near"] = "keep"
    """Drop rows that repeat an earlier row after normalisation, or nearly; the samples of one prompt count as well."""
    contamination_ngrams: int | None = Field(default=8, ge=1)
    """Drop rows that share at least this many consecutive words with an evaluation set; None drops none. Take 13 if 8
    drops rows for common phrases."""

    @model_validator(mode="after")
    def _leaves_something(self) -> Self:
        _check_bands(self, "turns", "answer_chars", "student_nll", "student_pass_rate")
        for name in self.min_scores.keys() & self.max_scores.keys():
            if self.min_scores[name] > self.max_scores[name]:
                raise ValueError(f"min_scores.{name} is above max_scores.{name}: no row could pass")
        return self


class SelectionConfig(Section):
    """Which of the rows that pass the filters are kept."""

    removed = {"max_diverse_rows": None, "pairs": False}

    min_pass_rate: float | None = Field(default=None, ge=0.0, le=1.0)
    """Lowest share of right trajectories among the prompt's verified ones: below, the prompt is too hard, or its
    expected answer wrong. Needs `rollouts.num_samples` above 1, as `max_pass_rate` does."""
    max_pass_rate: float | None = Field(default=None, ge=0.0, le=1.0)
    """Highest such share: above, the prompt is too easy. Below 1 it leaves out what the teacher always solves."""
    rows_per_prompt: int | None = Field(default=None, ge=1)
    """Most rows of one prompt; None keeps all. 1 to 4 keep easy prompts, of which all samples pass, from filling the
    dataset."""
    prefer: Literal["first", "shortest", "fewest_tool_calls", "score"] = "first"
    """Order of a prompt's rows, right before unverified: by sample index, tokens, tool calls or `score`."""
    score: str | None = None
    """Name of the score that `prefer: score` orders by, highest first."""
    quotas: dict[str, Annotated[int, Field(ge=0)]] = {}
    """Most rows by tag, to even out domains."""
    target_rows: int | None = Field(default=None, ge=1)
    """Keep exactly this many rows, and sample the teacher only until they are complete; None keeps what passes."""
    max_candidates: int | None = Field(default=None, ge=1)
    """Most rollouts to sample for `target_rows`; None allows `rollouts.num_samples` for each prompt. Twice to three
    times `target_rows` keeps a filter that passes little from spending the budget."""

    @model_validator(mode="after")
    def _goes_by_a_score(self) -> Self:
        _check_bands(self, "pass_rate")
        if (self.prefer == "score") != (self.score is not None):
            raise ValueError("prefer: score and the name of a score belong together: set both or neither")
        if self.max_candidates is not None and self.target_rows is None:
            raise ValueError("max_candidates bounds target_rows, which is not set: set it, or leave both out")
        return self


_MEASURED_BY: Final = {
    "languages": "language",
    "drop_private": "privacy",
    "max_tokens": "render",
    "min_student_nll": "student_nll",
    "max_student_nll": "student_nll",
    "min_student_pass_rate": "student_samples",
    "max_student_pass_rate": "student_samples",
}
"""Filters, and the switch in `labels` without which they would drop nothing."""


class DatasetConfig(Section):
    """Which trajectories become training rows. Labels measure; `kept` follows from labels and this section."""

    form_first = ("filters", "selection")
    removed = {
        "split_seed": 0,
        "embeddings": {
            "base_url": None,
            "model": "text-embedding-3-small",
            "usd_per_million_tokens": None,
            "batch_size": 128,
        },
    }

    labels: LabelsConfig = LabelsConfig()
    """What this machine measures of each trajectory."""
    judge: JudgeConfig = JudgeConfig()
    """A language model that grades trajectories."""
    duplicates: DuplicatesConfig = DuplicatesConfig()
    """How rows that repeat others are found."""
    contamination: ContaminationConfig = ContaminationConfig()
    """Evaluation sets to look for."""
    filters: FiltersConfig = FiltersConfig()
    """Thresholds of the labels."""
    selection: SelectionConfig = SelectionConfig()
    """Choices among the rows that pass the filters."""
    validation_fraction: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Share of prompts whose rows are kept out of training to measure validation loss. 0.05 from 1,000 rows on; below,
    0.1, or 0 to train on all."""

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.filters.duplicates == "near" and not self.duplicates.near:
            raise ValueError("filters.duplicates is near, but duplicates.near is off: switch it on")
        for name, label in _MEASURED_BY.items():
            if getattr(self.filters, name) not in (None, ()) and not getattr(self.labels, label):
                raise ValueError(f"filters.{name} goes by what labels.{label} measures, which is off: switch it on")
        return self
