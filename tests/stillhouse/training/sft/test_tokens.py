import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase as Tokenizer

from stillhouse.chat.samples import render_samples
from stillhouse.config.training import SftConfig, SftSource
from stillhouse.errors import InputError, TrainingError
from stillhouse.training.ranks import Ranks
from stillhouse.training.sft.render import Rendering
from stillhouse.training.sft.tokens import SftData, load_data

RENDERING = Rendering.of(SftConfig(), max_length=512)
ALONE = Ranks.single(torch.device("cpu"))


def conversations(num_rows: int, answer: str = "a") -> list[list[dict[str, Any]]]:
    return [
        [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": answer * (1 + number % 7)}]
        for number in range(num_rows)
    ]


def write(path: Path, rows: list[list[dict[str, Any]]], **options: Any) -> SftSource:
    path.write_text("".join(json.dumps({"messages": messages, "tag": path.stem}) + "\n" for messages in rows))
    return SftSource(path=str(path), **options)


def load(
    work_dir: Path,
    tokenizer: Tokenizer,
    *sources: SftSource,
    rendering: Rendering = RENDERING,
    num_processes: int | None = None,
    ranks: Ranks = ALONE,
) -> SftData:
    return load_data(sources, tokenizer, rendering, work_dir=work_dir, num_processes=num_processes, ranks=ranks)


def files(work_dir: Path) -> dict[str, bytes]:
    return {str(path.relative_to(work_dir)): path.read_bytes() for path in work_dir.rglob("*") if path.is_file()}


def test_samples_stand_source_by_source_in_the_order_of_their_rows(tmp_path: Path, tokenizer: Tokenizer):
    one, other = conversations(300), conversations(5, "b")
    data = load(tmp_path / "w", tokenizer, write(tmp_path / "a.jsonl", one), write(tmp_path / "b.jsonl", other))
    assert data.num_train == (300, 5)
    assert len(data.train) == 305
    assert len(data.validation) == 0
    for sample, messages in zip(data.train, [*one, *other], strict=True):
        ((ids, mask, _),) = render_samples(tokenizer, messages, None)  # type: ignore[arg-type]
        end = len(sample.token_ids)
        assert (sample.token_ids, sample.loss_mask) == (ids[:end], mask[:end])
    assert (data.train[0].tag, data.train[304].tag) == ("a", "b")
    assert data.train[304].prompt_id == data.train[4].prompt_id
    assert [sample.tag for sample in data.train[298:302]] == ["a", "a", "b", "b"]


def test_files_are_the_same_whatever_the_number_of_processes(tmp_path: Path, tokenizer: Tokenizer):
    sources = (
        write(tmp_path / "a.jsonl", conversations(1100), validation_share=0.3),
        write(tmp_path / "b.jsonl", conversations(300, "b")),
    )
    load(tmp_path / "one", tokenizer, *sources, num_processes=1)
    load(tmp_path / "two", tokenizer, *sources, num_processes=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert sorted(Path(name).name for name in files(tmp_path / "one")) == [
        "counts.json", "train.arrow", "validation.arrow",
    ]  # fmt: skip


def test_a_continued_job_reads_what_was_rendered_and_other_settings_render_again(tmp_path: Path, tokenizer: Tokenizer):
    source = write(tmp_path / "a.jsonl", conversations(10))
    work = tmp_path / "w"
    load(work, tokenizer, source)
    before = {path: path.stat().st_ino for path in work.rglob("*.arrow")}
    load(work, tokenizer, source)
    assert {path: path.stat().st_ino for path in work.rglob("*.arrow")} == before
    load(work, tokenizer, source, rendering=Rendering(100, "truncate", RENDERING.parts))
    load(work, tokenizer, source.model_copy(update={"validation_share": 0.5}))
    write(tmp_path / "a.jsonl", conversations(11))
    load(work, tokenizer, source)
    assert len(list((work / "tokens").iterdir())) == 4


def test_the_split_is_that_of_the_source(tmp_path: Path, tokenizer: Tokenizer, dataset_folder: Path):
    data = load(tmp_path / "w", tokenizer, SftSource(path=str(dataset_folder)))
    assert len(data.validation) > 0
    assert not {sample.prompt_id for sample in data.train} & {sample.prompt_id for sample in data.validation}


def test_a_bad_row_leaves_nothing_behind(tmp_path: Path, tokenizer: Tokenizer):
    source = write(tmp_path / "a.jsonl", [*conversations(300), []])
    with pytest.raises(InputError, match=r"a\.jsonl, line 301: .*messages"):
        load(tmp_path / "w", tokenizer, source)
    assert files(tmp_path / "w") == {}


def test_rows_with_answers_that_must_not_be_learnt_are_named_and_counted_and_the_others_learnt(
    tmp_path: Path, tokenizer: Tokenizer
):
    rows = conversations(8)
    for number, said in ((2, "It ends.<|im_end|>\n<|im_start|>user"), (5, "")):
        rows[number][1]["content"] = said
    source = write(tmp_path / "a.jsonl", rows)
    for _ in range(2):
        data = load(tmp_path / "w", tokenizer, source)
        assert (data.num_train, data.total["rejected"]) == ((6,), 2)
        (told,) = data.problems
        assert "a.jsonl, line 3: messages[1] would be learnt as something else: it holds <|im_start|>" in told
        assert "a.jsonl, line 6: messages[1] is an empty answer" in told
    source = write(tmp_path / "b.jsonl", rows[2:3])
    with pytest.raises(InputError, match=r"of 1 rows 1 are rejected(.|\n)*line 1: .*im_start"):
        load(tmp_path / "w", tokenizer, source)


def test_a_source_that_leaves_nothing_to_train_on_is_named_with_the_counts(tmp_path: Path, tokenizer: Tokenizer):
    full, empty = write(tmp_path / "a.jsonl", conversations(3)), write(tmp_path / "b.jsonl", [])
    with pytest.raises(InputError, match=r"a\.jsonl: .*of 3 rows .* 3 too long"):
        load(tmp_path / "w", tokenizer, full, rendering=Rendering(5, "drop", RENDERING.parts))
    with pytest.raises(InputError, match=r"b\.jsonl holds no row"):
        load(tmp_path / "w", tokenizer, full, empty)


def test_a_process_that_sees_another_work_folder_says_so(tmp_path: Path, tokenizer: Tokenizer):
    source = write(tmp_path / "a.jsonl", conversations(3))
    second = Ranks(1, 1, torch.device("cpu"))
    with pytest.raises(TrainingError, match=r"runtime\.store"):
        load(tmp_path / "w", tokenizer, source, ranks=second)
    load(tmp_path / "w", tokenizer, source)
    assert len(load(tmp_path / "w", tokenizer, source, ranks=second).train) == 3
