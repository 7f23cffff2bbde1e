"""The models of a run, and the endpoints that serve them."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from stillhouse.chat.refs import model_identity
from stillhouse.config import DistillConfig, ModelRole, OnPolicyTeacher, RuntimeConfig, StudentConfig, TeacherConfig
from stillhouse.errors import AuthenticationError
from stillhouse.inference.apis import require_client
from stillhouse.inference.budget import price_of, stated_price
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.local_server import CAPACITY, served_model
from stillhouse.store.fingerprint import digest
from stillhouse.types import Artifact, Model
from tasks.run.progress import progress


def base_student(config: StudentConfig) -> Model:
    """Return the student before any training."""
    identity, values = model_identity(config.model), config.chat_template_kwargs
    return Model(
        name="base",
        ref=config.model,
        fingerprint=f"{identity}+{digest(values)[:16]}" if values else identity,
        chat_template_kwargs=values,
    )


def trained_student(name: str, artifact: Artifact) -> Model:
    """Return the student of a training stage, identified by its weights alone and not by the records beside them."""
    return Model(name=name, ref=artifact.uri, fingerprint=model_identity(artifact.uri))


def teacher_model(config: TeacherConfig) -> Model:
    """Return the teacher, behind its endpoint or on this machine."""
    if config.base_url is None:
        return Model(name="teacher", ref=config.model, fingerprint=model_identity(config.model))
    return Model(name="teacher", ref=config.model, fingerprint=f"{config.model}@{config.base_url}")


def student_scorer(config: DistillConfig) -> Model | OnPolicyTeacher | None:
    """Return the teacher that students are compared with: a local model, or else one behind a server; None for none."""
    ref = config.scoring_teacher
    return config.scoring_server if ref is None else Model(name="teacher", ref=ref, fingerprint=model_identity(ref))


@asynccontextmanager
async def endpoint_of(
    model: Model, teacher: TeacherConfig | None, runtime: RuntimeConfig, role: ModelRole = ModelRole.TEACHER
) -> AsyncIterator[Endpoint]:
    """Yield the endpoint that a section of this role names, else a local server's, which ends with the block.

    Raises:
        ConfigError: the file of prices cannot be read.
        AuthenticationError: the endpoint is remote and the key's variable is not set.
        EndpointError: the local server did not come up.
    """
    if teacher is not None and teacher.base_url is not None:
        variable = role.key_variable(runtime)
        endpoint = Endpoint(
            teacher.base_url,
            model.ref,
            model.fingerprint,
            api_key=_api_key(teacher.base_url, variable, role),
            role=role,
            key_variable=variable,
            api=teacher.api,
        )
        require_client(endpoint)
        yield replace(endpoint, price=await price_of(endpoint, teacher))
        return
    with ExitStack() as stack:
        progress().say(f"loading {model.name if Path(model.ref).is_dir() else model.ref}")
        url = await asyncio.to_thread(stack.enter_context, served_model(model.ref, runtime, model.chat_template_kwargs))
        progress().say("sampling")
        price = None if teacher is None else stated_price(teacher)
        yield Endpoint(url, model.ref, model.fingerprint, price=price, role=role, capacity=CAPACITY)


def _api_key(base_url: str, variable: str, role: ModelRole) -> str:
    if key := os.environ.get(variable):
        return key
    raise AuthenticationError(
        f"{base_url}: no API key: the environment variable {variable} is not set. Put {variable}=... into .env or the "
        f"environment, or name another variable in {role.key_setting} (any value will do where no key is asked for)",
        code="no-key",
    )
