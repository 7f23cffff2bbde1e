"""The first question to each paid model of a run, asked of all at once before any other request leaves."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache

from stillhouse.config import DistillConfig, ModelRole, RuntimeConfig
from stillhouse.errors import StillhouseError
from stillhouse.inference.budget import Budget, require_prices, shared_budget
from stillhouse.inference.first_question import FirstQuestion
from stillhouse.inspection import Finding
from stillhouse.types import Turn
from tasks.models import endpoint_of, teacher_model
from tasks.run.context import RunContext
from tasks.run.interruption import run_until_done
from tasks.run.paid_models import PaidModel, paid_models
from tasks.run.progress import progress

_LOG = logging.getLogger(__name__)


async def ask_first(context: RunContext) -> None:
    """Ask each paid model of a run its first question, once in a process, unless it was answered within a day.

    Raises:
        ConfigError: the budget needs a price that is unknown.
        EndpointError, AuthenticationError: a model would refuse whatever it is asked.
        BudgetReached: the budget does not hold the question.
    """
    asking = _asking(context.run_id)
    if not asking or asking[0].cancelled():
        asking[:] = [asyncio.ensure_future(_ask_all(context))]
    await asyncio.shield(asking[0])


def examine_models(config: DistillConfig) -> Iterator[Finding]:
    """Yield a finding for each model behind an endpoint, by its answer to the first question."""
    runtime = config.runtime.model_copy(update={"max_attempts": 2})

    async def examine(model: PaidModel) -> Finding:
        name = model.role.lower()
        try:
            async with _question(model, runtime) as question:
                if question.was_answered:
                    return Finding(name, True, _answered(question, None))
                turn = await question.ask(Budget(config.budget, question.endpoint.price))
                if turn is None:
                    return Finding(name, False, f"{question.endpoint.base_url}: is too busy to answer; try again later")
                return Finding(name, True, _answered(question, turn))
        except StillhouseError as error:
            return Finding(name, False, str(error))

    async def examine_all() -> list[Finding]:
        return await asyncio.gather(*map(examine, paid_models(config)))

    yield from run_until_done(examine_all())


@lru_cache(maxsize=64)
def _asking(run_id: str) -> "list[asyncio.Task[None]]":
    """Return the one task of a run that asks, where there is one."""
    return []


async def _ask_all(context: RunContext) -> None:
    asked = (_ask(context, model) for model in context.paid_models)
    errors = [one for one in await asyncio.gather(*asked, return_exceptions=True) if one is not None]
    for further in errors[1:]:
        _LOG.error("%s", further)
    if errors:
        raise errors[0]


async def _ask(context: RunContext, model: PaidModel) -> None:
    async with _question(model, context.runtime) as question:
        require_prices(question.endpoint, context.budget)
        if question.is_paid and not question.was_answered:
            part = f"first question to the {model.role.lower()}"
            progress().say(part)
            turn = await question.ask(shared_budget(context.run_id, part, context.budget, question.endpoint.price))
            _LOG.info("%s: %s", part, _answered(question, turn))


@asynccontextmanager
async def _question(model: PaidModel, runtime: RuntimeConfig) -> AsyncIterator[FirstQuestion]:
    async with endpoint_of(teacher_model(model.teacher), model.teacher, runtime, ModelRole[model.role]) as endpoint:
        yield FirstQuestion.of(endpoint, model.rollouts, runtime, has_tools=model.has_tools)


def _answered(question: FirstQuestion, turn: Turn | None) -> str:
    answers = f"{question.endpoint.base_url}: {question.endpoint.model} answers"
    if turn is None or not turn.usage:
        return answers
    num_tokens = turn.usage.get("prompt_tokens", 0) + turn.usage.get("completion_tokens", 0)
    cost = "at a price that is not known" if turn.cost_usd is None else f"for {turn.cost_usd:.6f} USD"
    return f"{answers} a first question: {num_tokens} tokens {cost}"
