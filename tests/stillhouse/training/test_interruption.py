import os
import signal

import pytest
import torch

from stillhouse.training.interruption import Interrupted, InterruptOnSigterm
from stillhouse.training.ranks import Ranks

ALONE = Ranks.single(torch.device("cpu"))


def test_sigterm_raises_at_once():
    with pytest.raises(Interrupted), InterruptOnSigterm(ALONE):
        os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_waits_for_the_end_of_a_deferred_block():
    finished = []

    def train_one_step() -> None:
        with InterruptOnSigterm(ALONE) as interruption, interruption.deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            finished.append("optimiser step")

    with pytest.raises(Interrupted):
        train_one_step()
    assert finished == ["optimiser step"]


def test_the_handler_before_is_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with InterruptOnSigterm(ALONE):
        pass
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_sigterm_does_not_cut_off_what_the_first_one_asked_for():
    saved = []

    def train() -> None:
        with InterruptOnSigterm(ALONE):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except Interrupted:
                os.kill(os.getpid(), signal.SIGTERM)
                saved.append("checkpoint")
                raise

    with pytest.raises(Interrupted):
        train()
    assert saved == ["checkpoint"]
