import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillhouse.config import PromptsConfig
from stillhouse.errors import ConfigError, InputError
from stillhouse.prompts import ParsedPrompts, parse_prompts, split_prompts
from stillhouse.prompts.sources import source_fingerprint
from stillhouse.types import Prompt

Read = Callable[..., ParsedPrompts]


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


HELLO = [{"role": "user", "content": "Hello"}]


def load(path: Path, failure_budget: float = 0.1, **config: object) -> ParsedPrompts:
    return parse_prompts(PromptsConfig(source=str(path), **config), failure_budget)


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The prompts of a file with this content."""

    def write_and_load(content: str | bytes, suffix: str = ".jsonl", **config: object) -> ParsedPrompts:
        path = tmp_path / f"prompts{suffix}"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load(path, **config)

    return write_and_load


def texts(loaded: ParsedPrompts) -> list[object]:
    return [prompt.messages[-1]["content"] for prompt in loaded.prompts]


def test_embedded_prompts_carry_answers_and_tags() -> None:
    loaded = parse_prompts(PromptsConfig())
    assert len(loaded.prompts) == len(loaded.metadata) > 100
    assert loaded.report.malformed == []
    assert all(entry.expected_answer and entry.tag and entry.metadata == {} for entry in loaded.metadata.values())


def test_txt_holds_a_prompt_a_line_whatever_its_line_ends(read: Read) -> None:
    loaded = read(b"\xef\xbb\xbfone\r\n\r\n  two\xe2\x80\xa8still two  \n \t \nthree", ".txt")
    assert texts(loaded) == ["one", "two\u2028still two", "three"]


def test_jsonl_survives_byte_order_mark_crlf_and_blank_lines(read: Read) -> None:
    assert texts(read(b'\xef\xbb\xbf{"prompt": "one"}\r\n\r\n{"prompt": "two"}')) == ["one", "two"]


ROWS = [{"prompt": "one", "tag": "a"}, {"prompt": "zwei ü", "tag": None}]
LINES = '{"prompt": "one", "tag": "a"}\n\n{"prompt": "zwei ü", "tag": NaN}\n'
FILES = {
    "bom.jsonl": b"\xef\xbb\xbf" + LINES.encode(),
    "crlf.jsonl": LINES.replace("\n", "\r\n").encode(),
    "utf16.jsonl": LINES.encode("utf-16"),
    "p.jsonl.gz": gzip.compress(LINES.encode()),
    "p.JSONL.ZST": zstd(LINES.encode()),
    "joined.jsonl": LINES.replace("\n", "").encode(),
    "list.jsonl": json.dumps(ROWS).encode(),
    "list.json": json.dumps(ROWS, indent=2).encode(),
    "lines.json": LINES.encode(),
    "joined.json": LINES.replace("\n", "").replace(",", ",\n").encode(),
    "p.csv": "prompt,tag\none,a\nzwei ü,\n".encode("utf-8-sig"),
    "utf16.csv": "prompt,tag\r\none,a\r\nzwei ü,\r\n".encode("utf-16"),
    "p.csv.gz": gzip.compress("prompt,tag\none,a\nzwei ü,\n".encode()),
    "p.tsv": "prompt\ttag\none\ta\nzwei ü\t\n".encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_the_same_prompts_are_read_from_every_kind_of_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    loaded = load(tmp_path / name)
    assert texts(loaded) == ["one", "zwei ü"]
    assert [entry.tag for entry in loaded.metadata.values()] == ["a", None]
    assert (loaded.report.malformed, loaded.report.notes) == ([], {})


def test_one_object_in_a_json_file_is_one_prompt(read: Read) -> None:
    assert texts(read('{\n  "prompt": "one"\n}\n', ".json")) == ["one"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "q", "answer": "4"}, ["q"]),
        ({"instruction": "q", "output": "a"}, ["q"]),
        ({"instruction": "q", "input": "more", "output": "a"}, ["q\nmore"]),
        ({"instruction": "q", "input": "", "system": ""}, ["q"]),
        ({"problem": "q", "level": "a", "prompt": None}, ["q"]),
        ({"query": "q", "question": ""}, ["q"]),
    ],
)
def test_a_row_without_a_prompt_is_asked_its_only_question_and_that_is_told(
    read: Read, row: dict[str, object], said: list[str]
) -> None:
    loaded = read(json.dumps(row))
    (prompt,) = loaded.prompts
    assert [message["content"] for message in prompt.messages] == said
    assert list(loaded.report.notes.values()) == [1]
    assert prompt.id == read(json.dumps({"messages": prompt.messages})).prompts[0].id


def test_a_system_message_beside_the_prompt_is_told_of_since_it_is_not_sent(read: Read) -> None:
    loaded = read('{"prompt": "q", "system": "Brief."}\n' * 2 + '{"prompt": "r", "system": ""}\n')
    assert loaded.prompts[0].id == read('{"prompt": "q"}').prompts[0].id
    ((note, number),) = loaded.report.notes.items()
    assert ("`system`" in note, number) == (True, 2)


def test_a_developer_is_a_system_message_and_a_human_a_user(read: Read) -> None:
    row = {"messages": [{"role": "developer", "content": "Brief."}, {"role": "human", "content": "q"}]}
    loaded = read(json.dumps(row))
    assert [message["role"] for message in loaded.prompts[0].messages] == ["system", "user"]


def test_every_row_form_of_one_prompt_is_the_same_prompt(read: Read) -> None:
    rows = [
        {"prompt": "Hello"},
        {"messages": HELLO},
        {"messages": json.dumps(HELLO)},
        {"prompt": HELLO},
        {"messages": [{"role": "user", "content": "Hello", "name": None, "tool_calls": None}]},
        {"messages": [json.dumps(HELLO[0])]},
    ]
    loaded = read("\n".join(map(json.dumps, rows)))
    assert [prompt.messages for prompt in loaded.prompts] == [HELLO]
    assert loaded.report.duplicates == 5
    assert loaded.report.rows_read == 6


def test_formats_with_columns_give_the_ids_of_jsonl(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a, b\\nc", "expected_answer": 72, "tag": "t"}\n{"prompt": "d"}\n')
    (tmp_path / "p.csv").write_text('prompt,expected_answer,tag\n"a, b\nc",72,t\nd,,\n')
    table = pa.table({"prompt": ["a, b\nc", "d"], "expected_answer": [72.0, None], "tag": ["t", None]})
    pq.write_table(table, tmp_path / "p.parquet")
    loaded = [load(tmp_path / name) for name in ("p.jsonl", "p.csv", "p.parquet")]
    assert loaded[0].prompts == loaded[1].prompts == loaded[2].prompts
    assert loaded[0].metadata == loaded[1].metadata == loaded[2].metadata
    assert next(iter(loaded[0].metadata.values())).expected_answer == "72"


def test_hugging_face_folder_is_read_as_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "one", "answer": "1"}\n{"prompt": "two", "answer": "2"}\n')
    loaded = parse_prompts(PromptsConfig(source=f"hf:{tmp_path}"))
    assert texts(loaded) == ["one", "two"]
    assert [entry.expected_answer for entry in loaded.metadata.values()] == ["1", "2"]


def test_missing_hugging_face_split_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "one"}\n')
    with pytest.raises(InputError, match=r"hf:.*\[test\] cannot be read"):
        parse_prompts(PromptsConfig(source=f"hf:{tmp_path}[test]"))


def test_metadata_of_row_and_of_its_metadata_travels_whole(read: Read) -> None:
    row = {
        "id": 7, "difficulty": 0.5, "prompt": "the text", "messages": json.dumps(HELLO), "tag": "math",
        "ground_truth": "72", "tools": ["calculator"], "docker": "local/x",
        "metadata": {"verifier": "numeric", "answer": "", "difficulty": 1, "nested": {"a": [None]}},
    }  # fmt: skip
    loaded = read(json.dumps(row))
    (entry,) = loaded.metadata.values()
    assert loaded.prompts[0].tools == ["calculator"]
    assert (entry.expected_answer, entry.tag, entry.verifier) == ("72", "math", "numeric")
    assert entry.metadata == {
        "id": 7, "difficulty": 1, "prompt": "the text", "docker": "local/x", "answer": "", "nested": {"a": [None]},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "verifier"),
    [
        ({"verifier": "list", "tag": "math"}, "list"),
        ({"tag": "math"}, "math"),
        ({"tag": "math", "test_cases": ["assert f()"]}, "math"),
        ({"ground_truth": "", "tag": "KodCode", "test_cases": '[{"assert_code": "assert f()"}]'}, "python"),
        ({"answer": "4", "test_cases": ["assert f()"]}, "numeric"),
        ({"tag": "other", "test_cases": []}, "numeric"),
        ({}, "numeric"),
    ],
)
def test_verifier_is_the_rows_own_then_its_tags_then_the_configs(
    read: Read, row: dict[str, object], verifier: str
) -> None:
    config = {"verifier": "numeric", "verifier_by_tag": {"math": "math"}}
    (entry,) = read(json.dumps({"prompt": "p", **row}), **config).metadata.values()
    assert entry.verifier == verifier
    assert entry.metadata.get("test_cases") == row.get("test_cases")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (["b", 1], '["b",1]'),
        ({"b": 1, "a": None}, '{"b":1,"a":null}'),
        (True, "true"),
        (2.0, "2"),
        ("", None),
        (None, None),
    ],
)
def test_expected_answers_of_all_kinds_are_kept_as_text(read: Read, answer: object, expected: str | None) -> None:
    (entry,) = read(json.dumps({"prompt": "p", "ground_truth": answer})).metadata.values()
    assert entry.expected_answer == expected


def test_editing_metadata_leaves_the_prompt_id_and_other_tools_change_it(read: Read) -> None:
    rows = ({"prompt": "p"}, {"prompt": "p", "answer": "4"}, {"prompt": "p", "tools": []})
    plain, with_answer, with_tools = (read(json.dumps(row)).prompts[0].id for row in rows)
    assert plain == with_answer != with_tools


def test_duplicate_with_other_metadata_is_named_and_the_first_stands(read: Read) -> None:
    loaded = read('{"prompt": "p", "answer": "4"}\n{"prompt": "p", "answer": "5"}\n{"prompt": "p", "answer": "4"}\n')
    assert loaded.report.duplicates == 2
    assert [entry.expected_answer for entry in loaded.metadata.values()] == ["4"]
    (conflict,) = loaded.report.conflicts
    assert "line 2" in conflict
    assert "line 1" in conflict


VARIANTS = [
    {"prompt": "p", "answer": "4", "tag": "math"},
    {"prompt": "p", "answer": "four", "level": 2},
    {"prompt": "q"},
    {"prompt": "p", "answer": "4", "tag": "math"},
]


def load_variants(tmp_path: Path, *rows: dict[str, object], **options: object) -> ParsedPrompts:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or VARIANTS))
    return load(path, **options)


def test_rows_with_one_prompt_are_merged_as_asked(tmp_path: Path) -> None:
    loaded = load_variants(tmp_path, same_prompt="merge")
    merged, _ = loaded.metadata.values()
    assert (merged.expected_answer, merged.tag, merged.metadata) == ("4", "math", {"level": 2})
    assert (loaded.report.duplicates, len(loaded.report.conflicts)) == (2, 1)
    assert "line 2: same prompt as" in loaded.report.conflicts[0]
    late = load_variants(
        tmp_path, {"prompt": "p"}, {"prompt": "p", "answer": "4", "verifier": "math"}, same_prompt="merge"
    )
    (merged,) = late.metadata.values()
    assert (merged.expected_answer, merged.verifier) == ("4", "math")


def test_rows_with_one_prompt_are_kept_apart_as_asked(tmp_path: Path) -> None:
    loaded = load_variants(tmp_path, same_prompt="keep")
    plain = load_variants(tmp_path)
    first, variant, other = (prompt.id for prompt in loaded.prompts)
    # Rollouts that were paid for before stay those of the first row.
    assert [first, other] == [prompt.id for prompt in plain.prompts]
    assert [loaded.metadata[prompt].expected_answer for prompt in (first, variant, other)] == ["4", "four", None]
    assert loaded.metadata[variant].prompt_id == variant
    report = loaded.report
    assert (report.rows_read, report.duplicates, len(report.conflicts)) == (4, 1, 1)
    edited = load_variants(tmp_path, VARIANTS[0], {**VARIANTS[1], "answer": "IV"}, VARIANTS[2], same_prompt="keep")
    assert [prompt.id for prompt in edited.prompts] == [first, variant, other]
    assert len(load_variants(tmp_path, same_prompt="keep", max_prompts=2).prompts) == 2


def test_variants_of_a_prompt_are_on_one_side_of_the_split(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": f"p{number}", "answer": answer} for answer in "ab" for number in range(50)
    ]
    loaded = load_variants(tmp_path, *rows, same_prompt="keep")
    train, held_out = split_prompts(loaded.prompts, 0.5, seed=0)
    assert (len(loaded.prompts), len(train) + len(held_out)) == (100, 100)
    texts = [{str(prompt.messages) for prompt in side} for side in (train, held_out)]
    assert texts[0].isdisjoint(texts[1])


def test_the_default_leaves_no_trace_in_cache_keys() -> None:
    assert "same_prompt" not in PromptsConfig().model_dump(mode="json")
    assert PromptsConfig(same_prompt="keep").model_dump(mode="json")["same_prompt"] == "keep"


BAD_LINES = [
    ('{"question": "x", "instruction": "y"}', "expected a key `prompt` or `messages`, or one of question,"),
    ('{"question": ["x"]}', "expected question to be a text, saw list ['x']"),
    ('{"instruction": "x", "history": [["a", "b"]]}', "`stillhouse convert FILE -o FOLDER --from alpaca`"),
    ('{"instruction": "x", "system": "Brief."}', "`stillhouse convert FILE -o FOLDER --from alpaca`"),
    ('{"conversations": [{"from": "human", "value": "x"}]}', "`stillhouse convert FILE -o FOLDER` reads ShareGPT's"),
    ('[', "JSON over several lines is read from a file that ends in .json"),
    ('[{"prompt": "x", 5]', "expected a JSON object"),
    ('{"prompt": "\\ud800"}', "expected a JSON object"),
    ('{"prompt": "x"} rest', "expected a JSON object"),
    ('{"topic": "x"}', "saw keys: topic"),
    ('"just text"', "expected a JSON object"),
    ("just text", "expected a JSON object, saw 'just text'"),
    ('{"messages": []}', "not empty"),
    ('{"messages": "no json"}', "expected messages to be JSON"),
    ('{"messages": [{"role": "robot", "content": "x"}]}', "messages[0].role"),
    ('{"messages": [{"role": "user", "content": 5}]}', "messages[0].content"),
    ('{"messages": [{"role": "user", "content": " "}]}', "to have content"),
    ('{"messages": [{"role": "user", "content": null}]}', "to have content"),
    ('{"messages": [{"role": "assistant", "content": "x"}]}', "user or system message"),
    ('{"messages": ["x"]}', "messages[0]"),
    ('{"messages": [{"role": "user", "content": ["x"]}]}', "part"),
    ('{"prompt": "x", "tools": "calculator"}', "tools"),
    ('{"prompt": "x", "tools": [{"a": 1}]}', "tool names"),
    ('{"prompt": "x", "metadata": [1]}', "metadata to be an object"),
    ('{"prompt": "x", "tag": {"a": 1}}', "tag to be text or a number"),
    ('{"prompt": "x", "answer": "a(", "verifier": "regex"}', "under `regex` to be a regular expression, saw str 'a('"),
    ('{"prompt": "x", "metadata": {"verifier": "guess"}}', "one of exact, normalised, contains"),
    ('{"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "1"}]}]}', "tool_calls"),
    ('{"prompt": "torn', "may be cut off"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), BAD_LINES)
def test_malformed_row_is_reported_with_its_line_and_the_rest_goes_on(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "good"}\n\n{"prompt": "fine"}\n' + line)
    loaded = load(path, failure_budget=0.5)
    assert texts(loaded) == ["good", "fine"]
    (problem,) = loaded.report.malformed
    assert problem.startswith(f"{path}, line 4: ")
    assert expected in problem
    assert loaded.report.rows_read == 3


def test_bytes_that_are_not_utf8_cost_only_their_own_row(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"one\n\xff\xc0two\nthree\n")
    (tmp_path / "p.csv").write_bytes(b"prompt\none\n\xe9two\nthree\n")
    (tmp_path / "p.jsonl").write_bytes(b'{"prompt":"one"}\n{"prompt":"\xfftwo"}\n{"prompt":"three"}\n')
    for name, line in (("p.txt", 2), ("p.csv", 3), ("p.jsonl", 2)):
        loaded = load(tmp_path / name, failure_budget=0.5)
        assert texts(loaded) == ["one", "three"]
        assert f"line {line}: " in loaded.report.malformed[0]


def test_csv_row_with_a_cell_too_many_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text('prompt,tag\n"one\nand on",a\ntwo,b,c\n\nthree,c\n')
    loaded = load(path, failure_budget=0.5)
    assert texts(loaded) == ["one\nand on", "three"]
    assert loaded.report.malformed == [f"{path}, line 4: expected 2 cells as in the header, saw 3"]


def test_malformed_share_above_the_budget_fails_and_shows_rows(read: Read) -> None:
    content = '{"prompt": "x"}\n' * 18 + "bad\n" + "worse\n"
    assert len(read(content, failure_budget=0.1).report.malformed) == 2
    with pytest.raises(InputError, match=r"2 of 20 rows .* \(10\.0%\)(.|\n)*line 19(.|\n)*line 20"):
        read(content, failure_budget=0.09)


def test_no_usable_row_fails_whatever_the_budget(read: Read) -> None:
    with pytest.raises(InputError, match="leaving none"):
        read("bad\n", failure_budget=1.0)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_empty_file_is_an_error(read: Read, content: str) -> None:
    with pytest.raises(InputError, match="is empty"):
        read(content)


def test_unusable_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing"):
        load(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=r"is a folder; .*prompts.sources.* hf:.*stillhouse convert .* -o FOLDER"):
        load(tmp_path)
    (tmp_path / "p.doc").write_text("[]")
    with pytest.raises(ConfigError, match="the ending tells no format"):
        load(tmp_path / "p.doc")
    (tmp_path / "p.csv").write_text("topic\nwhy\n")
    with pytest.raises(InputError, match="saw columns: topic"):
        load(tmp_path / "p.csv")
    (tmp_path / "p.parquet").write_text("no parquet")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        load(tmp_path / "p.parquet")
    for name, content in (("p.txt", b"\xff\xfeh"), ("p.jsonl.gz", b"{}"), ("p.jsonl.zst", b"{}")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name} cannot be read: .*"):
            load(tmp_path / name)


def test_max_prompts_counts_distinct_prompts(read: Read) -> None:
    assert texts(read("one\none\ntwo\nthree\n", ".txt", max_prompts=2)) == ["one", "two"]


def test_entries_choose_rows_counted_from_zero(read: Read) -> None:
    content = '{"prompt": "zero"}\n\nbad\n{"prompt": "two"}\n{"prompt": "three"}\n'
    assert texts(read(content, entries=(3, 0))) == ["zero", "three"]
    with pytest.raises(InputError, match=r"\[9\].*0 to 3"):
        read(content, entries=(0, 9))


def test_parquet_values_beyond_json_become_text_in_metadata(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    day = pa.array([0], type=pa.date32())
    pq.write_table(pa.table({"prompt": ["x"], "day": day, "tags": [["a", "b"]]}), path)
    (entry,) = load(path).metadata.values()
    assert entry.metadata == {"day": "1970-01-01", "tags": ["a", "b"]}


def prompts(numbers: range) -> list[Prompt]:
    return [Prompt(id=f"{number:064x}", messages=[]) for number in numbers]


def test_split_is_a_partition_of_about_the_fraction() -> None:
    train, held_out = split_prompts(prompts(range(5000)), 0.2, seed=0)
    assert {p.id for p in train} | {p.id for p in held_out} == {p.id for p in prompts(range(5000))}
    assert len(train) + len(held_out) == 5000
    # Five standard deviations of a binomial share.
    assert abs(len(held_out) / 5000 - 0.2) < 5 * (0.2 * 0.8 / 5000) ** 0.5


def test_membership_does_not_depend_on_the_other_prompts() -> None:
    _, few = split_prompts(prompts(range(100)), 0.3, seed=0)
    _, many = split_prompts(reversed(prompts(range(300))), 0.3, seed=0)
    assert {p.id for p in few} == {p.id for p in many} & {p.id for p in prompts(range(100))}


def test_seeds_draw_other_splits_and_fraction_zero_holds_nothing_out() -> None:
    assert split_prompts(prompts(range(200)), 0.5, seed=0) != split_prompts(prompts(range(200)), 0.5, seed=1)
    assert split_prompts(prompts(range(200)), 0.0, seed=0)[1] == []


def test_several_sources_are_read_in_order_each_with_its_own_limit_and_its_name_in_the_metadata(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "b.jsonl").write_text('{"prompt": "two"}\n{"prompt": "four", "metadata": {"answer": "4"}}\n')
    sources = {"a": str(tmp_path / "a.txt"), "b": str(tmp_path / "b.jsonl")}
    config = PromptsConfig(sources=sources, max_prompts=2)
    loaded = parse_prompts(config)
    assert texts(loaded) == ["one", "two", "four"]
    assert [loaded.metadata[prompt.id].metadata for prompt in loaded.prompts] == [
        {"prompt_source": "a"},
        {"prompt_source": "a"},
        {"prompt_source": "b"},
    ]
    assert loaded.report.duplicates == 1
    before = source_fingerprint(config)
    (tmp_path / "b.jsonl").write_text('{"prompt": "five"}\n')
    assert source_fingerprint(config) != before


def test_whole_numbers_keep_all_digits_in_every_format(tmp_path: Path) -> None:
    number = 98765432109876543210
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "p", "answer": number, "metadata": {"id": [number]}}))
    (tmp_path / "p.csv").write_text(f'prompt,answer,metadata\np,{number},"{{""id"": [{number}]}}"\n')
    wide = pa.array([Decimal(number)], pa.decimal128(38, 0))
    table = pa.table({"prompt": ["p"], "answer": wide, "metadata": [json.dumps({"id": [number]})]})
    pq.write_table(table, tmp_path / "p.parquet")
    for name in ("p.jsonl", "p.csv", "p.parquet"):
        (entry,) = load(tmp_path / name).metadata.values()
        assert (entry.expected_answer, entry.metadata) == (str(number), {"id": [number]})
