from benchmarks.sft.sides.job import fingerprint


def test_a_fingerprint_tells_ids_and_masks_apart_and_ends_with_the_last_target() -> None:
    ids, mask = [5, 6, 7, 8], [False, True, True, False]
    same = fingerprint([(ids, mask)])
    assert same == fingerprint([(ids[:3], mask[:3])])
    assert len({same, fingerprint([([5, 6, 9], mask[:3])]), fingerprint([(ids, [False, False, True, False])])}) == 3
