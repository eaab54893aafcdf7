"""A real Prometheus on a free port, in a private directory, with targets of the test's choosing."""

import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pytest
import yaml

from tests.support.poll import until


def require_prometheus() -> None:
    """Skip where Debian's prometheus is not installed; fail there in continuous integration."""
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    if not missing:
        return
    reason = f"{' and '.join(missing)} not found: run scripts/install-servers"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


#: The targets of a job: one HOST:PORT, or several, each with labels of its own.
Targets = str | Mapping[str, Mapping[str, str]]


class Prometheus:
    """Scrapes ``targets`` (by job) twice a second. A context manager: started on the way in.

    Args:
        folder: for its configuration, data and log.
        targets: by the name of their job.
        rules: a rules file.
    """

    def __init__(self, folder: Path, targets: Mapping[str, Targets], rules: Path | None = None) -> None:
        self._folder = folder
        self._targets = targets
        self._rules = rules
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    def value(self, query: str) -> float | None:
        """The one sample a query has now; None: it has none."""
        found = self.query(query)["data"]["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def query(self, query: str) -> dict:
        """The whole answer to a query at this moment, refusals too: ``status``, ``data``, ``error``, ``warnings``."""
        try:
            return self._get("/api/v1/query?" + urllib.parse.urlencode({"query": query}))
        except urllib.error.HTTPError as refusal:
            return json.load(refusal)

    def firing_alerts(self) -> list[dict]:
        """Alerts that fire, with labels and annotations."""
        return [one for one in self._get("/api/v1/alerts")["data"]["alerts"] if one["state"] == "firing"]

    def unhealthy_targets(self) -> list[str]:
        """Targets whose last scrape failed, with the error."""
        targets = self._get("/api/v1/targets")["data"]["activeTargets"]
        return [f"{t['labels']['job']}: {t['lastError']}" for t in targets if t["health"] == "down"]

    def __enter__(self) -> Self:
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"},
            "scrape_configs": [
                {"job_name": job, "static_configs": _static(targets)} for job, targets in self._targets.items()
            ],
            "rule_files": [str(self._rules)] if self._rules else [],
        }
        path = self._folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self._url = f"http://{address}"
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={path}",
                    f"--storage.tsdb.path={self._folder / 'tsdb'}",
                    f"--web.listen-address={address}",
                    "--query.lookback-delta=5s",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            until(self._is_ready, 60, "Prometheus ready")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=2):
                return True
        except OSError:
            return False

    def _get(self, path: str) -> dict:
        with urllib.request.urlopen(self._url + path, timeout=10) as answer:
            return json.load(answer)


def _static(targets: Targets) -> list[dict]:
    if isinstance(targets, str):
        return [{"targets": [targets]}]
    return [{"targets": [target], "labels": dict(labels)} for target, labels in targets.items()]
