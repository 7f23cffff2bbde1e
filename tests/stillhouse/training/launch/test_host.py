"""What is answered when ranks end without a result."""

import io
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from stillhouse.training.launch.host import failure_reason
from stillhouse.training.launch.messages import MessageWriter


@pytest.fixture
def words(tmp_path: Path):
    def leave(rank: int, error: str, *, killed: bool = False) -> ProcessFailure:
        file = tmp_path / f"{rank}.json"
        MessageWriter(io.StringIO(), rank, file).failed(error, killed=killed)
        return ProcessFailure(rank, pid=1000 + rank, exitcode=1, error_file=str(file))

    return leave


def without_words(rank: int, exit_code: int) -> ProcessFailure:
    return ProcessFailure(rank, pid=1000 + rank, exitcode=exit_code, error_file="")


def test_the_rank_that_failed_first_is_heard(words):
    first = words(1, "sft: the batch has no token")
    assert failure_reason({0: words(0, "connection closed"), 1: first}) == ("sft: the batch has no token", False)


def test_a_kill_is_told_before_what_the_others_say_of_it(words):
    message, killed = failure_reason({0: words(0, "connection closed"), 1: without_words(1, -9)})
    assert message.startswith("rank 1 ended without a result (signal SIGKILL")
    assert killed


def test_sigterm_by_which_torchrun_ends_the_others_is_no_cause(words):
    assert failure_reason({0: without_words(0, -15), 1: words(1, "disk full")}) == ("disk full", False)


def test_a_rank_that_was_told_to_stop_counts_as_killed(words):
    assert failure_reason({0: words(0, "stopped by SIGTERM", killed=True)}) == ("stopped by SIGTERM", True)


def test_ranks_without_words_are_told_by_their_exit_code():
    assert failure_reason({1: without_words(1, 3)}) == ("rank 1 ended without a result (exit code 3)", False)


def test_only_the_first_rank_writes_to_the_parent(tmp_path: Path):
    streams = [io.StringIO(), io.StringIO()]
    for rank, stream in enumerate(streams):
        MessageWriter(stream, rank, tmp_path / "error.json").update("sft", 1, 2)
    assert [bool(stream.getvalue()) for stream in streams] == [True, False]
