import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stillhouse.config import PromptsConfig
from stillhouse.errors import InputError
from stillhouse.prompts import ParsedPrompts, parse_prompts, split_prompts
from stillhouse.prompts.sources import source_fingerprint
from stillhouse.types import Prompt

Load = Callable[..., ParsedPrompts]


def texts(loaded: ParsedPrompts) -> list[object]:
    return [prompt.messages[-1]["content"] for prompt in loaded.prompts]


def test_embedded_prompts_carry_answers_and_tags() -> None:
    loaded = parse_prompts(PromptsConfig())
    assert len(loaded.prompts) == len(loaded.metadata) > 100
    assert loaded.report.malformed == []
    assert all(entry.expected_answer and entry.tag and entry.metadata == {} for entry in loaded.metadata.values())


def test_editing_metadata_leaves_the_prompt_id_and_other_tools_change_it(read: Load) -> None:
    rows = ({"prompt": "p"}, {"prompt": "p", "answer": "4"}, {"prompt": "p", "tools": []})
    plain, with_answer, with_tools = (read(json.dumps(row)).prompts[0].id for row in rows)
    assert plain == with_answer != with_tools


def test_duplicate_with_other_metadata_is_named_and_the_first_stands(read: Load) -> None:
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


def lines(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_rows_with_one_prompt_are_merged_as_asked(read: Load) -> None:
    loaded = read(lines(*VARIANTS), same_prompt="merge")
    merged, _ = loaded.metadata.values()
    assert (merged.expected_answer, merged.tag, merged.metadata) == ("4", "math", {"level": 2})
    assert (loaded.report.duplicates, len(loaded.report.conflicts)) == (2, 1)
    assert "line 2: same prompt as" in loaded.report.conflicts[0]
    late = read(lines({"prompt": "p"}, {"prompt": "p", "answer": "4", "verifier": "math"}), same_prompt="merge")
    (merged,) = late.metadata.values()
    assert (merged.expected_answer, merged.verifier) == ("4", "math")


def test_rows_with_one_prompt_are_kept_apart_as_asked(read: Load) -> None:
    loaded = read(lines(*VARIANTS), same_prompt="keep")
    plain = read(lines(*VARIANTS))
    first, variant, other = (prompt.id for prompt in loaded.prompts)
    # Rollouts that were paid for before stay those of the first row.
    assert [first, other] == [prompt.id for prompt in plain.prompts]
    assert [loaded.metadata[prompt].expected_answer for prompt in (first, variant, other)] == ["4", "four", None]
    assert loaded.metadata[variant].prompt_id == variant
    report = loaded.report
    assert (report.rows_read, report.duplicates, len(report.conflicts)) == (4, 1, 1)
    edited = read(lines(VARIANTS[0], {**VARIANTS[1], "answer": "IV"}, VARIANTS[2]), same_prompt="keep")
    assert [prompt.id for prompt in edited.prompts] == [first, variant, other]
    assert len(read(lines(*VARIANTS), same_prompt="keep", max_prompts=2).prompts) == 2


def test_variants_of_a_prompt_are_on_one_side_of_the_split(read: Load) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": f"p{number}", "answer": answer} for answer in "ab" for number in range(50)
    ]
    loaded = read(lines(*rows), same_prompt="keep")
    train, held_out = split_prompts(loaded.prompts, 0.5, seed=0)
    assert (len(loaded.prompts), len(train) + len(held_out)) == (100, 100)
    texts = [{str(prompt.messages) for prompt in side} for side in (train, held_out)]
    assert texts[0].isdisjoint(texts[1])


def test_malformed_share_above_the_budget_fails_and_shows_rows(read: Load) -> None:
    content = '{"prompt": "x"}\n' * 18 + "bad\n" + "worse\n"
    assert len(read(content, failure_budget=0.1).report.malformed) == 2
    with pytest.raises(InputError, match=r"2 of 20 (.|\n)*line 19(.|\n)*line 20"):
        read(content, failure_budget=0.09)


@pytest.mark.parametrize("content", ["", "\n \n", "bad\n"])
def test_a_file_without_a_usable_row_fails_whatever_the_budget(read: Load, content: str) -> None:
    with pytest.raises(InputError, match=r"prompts\.jsonl"):
        read(content, failure_budget=1.0)


def test_max_prompts_counts_distinct_prompts(read: Load) -> None:
    assert texts(read("one\none\ntwo\nthree\n", ".txt", max_prompts=2)) == ["one", "two"]


def test_entries_choose_rows_counted_from_zero(read: Load) -> None:
    content = '{"prompt": "zero"}\n\nbad\n{"prompt": "two"}\n{"prompt": "three"}\n'
    assert texts(read(content, entries=(3, 0))) == ["zero", "three"]
    with pytest.raises(InputError, match=r"\[9\].*0 to 3"):
        read(content, entries=(0, 9))


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
