"""What is answered when ranks end without a result."""

import io
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from stillhouse.training.launch.host import failure_reason
from stillhouse.training.launch.messages import MessageWriter


@pytest.fixture
def failed(tmp_path: Path):
    def leave(rank: int, error: str, *, killed: bool = False) -> ProcessFailure:
        file = tmp_path / f"{rank}.json"
        MessageWriter(io.StringIO(), rank, file).failed(error, killed=killed)
        return ProcessFailure(rank, pid=1000 + rank, exitcode=1, error_file=str(file))

    return leave


def silent(rank: int, exit_code: int) -> ProcessFailure:
    return ProcessFailure(rank, pid=1000 + rank, exitcode=exit_code, error_file="")


def test_the_rank_that_failed_first_is_heard(failed):
    first = failed(1, "sft: the batch has no token")
    assert failure_reason({0: failed(0, "connection closed"), 1: first}) == ("sft: the batch has no token", False)


def test_a_kill_counts_before_the_messages_of_the_others(failed):
    message, killed = failure_reason({0: failed(0, "connection closed"), 1: silent(1, -9)})
    assert message.startswith("rank 1 ended without a result (signal SIGKILL")
    assert killed


def test_sigterm_by_which_torchrun_ends_the_others_is_no_cause(failed):
    assert failure_reason({0: silent(0, -15), 1: failed(1, "disk full")}) == ("disk full", False)
    assert failure_reason({0: failed(0, "stopped by SIGTERM", killed=True)}) == ("stopped by SIGTERM", True)


def test_ranks_without_a_message_are_named_with_their_exit_code():
    assert failure_reason({1: silent(1, 3)}) == ("rank 1 ended without a result (exit code 3)", False)


def test_only_the_first_rank_writes_to_the_parent(tmp_path: Path):
    streams = [io.StringIO(), io.StringIO()]
    for rank, stream in enumerate(streams):
        MessageWriter(stream, rank, tmp_path / "error.json").update("sft", 1, 2)
    assert [bool(stream.getvalue()) for stream in streams] == [True, False]
