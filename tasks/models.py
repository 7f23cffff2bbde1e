"""The models of a run, and the endpoints that serve them."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from stillhouse.chat.refs import model_identity
from stillhouse.config import DistillConfig, ModelRole, OnPolicyTeacher, RuntimeConfig, StudentConfig, TeacherConfig
from stillhouse.inference.apis import require_client
from stillhouse.inference.budget import price_of, stated_price
from stillhouse.inference.credentials import signed
from stillhouse.inference.endpoint import Endpoint
from stillhouse.inference.local_server import CAPACITY, served_model
from stillhouse.store.fingerprint import digest
from stillhouse.types import Artifact, Model
from tasks.run.graph import made_of
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
    """Return the student of a training stage, identified by its stage's key and its weights, without their records."""
    return made_of([artifact], Model(name=name, ref=artifact.uri, fingerprint=model_identity(artifact.uri)))


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
        AuthenticationError: the endpoint is remote and the key's variable is not set, or holds no key.
        EndpointError: the local server did not come up.
    """
    if teacher is not None and teacher.base_url is not None:
        unsigned = Endpoint(
            teacher.base_url,
            model.ref,
            model.fingerprint,
            role=role,
            api=teacher.api,
            client=teacher.client,
            service_tier=teacher.service_tier,
            flex_fallback=teacher.flex_fallback,
        )
        require_client(unsigned)
        async with signed(unsigned, role.key_variable(runtime)) as endpoint:
            price = await price_of(endpoint, teacher)
            progress().say("sampling" if price is None else f"sampling at {price} ({price.source})")
            yield replace(endpoint, price=price)
        return
    with ExitStack() as stack:
        progress().say(f"loading {model.name if Path(model.ref).is_dir() else model.ref}")
        serving = served_model(model.ref, runtime, model.chat_template_kwargs)
        served = await asyncio.to_thread(stack.enter_context, serving)
        progress().say("sampling")
        price = None if teacher is None else stated_price(teacher)
        own = Endpoint(served.url, model.ref, model.fingerprint, price=price, role=role)
        yield replace(own, capacity=served.capacity, comes_back=served.comes_back)


async def priced_endpoint(section: TeacherConfig, runtime: RuntimeConfig, role: ModelRole) -> Endpoint:
    """Return the endpoint of a section with its price as a run will know it. Nothing is served, and no key needed."""
    if section.base_url is None:
        return Endpoint("", section.model, section.model, role=role, capacity=CAPACITY)
    key, identity = os.environ.get(role.key_variable(runtime), ""), teacher_model(section).fingerprint
    endpoint = Endpoint(section.base_url, section.model, identity, api_key=key, role=role)
    return replace(endpoint, price=await price_of(endpoint, section))
