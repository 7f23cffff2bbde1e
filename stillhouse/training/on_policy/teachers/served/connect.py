"""Connects to a served teacher of the config and checks it before use."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from transformers import PreTrainedTokenizerBase

from stillhouse.config import Divergence, OnPolicyTeacher, RuntimeConfig
from stillhouse.errors import AuthenticationError, EndpointError
from stillhouse.inference.budget import Budget
from stillhouse.inference.failures import RequestFailed
from stillhouse.inference.model_server import ModelServer, read_key
from stillhouse.inference.rate_limit import Caps, limits_file, shared_controller
from stillhouse.inference.retry import MAX_OUTAGE_S
from stillhouse.inference.scoring.api import ScoringApi
from stillhouse.inference.scoring.completions_api import EchoApi, VllmApi
from stillhouse.inference.scoring.ledger import open_ledger
from stillhouse.inference.scoring.scorer import Scorer
from stillhouse.inference.scoring.sglang_api import SglangApi
from stillhouse.store import ArtifactStore
from stillhouse.training.on_policy.teachers.probe import probe_server, probe_view
from stillhouse.training.on_policy.teachers.served.given_ids import GivenIdsScorer
from stillhouse.training.on_policy.teachers.served.started import with_server
from stillhouse.training.on_policy.teachers.served.teacher import ServedTeacher
from stillhouse.training.on_policy.teachers.shared_ids import SharedIds
from stillhouse.training.on_policy.teachers.teacher import Alignment

logger = logging.getLogger(__name__)

_MAX_IN_FLIGHT: Final = 8
"""Requests at once: of `batch_tokens` each they keep a server's prefill busy."""
_MAX_SEQUENCES: Final = 64
"""The same of requests of one sequence."""


def connect(
    settings: OnPolicyTeacher,
    kl_coef: float,
    temperature: float,
    tokenizer: PreTrainedTokenizerBase,
    alignment: Alignment | None,
    runtime: RuntimeConfig,
    *,
    divergence: Sequence[Divergence] = (),
    budget: Budget | None = None,
    max_outage_s: float = MAX_OUTAGE_S,
    say: Callable[[str | None], None] = lambda text: None,
) -> ServedTeacher:
    """Return the served teacher of `settings`, checked by `probe_server`, its server started if it has no address.

    `tokenizer` is of the teacher's input, and `alignment` leads from its tokens to the student's; None if they are the
    same. For a `divergence` of reverse KLs it scores the student's most probable tokens, where the server can. A server
    that answered before is waited for `max_outage_s`, and `say` shows it; None when it is over.

    Raises:
        AuthenticationError: the key is missing or refused.
        EndpointError: the server does not answer, does not know the model, or gives no log-probabilities.
        TrainingError: it has another vocabulary than `tokenizer`.
        ConfigError: its server cannot be started, or its log-probabilities ignore the temperature.
        StoreError: the ledger cannot be opened.
    """
    resources = ExitStack()
    with ExitStack() as opened:
        settings = with_server(settings, runtime, opened, say)
        assert settings.base_url is not None
        assert settings.model is not None
        key = read_key(settings.api_key_env, f"api_key_env of teacher {settings.name!r} at {settings.base_url}")
        server = ModelServer(settings.base_url, key, runtime.request_timeout_s, model=settings.model)
        opened.callback(server.close)
        length = _context_length(server, settings.model)
        controller = shared_controller(
            server.endpoint,
            initial=_MAX_IN_FLIGHT,
            caps=Caps(_MAX_IN_FLIGHT),
            memory=limits_file(runtime),
        )
        scorer = Scorer(
            server,
            _api(settings, server, tokenizer),
            None,
            controller,
            batch_tokens=settings.batch_tokens,
            temperature=temperature,
            budget=budget,
            hedge=runtime.hedge,
            max_outage_s=max_outage_s,
            on_outage=lambda seconds: say(
                None if seconds is None else f"waiting for teacher {settings.name!r}: no connection for {seconds:.0f} s"
            ),
        )
        # The scoring request also generates one token.
        max_context = None if length is None else length - 1
        teacher = ServedTeacher(settings.name, kl_coef, max_context, scorer, server, resources, alignment)
        probed = probe_server(teacher, temperature, tokenizer)
        known_by = {"kind": settings.kind, "model": settings.model, "server": server.root, "temperature": temperature}
        store = ArtifactStore(runtime.store, runtime.scratch)
        scorer.ledger = opened.enter_context(open_ledger(store, known_by, probed, settings.top_k or 0))
        if settings.kind == "vllm" and {(term.kind, term.top_k) for term in divergence} == {("reverse_kl", None)}:
            ids = alignment if isinstance(alignment, SharedIds) else SharedIds(settings.name, len(tokenizer), tokenizer)
            given = GivenIdsScorer(scorer, settings.top_k or 0, ids)
            if (reason := given.refusal(server, probe_view(tokenizer), probed)) is None:
                teacher.given = given
                controller.cap(Caps(_MAX_SEQUENCES))
            own = f"the teacher's alone, as its server scores no others ({reason}); see vLLM's --enable-scale-out"
            whose = "those of the student and of the teacher" if reason is None else own
            logger.info("teacher %r: the %d best tokens in a reverse KL are %s", settings.name, settings.top_k, whose)
        resources.push(opened.pop_all())
    return teacher


def _api(settings: OnPolicyTeacher, server: ModelServer, tokenizer: PreTrainedTokenizerBase) -> ScoringApi:
    assert settings.model is not None
    if settings.kind == "vllm":
        return VllmApi(settings.model, top_k=settings.top_k or 0)
    if settings.kind == "sglang":
        return SglangApi(top_k=settings.top_k or 0)
    with_ids = EchoApi(settings.model)
    try:
        server.post(with_ids.path, with_ids.body([probe_view(tokenizer)], 1.0))
    except RequestFailed:
        # Any other fault shows in the form without ids as well.
        return EchoApi(settings.model, with_ids=False)
    return with_ids


def _context_length(server: ModelServer, model: str) -> int | None:
    """Return the context length by `/v1/models`, None if the server does not report it; raises as `connect`."""
    url = f"{server.root}/v1/models"
    try:
        served = {listed.id: listed.max_context for listed in server.models()}
    except RequestFailed as error:
        failure = error.failure
        if failure.status in (401, 403):
            raise AuthenticationError(f"{url}: {failure.message}: the key is refused; see api_key_env") from error
        if failure.status is None:
            raise EndpointError(
                f"{url}: {failure.message}. Check that the teacher's server runs, and its base_url"
            ) from error
        if failure.status == 200:
            raise EndpointError(
                f"{url}: {failure.message}. Check base_url: it is the address of a server with OpenAI's API, such as "
                "http://127.0.0.1:8000/v1"
            ) from error
        return None
    if model not in served:
        raise EndpointError(
            f"{url}: does not serve {model!r}; expected one of {sorted(served)} as the teacher's `model`"
        )
    return served[model]
