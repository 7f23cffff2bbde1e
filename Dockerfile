# Images of flows, workers and servers:
#
#   docker build --target cpu -t stillhouse:cpu .
#   docker build --target gpu -t stillhouse:gpu .
#
# Where a build must be the same to the byte, name the base by its digest:
# --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

# What both build stages begin with: the project's list of dependencies around packages without code, so that a change
# of code does not install them again.
FROM ${PYTHON_IMAGE} AS dependencies
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE deployments/images/slim.sh ./
RUN python -m venv /venv \
    && for package in flows tasks stillhouse; do mkdir "$package" && touch "$package/__init__.py"; done
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# PyTorch's own index gives torch and nothing else: what torch needs comes from PyPI with the rest, so that no package of
# the same name on a second index can take another's place.
FROM dependencies AS build-cpu
ARG TORCH_INDEX_CPU=https://download.pytorch.org/whl/cpu
RUN /venv/bin/pip install --no-compile --no-deps --index-url "$TORCH_INDEX_CPU" -c constraints.txt torch \
    && /venv/bin/pip install --no-compile -c constraints.txt '.[hub,s3,postgres,servers]'
COPY flows flows
COPY tasks tasks
COPY stillhouse stillhouse
# Nothing is built in this image, which has no compiler.
RUN /venv/bin/pip install --no-compile --no-deps --force-reinstall . \
    && rm -r /venv/lib/python*/site-packages/torch/include \
    && sh slim.sh /venv \
    && /venv/bin/python -m tasks.server.database

FROM dependencies AS build-gpu
ARG TORCH_INDEX_GPU=https://download.pytorch.org/whl/cu130
RUN /venv/bin/pip install --no-compile --no-deps --index-url "$TORCH_INDEX_GPU" -c constraints.txt torch \
    && /venv/bin/pip install --no-compile -c constraints.txt '.[hub,s3,postgres,servers,quantised]'
COPY flows flows
COPY tasks tasks
COPY stillhouse stillhouse
RUN /venv/bin/pip install --no-compile --no-deps --force-reinstall . && sh slim.sh /venv \
    && /venv/bin/python -m tasks.server.database

FROM ${PYTHON_IMAGE} AS runtime
# tini passes signals on and reaps what a killed training leaves behind.
RUN apt-get update \
    && apt-get install -y --no-install-recommends 'tini=0.19.*' \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 --shell /usr/sbin/nologin stillhouse
WORKDIR /app
COPY configs configs
COPY deployments deployments
COPY --chmod=755 deployments/images/with-secrets.sh /usr/local/bin/with-secrets
# A named volume takes over the owner of the folder that it covers.
RUN mkdir runs mlflow && chown 10001:10001 runs mlflow
# Prefect's server writes its pages where it is installed, which this user may not.
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PREFECT_HOME=/app/runs/prefect \
    PREFECT_UI_STATIC_DIRECTORY=/tmp/prefect-ui \
    HF_HOME=/app/runs/huggingface
VOLUME /app/runs
USER 10001
HEALTHCHECK --interval=10s --timeout=10s --start-period=120s --retries=6 \
    CMD ["python", "/app/deployments/images/healthy.py"]
# Secrets first, then the settings that every process of Prefect and MLflow starts with.
ENTRYPOINT ["tini", "--", "with-secrets", "python", "-m", "tasks.server.environment"]
CMD ["stillhouse", "distill", "configs/demo.yaml"]

FROM runtime AS gpu
USER 0
# torch.compile and Triton build their kernels with the machine's C compiler when they first run.
RUN apt-get update \
    && apt-get install -y --no-install-recommends 'gcc=4:12.*' 'libc6-dev=2.36-*' \
    && rm -rf /var/lib/apt/lists/*
USER 10001
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-gpu /venv /venv

FROM runtime AS cpu
COPY --from=build-cpu /venv /venv
