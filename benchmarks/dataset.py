"""From trajectories to a dataset: rows a second and peak memory, against a pandas script and `datasets.map`.

Claims
    flat     a million rows take little more memory than ten thousand.
    linear   time follows the number of rows.
    free     other filters over 100,000 labelled rows take seconds and no request.

All sides read the same files of trajectories, make the same labels with the same functions, drop the same rows and
write Parquet; ours finds the near-duplicates as well and writes card and report. The script holds all rows in one
DataFrame, as such scripts do; `datasets` maps in as many processes as we label in. Each side runs in a process of its
own; its memory is the proportional set size of all its processes, looked at five times a second.

Measured
    Rows of about 2 kB, two cores; seconds of labels and signatures, of everything after them (duplicates, selection,
    files, card, report), and of other filters. The smaller ones ran with other work on the machine, the million alone.

                            rows/s   label   rest   again   peak
           10,000  ours      1,655     4.6    1.4     0.7   375 MB
                   pandas    1,960     4.9    0.2           229 MB
                   datasets  2,405     3.6    0.6           644 MB
          100,000  ours      2,756    31.5    4.8     3.5   457 MB
                   pandas    1,929    50.9    0.9           983 MB
                   datasets  2,517    33.4    6.3         2,142 MB
        1,000,000  ours      3,578   241.8   37.7    25.0   708 MB
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.frame.rounds import publish
from stillhouse.config import DatasetConfig, FiltersConfig, LabelsConfig, StudentConfig, ToolsConfig
from stillhouse.dataset.labelling.label import Labelling
from stillhouse.store.records import read_metadata, read_trajectories, write_jsonl
from stillhouse.types import Message, PromptMetadata, StopReason, ToolCall, Trajectory, Turn

_SHARD_ROWS: Final = 2500
_SAMPLES: Final = 4
_NUM_PROCESSES: Final = 2
_LOOK_S: Final = 0.2
_CONFIG: Final = DatasetConfig(
    labels=LabelsConfig(render=False, measure=("near_duplicates",)),
    filters=FiltersConfig(max_repetition=0.5, drop_refusals=True),
)
_LABELLING: Final = Labelling.of(_CONFIG, tools=ToolsConfig(), student=StudentConfig())


def trajectories(count: int) -> Iterator[tuple[Trajectory, PromptMetadata]]:
    """`count` trajectories of about 2 kB, four for each prompt; a third of them with a tool call, a tenth wrong."""
    chance = random.Random(0)
    vocabulary = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 9))) for _ in range(20_000)]
    for number in range(count):
        if number % _SAMPLES == 0:
            question = " ".join(chance.choices(vocabulary, k=60))
        prompt_id, answer = f"{number // _SAMPLES:064x}", str(number % 997)
        messages: list[Message] = [{"role": "user", "content": question}]
        turns = [Turn("stop", {"prompt_tokens": 90, "completion_tokens": 300}, 1.0, "m", cost_usd=0.0001)]
        if number % 3 == 0:
            arguments = json.dumps({"expression": f"{number} % 997"})
            call: ToolCall = {
                "id": "c",
                "type": "function",
                "function": {"name": "calculator", "arguments": arguments},
            }
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": answer},
            ]
            turns *= 2
        said = answer if number % 10 else "none"
        words = " ".join(chance.choices(vocabulary, k=240))
        messages.append({"role": "assistant", "content": f"{words}. The answer is {said}."})
        trajectory = Trajectory(
            f"{number:064x}", prompt_id, number % _SAMPLES, messages, [], turns, StopReason.ANSWERED, "m"
        )
        yield trajectory, PromptMetadata(prompt_id, answer, f"tag {number % 7}", "numeric", {})


def write_shards(count: int, folder: Path) -> None:
    """Files of trajectories in `folder`, each with the metadata of its prompts."""
    remaining = iter(trajectories(count))
    number = 0
    while rows := list(islice(remaining, _SHARD_ROWS)):
        shard = folder / f"{number:05}"
        shard.mkdir(parents=True)
        write_jsonl(shard / "trajectories.jsonl", (trajectory for trajectory, _ in rows))
        write_jsonl(shard / "metadata.jsonl", {about.prompt_id: about for _, about in rows}.values())
        number += 1


def stillhouse(folder: Path, output: Path) -> dict[str, float]:
    """Seconds of each stage of ours, and of the last one alone with other filters."""
    from stillhouse.dataset.build import assemble_dataset
    from stillhouse.dataset.duplicates.find import find_duplicates
    from stillhouse.dataset.labelling.label import label_file, label_processes
    from stillhouse.dataset.report.origin import Origin
    from stillhouse.dataset.schema import CANDIDATES_FILE, SIGNATURES_FILE, CandidateShard

    shards = []
    seconds = {}
    started = time.perf_counter()
    with label_processes(_NUM_PROCESSES) as pool:
        under_way = []
        for source in sorted(folder.iterdir()):
            target = output / "labels" / source.name
            target.mkdir(parents=True)
            shards.append(CandidateShard(target / CANDIDATES_FILE, target / SIGNATURES_FILE))
            files = (source / "trajectories.jsonl", source / "metadata.jsonl")
            under_way.append(pool.submit(label_file, *files, _LABELLING, target))
        for future in under_way:
            future.result()
    seconds["label"], started = time.perf_counter() - started, time.perf_counter()
    (output / "duplicates").mkdir()
    parts = find_duplicates(shards, _CONFIG.comparison, output / "duplicates")
    seconds["duplicates"] = time.perf_counter() - started
    shards = [
        CandidateShard(one.candidates, one.signatures, duplicates=part) for one, part in zip(shards, parts, strict=True)
    ]
    stricter = _CONFIG.model_copy(update={"filters": FiltersConfig(max_repetition=0.4, answer_chars=(100, None))})
    for name, config in (("dataset", _CONFIG), ("refilter", stricter)):
        started = time.perf_counter()
        (output / name).mkdir()
        assemble_dataset(shards, Origin(config=config, code_version="", student=None, max_tokens=None), output / name)
        seconds[name] = time.perf_counter() - started
    return seconds


def pandas_script(folder: Path, output: Path) -> dict[str, float]:
    """Seconds of a script that holds everything in one DataFrame."""
    import pandas as pd

    from stillhouse.dataset.select.filters import passes

    seconds = {}
    started = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for source in sorted(folder.iterdir()):
        rows += _labelled(list(read_trajectories(source / "trajectories.jsonl")), source)
    frame = pd.DataFrame(rows)
    seconds["label"], started = time.perf_counter() - started, time.perf_counter()
    kept = passes(rows, _CONFIG, None)
    frame[kept].drop_duplicates("id").to_parquet(output / "train.parquet", compression="zstd")
    seconds["dataset"] = time.perf_counter() - started
    return seconds


def datasets_map(folder: Path, output: Path) -> dict[str, float]:
    """Seconds of `datasets`: one map for the labels, one filter, one file."""
    from datasets import Dataset, disable_progress_bars

    from stillhouse.dataset.select.filters import passes

    disable_progress_bars()

    def label(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        rows = [row for name in batch["folder"] for row in _labelled_file(Path(name))]
        kept = passes(rows, _CONFIG, None)
        return {**{name: [row[name] for row in rows] for name in rows[0]}, "kept": kept}

    seconds = {}
    started = time.perf_counter()
    sources = Dataset.from_dict({"folder": [str(source) for source in sorted(folder.iterdir())]})
    num_processes = min(_NUM_PROCESSES, len(sources))
    options: dict[str, Any] = {
        "batched": True,
        "batch_size": 1,
        "num_proc": num_processes,
        "remove_columns": ["folder"],
    }
    labelled = sources.map(label, features=_features(), **options)
    seconds["label"], started = time.perf_counter() - started, time.perf_counter()
    labelled.filter(lambda kept: kept, input_columns="kept").to_parquet(output / "train.parquet")
    seconds["dataset"] = time.perf_counter() - started
    return seconds


def _features() -> Any:
    from datasets import Features, List, Value

    from stillhouse.dataset.schema import CANDIDATE_COLUMNS

    names = {"json": "string"}
    features = {}
    for column in CANDIDATE_COLUMNS:
        item = Value(names.get(column.kind.value[0], column.kind.value[0]))
        features[column.name] = List(item) if len(column.kind.value) > 1 else item
    return Features({**features, "signature": Value("binary"), "kept": Value("bool")})


def _labelled_file(source: Path) -> list[dict[str, Any]]:
    return _labelled(list(read_trajectories(source / "trajectories.jsonl")), source)


def _labelled(rows: Sequence[Trajectory], source: Path) -> list[dict[str, Any]]:
    """The rows with our labels and the signatures by which near-duplicates are found."""
    from stillhouse.dataset.duplicates.signatures import signature_batch
    from stillhouse.dataset.label_input import LabelInput
    from stillhouse.dataset.labelling.label import labelled_rows

    metadata = read_metadata(source / "metadata.jsonl")
    inputs = [LabelInput.of(row, metadata[row.prompt_id]) for row in rows]
    signatures = signature_batch(inputs, near=True)["row_signature"].to_pylist()
    labelled = labelled_rows(inputs, _LABELLING)
    return [{**row, "signature": signature} for row, signature in zip(labelled, signatures, strict=True)]


_SIDES: Final[dict[str, Callable[[Path, Path], dict[str, float]]]] = {
    "stillhouse": stillhouse,
    "pandas": pandas_script,
    "datasets": datasets_map,
}


def run_side(side: str, folder: Path, output: Path) -> dict[str, float]:
    """Seconds by stage and `peak_mb`, of a side in a process of its own."""
    output.mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "benchmarks.dataset",
        "--side",
        side,
        "--folder",
        str(folder),
        "--into",
        str(output),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, _memory(psutil.Process(process.pid)))
            time.sleep(_LOOK_S)
        assert process.stdout is not None
        figures: dict[str, float] = json.loads(process.stdout.read().splitlines()[-1])
    return {**figures, "peak_mb": peak / 1e6}


def _memory(process: psutil.Process) -> int:
    """Bytes of a process and its descendants, pages they share counted once."""
    total = 0
    try:
        for one in [process, *process.children(recursive=True)]:
            total += one.memory_full_info().pss
    except psutil.Error:
        pass
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--peer-rows", type=int, default=100_000, help="most rows given to the peers")
    parser.add_argument("--work", type=Path, default=Path("runs/bench/dataset"), help="folder for files, made anew")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=_SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(_SIDES[options.side](options.folder, options.into)))
        return
    results = {}
    for count in options.rows:
        results[count] = _one_size(count, options.work / str(count), options.peer_rows)
    publish([], {"rows": results}, options.json)


def _one_size(count: int, work: Path, peer_rows: int) -> dict[str, dict[str, float]]:
    shutil.rmtree(work, ignore_errors=True)
    write_shards(count, work / "source")
    seconds_of_side = {}
    for side in _SIDES if count <= peer_rows else ("stillhouse",):
        seconds_of_side[side] = run_side(side, work / "source", work / side)
        seconds = (
            seconds_of_side[side]["label"]
            + seconds_of_side[side].get("duplicates", 0.0)
            + seconds_of_side[side]["dataset"]
        )
        stages = ", ".join(f"{name} {value:,.1f}" for name, value in seconds_of_side[side].items())
        print(f"{count:>9,} rows  {side:<10} {count / seconds:8,.0f} rows/s   {stages}", flush=True)
    shutil.rmtree(work)
    return seconds_of_side


if __name__ == "__main__":
    main()
