import torch

from benchmarks.on_policy.workload import PAIRS
from benchmarks.teacher_handoff.apart import new_model
from benchmarks.teacher_handoff.overlap import GROUP_SIZE, Batch, Group


def test_a_group_is_handed_on_once_it_is_complete_and_before_longer_ones() -> None:
    batch = Batch.drawn(new_model(PAIRS["tiny"].student, torch.float32, seed=0), num_groups=3, median=6)
    batch.lengths[1] = 3
    batch.lengths[[0, 2], 0] = 9
    groups: list[Group] = []
    batch.sample(groups.append)
    assert groups[0][0].prompt_id == "1"
    assert sorted(group[0].prompt_id for group in groups) == ["0", "1", "2"]
    assert all(len(group) == GROUP_SIZE for group in groups)
    assert sum(sum(sample.loss_mask) for group in groups for sample in group) == batch.lengths.sum()
