import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillhouse.config.dataset import Comparison
from stillhouse.dataset.duplicates.find import find_duplicates
from stillhouse.dataset.schema import DUPLICATE_COLUMNS, arrow_schema
from stillhouse.errors import ConfigError, InputError
from stillhouse.types import Trajectory

Make = Callable[..., Trajectory]
Find = Callable[..., dict[str, dict[str, Any]]]
EXACT = Comparison()
NEAR = Comparison(near=True)
WORDS = [f"{first}{second}" for first in "bcdfghjklmnp" for second in "aeiouaeiou"]


def text(seed: int, num_words: int = 120) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=num_words))


def changed(words: str, *places: int) -> str:
    spelled = words.split()
    for place in places:
        spelled[place] = f"other{place}"
    return " ".join(spelled)


def jaccard(first: str, second: str) -> float:
    words = (first.split(), second.split())
    ours, theirs = ({tuple(of[start : start + 5]) for start in range(len(of) - 4)} for of in words)
    return len(ours & theirs) / len(ours | theirs)


def test_a_row_that_differs_by_case_width_and_spaces_repeats_the_first_of_its_prompt(make: Make, find: Find) -> None:
    rows = [
        make("What is 2 + 3?", "It is  \uff15.\n", "x", sample=1),
        make("what is 2 + 3?", "it is 5.", "y", sample=0),
        make("What is 2 - 3?", "It is 5.", "z", prompt="q"),
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


def test_a_near_duplicate_in_another_shard_is_found_with_its_true_similarity(make: Make, find: Find) -> None:
    answer = text(1)
    rows = [
        make("Why?", answer, "a", "p1"),
        make("Why?", changed(answer, 60), "b", "p2"),
        make("Why?", text(2), "c", "p3"),
    ]
    found = find(rows[:1], rows[1:], config=NEAR)
    assert found["b"]["duplicate_of"] == "a"
    assert found["b"]["duplicate_kind"] == "near"
    assert found["b"]["duplicate_similarity"] == pytest.approx(
        jaccard(f"why ? {answer}", f"why ? {changed(answer, 60)}")
    )
    assert found["a"]["duplicate_of"] is found["c"]["duplicate_of"] is None


FIRST = text(1)
SECOND = changed(FIRST, 30, 32)
THIRD = changed(SECOND, 80, 82)


@pytest.mark.parametrize(
    ("config", "answers", "repeats"),
    [
        (EXACT, [FIRST, SECOND], [(None, None)] * 2),
        (NEAR, [FIRST, SECOND, THIRD], [(None, None), ("a", "near"), (None, None)]),
        (NEAR, [FIRST, SECOND, SECOND], [(None, None), ("a", "near"), ("b", "exact")]),
        (NEAR, [None, None, ""], [(None, None)] * 3),
    ],
    ids=["exact alone", "a repeat is never named as near", "the equal row is named first", "nothing written"],
)
def test_a_repeat_names_the_row_it_repeats(
    make: Make, find: Find, config: Comparison, answers: list[Any], repeats: list[Any]
) -> None:
    rows = [make("Why?", answer, name, name) for name, answer in zip("abc", answers, strict=False)]
    assert [(row["duplicate_of"], row["duplicate_kind"]) for row in find(rows, config=config).values()] == repeats


def test_a_rollout_that_is_there_twice_does_not_repeat_itself(make: Make, write_shard: Any, tmp_path: Path) -> None:
    rows = [make("Why?", "Since.", "a"), make("Why?", "Since.", "a"), make("Why?", "Since.", "b", sample=1)]
    parts = find_duplicates([write_shard(rows, EXACT, tmp_path / "shard")], EXACT, tmp_path / "found")
    table = pq.read_table(parts[0])
    assert table["duplicate_of"].to_pylist() == [None, None, "a"]
    assert table.schema.equals(arrow_schema(DUPLICATE_COLUMNS), check_metadata=True)


def test_prompts_that_a_chain_of_likenesses_connects_are_one_cluster(make: Make, find: Find) -> None:
    questions = {"p3": FIRST, "p1": SECOND, "p2": THIRD, "p4": text(9), "p5": text(9).upper()}
    rows = [make(question, text(number, 400), name, name) for number, (name, question) in enumerate(questions.items())]
    clusters = {name: row["prompt_cluster"] for name, row in find(rows[:2], rows[2:], config=NEAR).items()}
    assert clusters == {"p3": "p1", "p1": "p1", "p2": "p1", "p4": "p4", "p5": "p4"}


def test_a_long_system_prompt_does_not_make_questions_alike(make: Make, find: Find) -> None:
    system = text(1, 400)
    rows = [make(text(seed, 12), text(seed, 20), f"r{seed}", f"p{seed}", system=system) for seed in (2, 3)]
    found = find(rows, config=NEAR)
    assert {name: row["prompt_cluster"] for name, row in found.items()} == {"r2": "p2", "r3": "p3"}
    assert all(row["duplicate_of"] is None for row in found.values())


def test_a_threshold_that_the_signatures_cannot_reach_is_refused(make: Make, find: Find) -> None:
    config = Comparison(near=True, threshold=0.02)
    with pytest.raises(ConfigError, match=r"threshold = 0\.02: .*0\.04 "):
        find([make("Why?", "Since.")], config=config)


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


@settings(max_examples=40)
@given(corpus=corpora(), threshold=st.sampled_from([0.5, 0.7, 0.85]))
def test_order_and_shards_do_not_matter(make: Make, find: Find, corpus: tuple[Any, Any, int], threshold: float) -> None:
    def trajectories(rows: Any) -> list[Trajectory]:
        return [make(question, answer, rollout, prompt, sample) for question, answer, sample, prompt, rollout in rows]

    rows, shuffled, cut = corpus
    config = Comparison(near=True, threshold=threshold)
    found = find(trajectories(rows), config=config)
    assert find(trajectories(shuffled[:cut]), trajectories(shuffled[cut:]), config=config) == found
    for row in found.values():
        if row["duplicate_kind"] == "near":
            assert row["duplicate_similarity"] >= threshold
            assert found[row["duplicate_of"]]["duplicate_of"] is None


def test_near_duplicates_planted_among_thousands_are_found_and_others_are_not(make: Make, find: Find) -> None:
    chance = random.Random(0)
    rows, planted = [], {}
    for number in range(1500):
        answer = text(number, 100)
        rows.append(make("Why?", answer, f"{number}", f"{number:05}"))
        if number % 5 == 0:
            repeat = changed(answer, *chance.sample(range(100), chance.choice([1, 2, 6])))
            name = f"{number}-again"
            rows.append(make("Why?", repeat, name, f"{number:05}-again"))
            if jaccard(f"why ? {answer}", f"why ? {repeat}") >= NEAR.threshold:
                planted[name] = str(number)
    found = {name: row["duplicate_of"] for name, row in find(rows, config=NEAR).items() if row["duplicate_of"]}
    assert found.items() <= planted.items()
    assert len(found) >= 0.98 * len(planted) > 100


def test_repeats_of_earlier_data_name_their_source(make: Make, write_shard: Any, find: Find, tmp_path: Path) -> None:
    answer = text(1)
    write_shard([make("Why?", answer, "old")], EXACT, tmp_path / "shard")
    ours = tmp_path / "ours"
    ours.mkdir()
    (tmp_path / "shard" / "candidates.parquet").rename(ours / "train.parquet")
    theirs = tmp_path / "theirs.parquet"
    messages = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So and so."}]
    pq.write_table(pa.table({"messages": [[messages[0], {"role": "assistant", "content": "No."}], messages]}), theirs)
    config = Comparison(near=True, earlier=(str(ours), str(theirs)))
    rows = [
        make("Why?", changed(answer, 60), "near"),
        make("how?", "so and so.", "equal", "q"),
        make("How?", text(3), "new", "q", sample=1),
    ]
    found = find(rows, config=config)
    named = {name: (row["duplicate_of"], row["duplicate_kind"], row["duplicate_source"]) for name, row in found.items()}
    assert named == {
        "near": ("old", "near", str(ours)),
        "equal": ("theirs.parquet, row 1", "exact", str(theirs)),
        "new": (None, None, None),
    }


def test_a_rollout_of_earlier_data_repeats_itself(make: Make, write_shard: Any, find: Find, tmp_path: Path) -> None:
    shard = write_shard([make("Why?", "Since.", "same")], EXACT, tmp_path / "shard")
    config = Comparison(earlier=(str(shard.candidates),))
    row = find([make("Why?", "Since.", "same")], config=config)["same"]
    assert (row["duplicate_of"], row["duplicate_source"]) == ("same", str(shard.candidates))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, r"dataset\.duplicates\.earlier names .*/earlier"),
        (Path.mkdir, r"/earlier.* train\.parquet nor validation\.parquet"),
        (lambda path: path.write_text("id,messages"), "/earlier.* no Parquet"),
        (
            lambda path: pq.write_table(pa.table({"text": ["a"]}), path),
            "/earlier.* text; .*`messages`",
        ),
        (
            lambda path: pq.write_table(pa.table({"messages": ['[{"role": "user", "content": "a"}]', "torn ["]}), path),
            r"earlier, row 1: .*'torn \['",
        ),
    ],
)
def test_unusable_earlier_datasets_are_named(
    make: Make, find: Find, tmp_path: Path, write: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "earlier"
    write(path)
    with pytest.raises(InputError, match=message):
        find([make("Why?", "Since.")], config=Comparison(earlier=(str(path),)))
