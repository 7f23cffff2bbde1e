# One image for flows, workers and training. Build: docker build -t stillhouse .
FROM python:3.11-slim AS build
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY flows flows
COPY tasks tasks
COPY stillhouse stillhouse
RUN python -m venv /venv \
    && /venv/bin/pip install --no-cache-dir -c constraints.txt torch \
    && /venv/bin/pip install --no-cache-dir -c constraints.txt .

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 stillhouse
COPY --from=build /venv /venv
WORKDIR /app
COPY --chown=stillhouse configs configs
RUN mkdir runs && chown stillhouse runs
USER stillhouse
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DO_NOT_TRACK=1 \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    PREFECT_RESULTS_DEFAULT_SERIALIZER=json \
    PREFECT_LOGGING_EXTRA_LOGGERS=stillhouse \
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS=120 \
    PREFECT_HOME=/app/runs/prefect \
    MLFLOW_DISABLE_TELEMETRY=true \
    HF_HUB_DISABLE_TELEMETRY=1
VOLUME /app/runs
ENTRYPOINT ["stillhouse"]
CMD ["distill", "configs/demo.yaml"]
