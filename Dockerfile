# Two images: `gateway`, the last and so the default, with core process, admin process and command line; and `engine`, the
# demo engine of examples/engine.py. Engines of your own need the adapter only: pip install . without extras.

FROM python:3.11 AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gateway gateway
COPY adapter adapter
COPY dashboards dashboards
# The full image has a compiler: the wheel carries the C extension.
RUN python -m venv /opt/kvgate && /opt/kvgate/bin/pip install --no-cache-dir -c constraints.txt '.[gateway]'

FROM build AS build-engine
# PyTorch's own index has a build for CPUs alone, a tenth of the size of the other; where both have a version it wins.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/engine && \
    /opt/engine/bin/pip install --no-cache-dir -c constraints.txt --extra-index-url "${TORCH_INDEX}" '.[torch]'

FROM python:3.11-slim AS engine
COPY --from=build-engine /opt/engine /opt/engine
COPY examples/engine.py /opt/engine/engine.py
# Not root, and not the gateway's user: a common group is all that an engine and its gateway share.
USER 65534:65534
ENV PATH=/opt/engine/bin:$PATH PYTHONUNBUFFERED=1
ENTRYPOINT ["python", "/opt/engine/engine.py"]
CMD ["/kvgate/run"]

FROM python:3.11-slim AS gateway
COPY --from=build /opt/kvgate /opt/kvgate
# Not root. What is shared with engines is /kvgate, for this group; what is the operators' alone is /run/kvgate.
RUN groupadd --gid 10001 kvgate && useradd --uid 10001 --gid 10001 --no-create-home kvgate && \
    install -d -m 0750 -o kvgate -g kvgate /kvgate && install -d -m 0700 -o kvgate -g kvgate /run/kvgate
USER 10001:10001
# Read by `serve` and by every other command: docker exec … kvgate status needs no flags.
ENV PATH=/opt/kvgate/bin:$PATH KVGATE_RUN_DIR=/kvgate/run KVGATE_RUN_DIR_GROUP=10001 KVGATE_ADMIN_DIR=/run/kvgate/admin
ENTRYPOINT ["kvgate"]
CMD ["serve"]
