import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhouse.config import DuplicatesConfig
from stillhouse.dataset.duplicates.find import find_duplicates
from stillhouse.dataset.schema import DUPLICATE_COLUMNS, arrow_schema
from stillhouse.errors import ConfigError, InputError
from stillhouse.types import Trajectory

Said = Callable[..., Trajectory]
Find = Callable[..., dict[str, dict[str, Any]]]
EXACT = DuplicatesConfig()
NEAR = DuplicatesConfig(near=True)
WORDS = [f"{first}{second}" for first in "bcdfghjklmnp" for second in "aeiouaeiou"]


def text(seed: int, num_words: int = 120) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=num_words))


def changed(words: str, *places: int) -> str:
    spelled = words.split()
    for place in places:
        spelled[place] = f"other{place}"
    return " ".join(spelled)


def jaccard(first: str, second: str) -> float:
    ours, theirs = (
        {tuple(one.split()[start : start + 5]) for start in range(len(one.split()) - 4)} for one in (first, second)
    )
    return len(ours & theirs) / len(ours | theirs)


def test_a_row_that_differs_by_case_width_and_spaces_repeats_the_first_of_its_prompt(said: Said, find: Find) -> None:
    rows = [
        said("What is 2 + 3?", "It is  \uff15.\n", "x", sample=1),
        said("what is 2 + 3?", "it is 5.", "y", sample=0),
        said("What is 2 - 3?", "It is 5.", "z", prompt="q"),
    ]
    found = find(rows, config=EXACT)
    assert found["x"] == {
        "prompt_cluster": "p",
        "duplicate_of": "y",
        "duplicate_kind": "exact",
        "duplicate_similarity": 1.0,
        "duplicate_source": None,
    }
    assert found["y"]["duplicate_of"] is found["z"]["duplicate_of"] is None
    assert found["z"]["prompt_cluster"] == "q"


def test_a_near_duplicate_in_another_shard_is_found_with_its_true_similarity(said: Said, find: Find) -> None:
    answer = text(1)
    rows = [
        said("Why?", answer, "a", "p1"),
        said("Why?", changed(answer, 60), "b", "p2"),
        said("Why?", text(2), "c", "p3"),
    ]
    found = find(rows[:1], rows[1:], config=NEAR)
    assert found["b"]["duplicate_of"] == "a"
    assert found["b"]["duplicate_kind"] == "near"
    assert found["b"]["duplicate_similarity"] == pytest.approx(
        jaccard(f"why ? {answer}", f"why ? {changed(answer, 60)}")
    )
    assert found["a"]["duplicate_of"] is found["c"]["duplicate_of"] is None


def test_near_duplicates_are_not_looked_for_unless_asked_for(said: Said, find: Find) -> None:
    answer = text(1)
    found = find([said("Why?", answer, "a"), said("Why?", changed(answer, 60), "b")], config=EXACT)
    assert [row["duplicate_of"] for row in found.values()] == [None, None]


def test_a_near_duplicate_never_names_a_row_that_repeats_another(said: Said, find: Find) -> None:
    first = text(1)
    second = changed(first, 30, 32)
    third = changed(second, 80, 82)
    assert jaccard(first, third) < NEAR.threshold <= min(jaccard(first, second), jaccard(second, third))
    rows = [said("Why?", answer, name, name) for name, answer in (("a", first), ("b", second), ("c", third))]
    found = find(rows, config=NEAR)
    assert {name: row["duplicate_of"] for name, row in found.items()} == {"a": None, "b": "a", "c": None}


def test_an_exact_duplicate_names_its_equal_also_where_that_nearly_repeats_a_third(said: Said, find: Find) -> None:
    answer = text(1)
    near = changed(answer, 60)
    rows = [said("Why?", one, name, name) for name, one in (("a", answer), ("b", near), ("c", near))]
    found = find(rows, config=NEAR)
    assert [(row["duplicate_of"], row["duplicate_kind"]) for row in found.values()] == [
        (None, None),
        ("a", "near"),
        ("b", "exact"),
    ]


def test_rows_without_anything_written_repeat_nothing(said: Said, find: Find) -> None:
    found = find([said("Why?", None, "a"), said("Why?", None, "b"), said("Why?", "", "c")], config=NEAR)
    assert all(row["duplicate_of"] is None for row in found.values())


def test_a_rollout_that_is_there_twice_does_not_repeat_itself(said: Said, write_shard: Any, tmp_path: Path) -> None:
    rows = [said("Why?", "Since.", "a"), said("Why?", "Since.", "a"), said("Why?", "Since.", "b", sample=1)]
    parts = find_duplicates([write_shard(rows, EXACT, tmp_path / "shard")], EXACT, tmp_path / "found")
    table = pq.read_table(parts[0])
    assert table["duplicate_of"].to_pylist() == [None, None, "a"]
    assert table.schema.equals(arrow_schema(DUPLICATE_COLUMNS), check_metadata=True)


def test_prompts_that_a_chain_of_likenesses_connects_are_one_cluster(said: Said, find: Find) -> None:
    first = text(1)
    second = changed(first, 30, 32)
    third = changed(second, 80, 82)
    questions = {"p3": first, "p1": second, "p2": third, "p4": text(9), "p5": text(9).upper()}
    rows = [said(question, text(number, 400), name, name) for number, (name, question) in enumerate(questions.items())]
    clusters = {name: row["prompt_cluster"] for name, row in find(rows[:2], rows[2:], config=NEAR).items()}
    assert clusters == {"p3": "p1", "p1": "p1", "p2": "p1", "p4": "p4", "p5": "p4"}


def test_a_long_system_prompt_does_not_make_questions_alike(said: Said, find: Find) -> None:
    system = text(1, 400)
    rows = [said(text(seed, 12), text(seed, 20), f"r{seed}", f"p{seed}", system=system) for seed in (2, 3)]
    found = find(rows, config=NEAR)
    assert {name: row["prompt_cluster"] for name, row in found.items()} == {"r2": "p2", "r3": "p3"}
    assert all(row["duplicate_of"] is None for row in found.values())


def test_no_shards_have_no_duplicates(tmp_path: Path) -> None:
    assert find_duplicates([], NEAR, tmp_path) == []


def test_a_shard_without_rows_has_a_part_without_rows(said: Said, find: Find) -> None:
    assert find([], config=NEAR) == {}
    assert set(find([], [said("Why?", "Since.")], config=NEAR)) == {"a"}


def test_a_threshold_that_the_signatures_cannot_reach_is_refused(said: Said, find: Find) -> None:
    config = DuplicatesConfig(near=True, threshold=0.05, num_permutations=16)
    with pytest.raises(ConfigError, match=r"needs signatures of 77 hashes to find 98% .* num_permutations = 16"):
        find([said("Why?", "Since.")], config=config)


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[tuple[str, str, int, str, str]], list[tuple[str, str, int, str, str]], int]:
    """Rows as (question, answer, sample, prompt, rollout), the same in another order, and where to part them."""
    base = text(5, 40)
    places = st.sets(st.integers(0, 39), max_size=3)
    answers = draw(st.lists(places, min_size=2, max_size=8))
    questions = draw(st.lists(places, min_size=3, max_size=3))
    rows = []
    for number, answer in enumerate(answers):
        prompt = draw(st.integers(0, 2))
        rows.append((changed(base, *questions[prompt]), changed(base, *answer), number, f"p{prompt}", f"r{number}"))
    return rows, draw(st.permutations(rows)), draw(st.integers(0, len(rows)))


@settings(max_examples=40, deadline=None)
@given(corpus=corpora(), threshold=st.sampled_from([0.5, 0.7, 0.85]))
def test_order_and_shards_do_not_matter(said: Said, find: Find, corpus: tuple[Any, Any, int], threshold: float) -> None:
    def trajectories(rows: Any) -> list[Trajectory]:
        return [said(question, answer, rollout, prompt, sample) for question, answer, sample, prompt, rollout in rows]

    rows, shuffled, cut = corpus
    config = DuplicatesConfig(near=True, threshold=threshold)
    found = find(trajectories(rows), config=config)
    assert find(trajectories(shuffled[:cut]), trajectories(shuffled[cut:]), config=config) == found
    for row in found.values():
        if row["duplicate_kind"] == "near":
            assert row["duplicate_similarity"] >= threshold
            assert found[row["duplicate_of"]]["duplicate_of"] is None


def test_near_duplicates_planted_among_thousands_are_found_and_others_are_not(said: Said, find: Find) -> None:
    chance = random.Random(0)
    rows, planted = [], {}
    for number in range(1500):
        answer = text(number, 100)
        rows.append(said("Why?", answer, f"{number}", f"{number:05}"))
        if number % 5 == 0:
            repeat = changed(answer, *chance.sample(range(100), chance.choice([1, 2, 6])))
            name = f"{number}-again"
            rows.append(said("Why?", repeat, name, f"{number:05}-again"))
            if jaccard(f"why ? {answer}", f"why ? {repeat}") >= NEAR.threshold:
                planted[name] = str(number)
    found = {name: row["duplicate_of"] for name, row in find(rows, config=NEAR).items() if row["duplicate_of"]}
    assert found.items() <= planted.items()
    assert len(found) >= 0.98 * len(planted) > 100


def test_repeats_of_earlier_datasets_name_their_source(
    said: Said, write_shard: Any, find: Find, tmp_path: Path
) -> None:
    answer = text(1)
    write_shard([said("Why?", answer, "old")], EXACT, tmp_path / "shard")
    ours = tmp_path / "ours"
    ours.mkdir()
    (tmp_path / "shard" / "candidates.parquet").rename(ours / "train.parquet")
    theirs = tmp_path / "theirs.parquet"
    messages = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So and so."}]
    pq.write_table(pa.table({"messages": [[messages[0], {"role": "assistant", "content": "No."}], messages]}), theirs)
    config = DuplicatesConfig(near=True, earlier=(str(ours), str(theirs)))
    rows = [
        said("Why?", changed(answer, 60), "near"),
        said("how?", "so and so.", "equal", "q"),
        said("How?", text(3), "new", "q", sample=1),
    ]
    found = find(rows, config=config)
    named = {name: (row["duplicate_of"], row["duplicate_kind"], row["duplicate_source"]) for name, row in found.items()}
    assert named == {
        "near": ("old", "near", str(ours)),
        "equal": ("theirs.parquet, row 1", "exact", str(theirs)),
        "new": (None, None, None),
    }


def test_a_rollout_of_an_earlier_dataset_repeats_itself(
    said: Said, write_shard: Any, find: Find, tmp_path: Path
) -> None:
    shard = write_shard([said("Why?", "Since.", "same")], EXACT, tmp_path / "shard")
    config = DuplicatesConfig(earlier=(str(shard.candidates),))
    row = find([said("Why?", "Since.", "same")], config=config)["same"]
    assert (row["duplicate_of"], row["duplicate_source"]) == ("same", str(shard.candidates))


def _nothing(path: Path) -> None:
    del path


def _empty_folder(path: Path) -> None:
    path.mkdir()


def _no_parquet(path: Path) -> None:
    path.write_text("id,messages")


def _no_messages(path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), path)


def _no_conversation(path: Path) -> None:
    pq.write_table(pa.table({"messages": ['[{"role": "user", "content": "a"}]', "torn ["]}), path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_nothing, r"dataset.duplicates.earlier names .*/earlier, which is missing; expected"),
        (_empty_folder, r"names the folder .*/earlier, which holds neither train.parquet nor validation.parquet"),
        (_no_parquet, r"names .*/earlier, which is no Parquet"),
        (_no_messages, r"names .*/earlier, whose columns are text; expected .* a column `messages`"),
        (_no_conversation, r"earlier, row 1: expected messages in the OpenAI chat form, saw 'torn \['"),
    ],
)
def test_unusable_earlier_datasets_are_named(
    said: Said, find: Find, tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "earlier"
    make(path)
    with pytest.raises(InputError, match=message):
        find([said("Why?", "Since.")], config=DuplicatesConfig(earlier=(str(path),)))
