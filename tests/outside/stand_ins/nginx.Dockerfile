ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends nginx-light wget && rm -rf /var/lib/apt/lists/*
COPY nginx.sh /entrypoint
USER 33
ENTRYPOINT ["sh", "/entrypoint"]
