from stillhouse.prompts import split_prompts
from stillhouse.types import Prompt


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
