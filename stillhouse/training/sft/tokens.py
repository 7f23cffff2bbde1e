"""Rendered samples in memory-mapped files: written once for a job and read by all its processes."""

import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, overload

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from stillhouse.chat.samples import MessageStart
from stillhouse.config.training import SftSource
from stillhouse.dataset.read import SplitName
from stillhouse.errors import InputError, TrainingError
from stillhouse.prompts.row import first_problems
from stillhouse.store.atomic import replaced_folder
from stillhouse.store.fingerprint import digest
from stillhouse.training.ranks import Ranks
from stillhouse.training.sft.render import SCHEMA, RenderedChunk, Rendering, chunks_of
from stillhouse.training.sft.sources import source_fingerprint
from stillhouse.training.sft.workers import render_chunks
from stillhouse.types import Sample

logger = logging.getLogger(__name__)

_VERSION: Final = 4
"""To be raised when the same rows give other samples."""
_SPLITS: Final[tuple[SplitName, ...]] = ("train", "validation")
_LOG_EVERY_S: Final = 30.0
_COUNTS_FILE: Final = "counts.json"


class Samples(Sequence[Sample]):
    def __init__(self, path: Path) -> None:
        self._table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, row: int) -> Sample: ...
    @overload
    def __getitem__(self, row: slice) -> list[Sample]: ...
    def __getitem__(self, row: int | slice) -> Sample | list[Sample]:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        names = ("token_ids", "loss_mask", "prompt_id", "tag")
        ids, mask, prompt_id, tag = (self._table.column(name)[row] for name in names)
        return Sample(
            token_ids=ids.values.to_numpy().tolist(),
            loss_mask=mask.values.to_numpy(zero_copy_only=False).tolist(),
            prompt_id=prompt_id.as_py(),
            tag=tag.as_py(),
        )

    def starts(self, row: int) -> list[MessageStart]:
        """Return where the messages that a sample trains begin."""
        columns = (self._table.column(name)[row].as_py() for name in ("messages", "starts"))
        return list(map(MessageStart, *columns))

    def by_row_id(self) -> dict[str, list[int]]:
        """Return the samples of each row of datasets of this project, by the row's `id`."""
        numbers: dict[str, list[int]] = {}
        for number, row_id in enumerate(self._table.column("row_id").to_pylist()):
            if row_id is not None:
                numbers.setdefault(row_id, []).append(number)
        return numbers


@dataclass(frozen=True, slots=True)
class SftData:
    """The samples that a job trains on and validates with."""

    train: Samples
    """By source, in the order of its rows."""
    validation: Samples
    num_train: tuple[int, ...]
    """Training samples of each source."""
    counts: tuple[Counter[str], ...]
    """`RenderedChunk.counts` of each source."""
    problems: tuple[str, ...]
    """The first rejected rows of each source, in words; empty text where there is none."""

    @property
    def total(self) -> Counter[str]:
        return sum(self.counts, Counter())


def load_data(
    sources: Sequence[SftSource],
    tokenizer: PreTrainedTokenizerBase,
    rendering: Rendering,
    *,
    work_dir: Path,
    num_processes: int | None,
    ranks: Ranks,
) -> SftData:
    """Return the samples of all sources, rendered by the first process unless an earlier attempt did; collective.

    `work_dir` is the job's and holds the files under `tokens/`; `num_processes` is as in `render_chunks`.

    Raises:
        ConfigError, InputError: a source or a row cannot be trained on, or a source has no row to train on.
        StoreError: the files cannot be written.
        TrainingError: a process was killed, or the processes do not share the work folder.
    """
    folder = work_dir / "tokens" / _digest(sources, tokenizer, rendering)[:16]
    if ranks.is_first and not folder.is_dir():
        _write(folder, render_chunks(tokenizer, chunks_of(sources), rendering, num_processes), len(sources))
    ranks.barrier()
    if not folder.is_dir():
        raise TrainingError(
            f"{folder} is not there, though the first process wrote it; expected hosts that train together to share "
            "runtime.store"
        )
    stored = json.loads((folder / _COUNTS_FILE).read_bytes())
    data = SftData(
        train=Samples(folder / "train.arrow"),
        validation=Samples(folder / "validation.arrow"),
        num_train=tuple(stored["num_train"]),
        counts=tuple(map(Counter, stored["counts"])),
        problems=tuple(stored["problems"]),
    )
    total = data.total
    if ranks.is_first:
        logger.info(
            "%d samples to train on, %d to validate with: %s", len(data.train), len(data.validation), _summary(total)
        )
        if total["repeated_tokens"]:
            logger.info(
                "the student's chat template renders earlier turns another way later on, so that conversations are "
                "trained on in several samples: %d tokens are read more than once",
                total["repeated_tokens"],
            )
    for source, num_rows, counts, problems in zip(sources, data.num_train, data.counts, data.problems, strict=True):
        if not counts["rows"]:
            raise InputError(f"{source.path} holds no row; expected conversations to train on, or leave the source out")
        if num_rows == 0:
            raise InputError(
                f"{source.path}: no row is left to train on; {_summary(counts)}. Look at sft.too_long, "
                "student.max_length, sft.train_on, and the source's validation_share, or leave the source out"
                f"\n  {problems}".rstrip()
            )
    return data


def _digest(sources: Sequence[SftSource], tokenizer: PreTrainedTokenizerBase, rendering: Rendering) -> str:
    vocabulary = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else sorted(tokenizer.get_vocab().items())
    return digest(
        {
            "version": _VERSION,
            "sources": [[source_fingerprint(source), source.validation_share] for source in sources],
            "tokenizer": [vocabulary, tokenizer.chat_template, tokenizer.special_tokens_map],
            "rendering": [rendering.max_length, rendering.too_long, sorted(rendering.parts)],
        }
    )


def _write(folder: Path, chunks: Iterable[RenderedChunk], num_sources: int) -> None:
    counts: list[Counter[str]] = [Counter() for _ in range(num_sources)]
    num_train = [0] * num_sources
    problems: list[list[str]] = [[] for _ in range(num_sources)]
    with replaced_folder(folder) as work:
        with ExitStack() as open_files:
            files = {
                split: open_files.enter_context(pa.ipc.new_file(str(work / f"{split}.arrow"), SCHEMA))
                for split in _SPLITS
            }
            logged_at = time.monotonic()
            for chunk in chunks:
                if time.monotonic() > logged_at + _LOG_EVERY_S:
                    logged_at = time.monotonic()
                    logger.info("rendered %d rows", sum(source["rows"] for source in counts))
                for split, batch in chunk.batches.items():
                    files[split].write_batch(batch)
                num_train[chunk.source] += chunk.batches["train"].num_rows
                counts[chunk.source] += chunk.counts
                problems[chunk.source] += chunk.problems
        (work / _COUNTS_FILE).write_text(
            json.dumps({"num_train": num_train, "counts": counts, "problems": list(map(first_problems, problems))})
        )


def _summary(counts: Counter[str]) -> str:
    return (
        f"of {counts['rows']} rows {counts['rejected']} are rejected, {counts['truncated']} truncated, "
        f"{counts['dropped']} too long, {counts['unlearnt']} without what is to be learnt"
    )
