# One image for every process: python -m wavepp.router, wavepp.directory, wavepp.stage, and the wavepp command.
#
#   docker build -t wavepp .
#   docker build -t wavepp-control --build-arg EXTRAS= .      # router and directory only: no torch, a quarter of the size
#
# A mirror of packages, or an index of CPU builds of torch: --secret id=pip,src=pip.conf; a CA of your own: --secret
# id=ca,src=ca.pem. Neither stays in the image. Needs BuildKit (the default since Docker 23).
ARG BASE_IMAGE=python:3.11-slim-bookworm

# ---- the libraries: a layer that changes only when their versions do ----

FROM ${BASE_IMAGE} AS libraries
# Extras of pyproject.toml, comma-separated: "stage" runs models; empty is enough for routers, directories and
# emulated stages on socket links.
ARG EXTRAS=stage
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY constraints.txt pyproject.toml ./
RUN python3 -m venv /opt/wavepp \
    && python3 -c "import sys, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = [extra for extra in sys.argv[1].split(',') if extra]; \
print(*project['dependencies'], *(lib for extra in extras for lib in project['optional-dependencies'][extra]), sep='\n')" \
    "${EXTRAS}" > requirements.txt
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,required=false \
    --mount=type=secret,id=ca,target=/run/secrets/ca.pem,required=false \
    --mount=type=cache,target=/root/.cache/pip \
    if [ -f /run/secrets/ca.pem ]; then export PIP_CERT=/run/secrets/ca.pem; fi \
    && /opt/wavepp/bin/pip install --quiet --upgrade -c constraints.txt pip \
    && /opt/wavepp/bin/pip install --quiet -c constraints.txt -r requirements.txt

# ---- WavePP itself: a small layer ----

FROM libraries AS wavepp
COPY README.md LICENSE ./
COPY services services
COPY shared shared
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,required=false \
    --mount=type=secret,id=ca,target=/run/secrets/ca.pem,required=false \
    --mount=type=cache,target=/root/.cache/pip \
    if [ -f /run/secrets/ca.pem ]; then export PIP_CERT=/run/secrets/ca.pem; fi \
    && /opt/wavepp/bin/pip install --quiet -c constraints.txt hatchling \
    && /opt/wavepp/bin/pip install --quiet --no-deps --no-build-isolation --prefix=/wavepp .

# ---- what runs ----

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="wavepp" \
      org.opencontainers.image.description="Pipeline-parallel LLM prefill: router, cache directory, stage" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin wavepp
COPY --from=libraries /opt/wavepp /opt/wavepp
COPY --from=wavepp /wavepp /opt/wavepp
COPY --from=wavepp --chmod=444 /build/services/wavepp/cli/mesh/probe.py /opt/wavepp/probe.py
# Ports are fixed inside a container, and the same for every process. Who others connect to is for its
# WAVEPP_ADVERTISE_ADDRESS to say. WAVEPP_ADDRESS is for the command: `docker exec ROUTER wavepp status`.
ENV PATH=/opt/wavepp/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    WAVEPP_ADDRESS=127.0.0.1:8470 \
    WAVEPP_BIND_HOST=0.0.0.0 \
    WAVEPP_BIND_PORT=8470 \
    WAVEPP_LINK_PORT=8471 \
    WAVEPP_METRICS_PORT=9470
EXPOSE 8470 8471 9470
WORKDIR /tmp
USER 10001:10001
# Ready, not only alive: `docker compose up --wait` and depends_on go by it, and nothing restarts a container for it.
# `wavepp health` says the same at thirty times the CPU time. A shell, so that it asks where the container's own
# settings say; a wildcard as host means this machine.
HEALTHCHECK --interval=5s --timeout=10s --start-period=120s --retries=3 \
    CMD exec python -IS /opt/wavepp/probe.py "$WAVEPP_BIND_HOST" "$WAVEPP_BIND_PORT"
CMD ["wavepp", "--help"]
