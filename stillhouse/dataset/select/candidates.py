"""All rows of all shards in a few dozen bytes each: results of the filters, and what choices among rows depend on.

Ids are 64-bit hashes (XXH3); among a million ids the probability of a collision is n^2 / 2^65, 3 in 100 million.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.api.types import union_categoricals
from xxhash import xxh3_64_intdigest

from stillhouse.config import DatasetConfig
from stillhouse.dataset.read import shard_tables
from stillhouse.dataset.schema import CandidateShard
from stillhouse.dataset.select.filters import PLAIN, drop_bits, label_frame, score_names_in, score_source
from stillhouse.dataset.table import gathered
from stillhouse.errors import InputError
from stillhouse.labels.scores import score_column
from stillhouse.store.fingerprint import unit_interval

_BATCH_ROWS: Final = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """All rows in the order of the shards."""

    rows: pd.DataFrame
    """`id`, `prompt`, `cluster`, `original`: hashes; `original` is the row it repeats, or itself.
    `is_near`: whether it repeats that row only nearly. `sample_index`, `num_tool_calls`. `size`: student tokens, else
    completion tokens, else characters. `score`: the one `selection.score` names, or NaN. `verified`: 1, 0, or -1 for
    unverified. `draw`: the cluster's in [0, 1), NaN for rows that no split needs. `tag`: categorical with sorted
    categories. `is_repeated`: whether an earlier row has the same id."""
    reasons: npt.NDArray[np.uint64]
    """Reasons of the filters as `reasons.BITS`; 0 for repeated rows."""
    scores: frozenset[str]
    """The scores named in the config that some row has."""


def read_candidates(shards: Sequence[CandidateShard], config: DatasetConfig, max_tokens: int | None) -> Candidates:
    """Return all rows of `shards`. Memory holds a batch of labels and about 80 bytes a row.

    Raises:
        InputError: a file lacks columns or rows.
    """
    limits, scores = config.limits, config.score_names
    parts, bits, present = [], [], set[str]()
    score_sources = {score_source(name) for name in scores}
    tables = chain.from_iterable(_tables(shard, score_sources) for shard in shards)
    for batch in chain.from_iterable(table.to_batches() for table in gathered(tables, _BATCH_ROWS)):
        labels = label_frame(batch, scores)
        present.update(name for name in scores if labels[score_column(name)].notna().any())
        bits.append(drop_bits(labels, limits, max_tokens))
        parts.append(_compact(labels, bits[-1] == 0, config))
    if not parts:
        raise InputError(
            f"there is no trajectory to choose from: {len(shards)} shards, no row. Look at the rollouts",
            code="no-trajectory",
        )
    tags = union_categoricals([part.pop("tag") for part in parts], sort_categories=True)
    rows = pd.concat(parts, ignore_index=True).assign(tag=tags)
    rows["is_repeated"] = rows["id"].duplicated()
    reasons = np.concatenate(bits)
    reasons[rows["is_repeated"]] = 0
    return Candidates(rows, reasons, frozenset(present))


def score_names(shards: Sequence[CandidateShard]) -> list[str]:
    """Return names of all scores that rows of `shards` have, sorted."""
    tables = chain.from_iterable(shard_tables(shard, ("scores", "judge"), _BATCH_ROWS) for shard in shards)
    return sorted(set().union(*(score_names_in(batch) for table in tables for batch in table.to_batches())))


def _tables(shard: CandidateShard, score_sources: Collection[str]) -> Iterator[pa.Table]:
    """Return the labels of a shard, batch by batch; of `scores` and `judge` those needed for scores and verdicts."""
    names = {*PLAIN, "contamination", *score_sources}
    if shard.judge is not None:
        verifiers = pq.read_table(shard.candidates, columns=["verifier"])["verifier"].unique().to_pylist()
        names |= {"judge"} & {*verifiers}
    return shard_tables(shard, names, _BATCH_ROWS)


def _compact(labels: pd.DataFrame, passes: npt.NDArray[np.bool_], config: DatasetConfig) -> pd.DataFrame:
    cluster = labels["prompt_cluster"].fillna(labels["prompt_id"])
    repeats = _repeats(labels, config)
    size = labels["num_tokens"].fillna(labels["completion_tokens"]).fillna(labels["sampled_chars"])
    score = config.selection.score
    return pd.DataFrame(
        {
            "id": _hashes(labels["id"]),
            "prompt": _hashes(labels["prompt_id"]),
            "cluster": _hashes(cluster),
            "original": _hashes(labels["duplicate_of"].where(repeats, labels["id"])),
            "is_near": repeats & (labels["duplicate_kind"] == "near").to_numpy(bool, na_value=False),
            "sample_index": labels["sample_index"].to_numpy(np.int32),
            "num_tool_calls": labels["num_tool_calls"].to_numpy(np.int32),
            "size": size.to_numpy(np.float32, na_value=np.nan),
            "score": np.nan if score is None else labels[score_column(score)].to_numpy(np.float64, na_value=np.nan),
            "verified": labels["verified"].astype("int8[pyarrow]").to_numpy(np.int8, na_value=-1),
            "draw": _draws(cluster, passes, config),
            "tag": pd.Categorical(labels["tag"].astype(object)),
        }
    )


def _hashes(texts: "pd.Series[str]") -> npt.NDArray[np.uint64]:
    return np.fromiter(map(xxh3_64_intdigest, pa.array(texts).to_pylist()), np.uint64, len(texts))


def _repeats(labels: pd.DataFrame, config: DatasetConfig) -> npt.NDArray[np.bool_]:
    """Return rows that repeat another row of these shards, of the kinds that the config drops."""
    kinds = {"keep": (), "exact": ("exact",), "near": ("exact", "near")}[config.filters.duplicates]
    is_here = labels["duplicate_of"].notna() & labels["duplicate_source"].isna()
    return (is_here & labels["duplicate_kind"].isin(kinds)).to_numpy(bool)


def _draws(clusters: "pd.Series[str]", passes: npt.NDArray[np.bool_], config: DatasetConfig) -> npt.NDArray[np.float64]:
    """Return the draw of each cluster; salted, since all training prompts have a high draw in the held-out split."""
    draws = np.full(len(clusters), np.nan)
    if config.validation_fraction > 0:
        codes, names = pd.factorize(clusters[passes])
        draws[passes] = np.array([unit_interval("validation", 0, name) for name in names])[codes]
    return draws
