"""A teacher behind a server from the config, tried before it is used."""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from transformers import PreTrainedTokenizerBase

from stillhouse.config import OnPolicyTeacher
from stillhouse.rollouts.failures import RequestFailed
from stillhouse.store import digest
from stillhouse.training.on_policy.teachers.alignment import ByteAlignment
from stillhouse.training.on_policy.teachers.echo import EchoApi
from stillhouse.training.on_policy.teachers.http import ServerClient
from stillhouse.training.on_policy.teachers.journal import ScoreJournal
from stillhouse.training.on_policy.teachers.probe import probe_server, probe_view
from stillhouse.training.on_policy.teachers.served import ScoringApi, ServedSettings, ServedTeacher
from stillhouse.training.on_policy.teachers.sglang import SglangApi
from stillhouse.training.on_policy.teachers.vllm import VllmApi

JOURNAL_FILE: Final = "teacher_scores.sqlite"
"""In the folder of the training; one file for all its teachers."""


def connect(
    settings: OnPolicyTeacher,
    kl_coef: float,
    temperature: float,
    tokenizer: PreTrainedTokenizerBase,
    alignment: ByteAlignment | None,
    work_dir: Path,
) -> ServedTeacher:
    """The teacher of `settings`, whose server has answered as it should.

    Args:
        settings: of a kind that is served.
        kl_coef: factor of its KL.
        temperature: that of sampling.
        tokenizer: of the tokens that it reads.
        alignment: from its tokens to the student's; None where they are the same.
        work_dir: holds the journal.

    Raises:
        AuthenticationError: the key is missing or refused.
        EndpointError: the server does not answer, does not know the model, or gives no log-probabilities.
        TrainingError: it has another vocabulary than `tokenizer`.
        ConfigError: it cannot take the temperature.
        StoreError: the journal cannot be opened.
    """
    assert settings.base_url is not None
    assert settings.model is not None
    with ExitStack() as opened:
        client = ServerClient(settings.base_url, settings.api_key_env, settings.request_timeout_s)
        opened.callback(client.close)
        length = client.context_length(settings.model)
        identity = digest([settings.kind, settings.model, client.root, temperature])
        journal = ScoreJournal(work_dir / JOURNAL_FILE, identity)
        opened.callback(journal.close)
        about = ServedSettings(
            settings.name,
            kl_coef,
            temperature,
            settings.batch_tokens,
            settings.max_in_flight,
            # One token is generated behind those that are scored.
            max_context=None if length is None else length - 1,
        )
        teacher = ServedTeacher(about, _api(settings, client, tokenizer), client, journal, alignment)
        probe_server(teacher, temperature, tokenizer)
        opened.pop_all()
    return teacher


def _api(settings: OnPolicyTeacher, client: ServerClient, tokenizer: PreTrainedTokenizerBase) -> ScoringApi:
    assert settings.model is not None
    if settings.kind == "vllm":
        return VllmApi(settings.model)
    if settings.kind == "sglang":
        return SglangApi()
    with_ids = EchoApi(settings.model)
    try:
        client.post(with_ids.path, with_ids.body([probe_view(tokenizer)], 1.0))
    except RequestFailed:
        # What else may be wrong with it, the form without ids meets too.
        return EchoApi(settings.model, with_ids=False)
    return with_ids
