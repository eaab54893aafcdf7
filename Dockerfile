# The gateway: core process, admin process and command line. Engines need the adapter only: pip install . without extras.

FROM python:3.11 AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gateway gateway
COPY adapter adapter
COPY dashboards dashboards
# The full image has a compiler: the wheel carries the C extension.
RUN python -m venv /opt/kvgate && /opt/kvgate/bin/pip install --no-cache-dir -c constraints.txt '.[gateway]'

FROM python:3.11-slim
COPY --from=build /opt/kvgate /opt/kvgate
# Not root. Engines read and write the pool file: run them under the same uid, or share a group by KVGATE_RUN_DIR_GROUP.
RUN useradd --uid 10001 --create-home kvgate && install -d -o kvgate -g kvgate /kvgate
USER kvgate
ENV PATH=/opt/kvgate/bin:$PATH
ENTRYPOINT ["kvgate"]
CMD ["serve", "--run-dir", "/kvgate/run"]
