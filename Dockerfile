# The sidecar: a wheel built in one stage, installed in an environment of its own, and nothing of the build beside it.
# Libraries of sinks for `run --sink`: --build-arg EXTRAS=wandb,tensorboard
ARG PYTHON_IMAGE=python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
ARG EXTRAS=
WORKDIR /src
# For the compiled part; without a Rust of 1.85 or newer the sidecar is built all the same, and is slower.
RUN if command -v cargo || ! command -v apt-get; then exit; fi \
 && apt-get update -qq && apt-get install -y -qq --no-install-recommends cargo
COPY pyproject.toml README.md* LICENSE ./
COPY native native
COPY stream_metrics stream_metrics
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . \
 && python -m venv /opt/stream-metrics \
 && /opt/stream-metrics/bin/pip install --no-cache-dir "$(echo /wheels/*.whl)${EXTRAS:+[$EXTRAS]}"

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/stream-metrics /opt/stream-metrics
ENV PATH=/opt/stream-metrics/bin:$PATH PYTHONUNBUFFERED=1
# A number, not a name: Kubernetes can tell from it that this is not root.
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["python", "-c", \
  "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["stream-metrics"]
CMD ["run", "--http-host", "0.0.0.0", "--http-port", "8080"]
