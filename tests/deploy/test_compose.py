"""compose.yaml and the Dockerfile: valid by the specification's schema and Debian's docker-compose, and true of kvgate.

Nothing is built or run here: tests/deploy/test_layout.py lays the same surroundings by hand.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gateway import config
from tests.deploy.files import (
    COMPOSE,
    DOCKERFILE,
    ROOT,
    documents,
    image_environ,
    needed_bytes,
    parsed,
    seconds_of,
    settings,
    size_of,
)

(compose,) = documents(COMPOSE)
SERVICES = compose["services"]
GATEWAY = SERVICES["gateway"]
ENGINE = SERVICES["engine"]
VOLUME = compose["volumes"]["kvgate"]["driver_opts"]
SETTINGS = settings(GATEWAY["command"], {"KVGATE_ADMIN": "127.0.0.1:9480"})

#: One wrong word each, instead of a right one.
WRONG = {"read_only:": "read_onyl:", "mem_limit: 1400m": "mem_limit: []", "profiles: [demo]": "profiles: demo"}


def by_the_schema(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_is_valid_by_the_schema_of_the_specification() -> None:
    checked = by_the_schema(COMPOSE)

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("right", WRONG)
def test_the_schema_would_find_a_wrong_word(tmp_path, right: str) -> None:
    broken = tmp_path / "compose.yaml"
    text = COMPOSE.read_text(encoding="utf-8")
    assert right in text
    broken.write_text(text.replace(right, WRONG[right], 1), encoding="utf-8")

    assert by_the_schema(broken).returncode == 1


def test_docker_compose_takes_it() -> None:
    if shutil.which("docker-compose") is None:
        reason = "docker-compose not found: run scripts/install-servers"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)

    checked = subprocess.run(
        ["docker-compose", "--profile", "demo", "--profile", "monitoring", "config"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("KVGATE_")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert checked.returncode == 0, checked.stderr
    assert yaml.safe_load(checked.stdout)["services"].keys() == SERVICES.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert size_of(service["mem_limit"]) > 0
    assert service["pids_limit"] > 0
    assert not service.keys() & {"privileged", "ipc", "pid", "cap_add", "devices"}
    assert service.get("network_mode") in (None, "none")
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", ["gateway", "engine"])
def test_ours_are_not_root(name: str) -> None:
    assert "0" not in SERVICES[name]["user"].split(":")


def test_images_are_pinned_by_a_version() -> None:
    images = [service["image"] for service in SERVICES.values() if "image" in service]

    assert len(images) == 2
    assert all(re.fullmatch(r"[\w/.-]+:v?\d+\.\d+\.\d+", image) for image in images), images


def test_the_gateway_starts_with_settings_that_exist() -> None:
    _, probe_port = config.parse_address("probe", SETTINGS.probe)
    _, admin_port = config.parse_address("admin", SETTINGS.admin)
    mounts = {entry.split(":")[1] for entry in GATEWAY["volumes"]} | {entry.split(":")[0] for entry in GATEWAY["tmpfs"]}

    assert set(GATEWAY["environment"]) <= {f"KVGATE_{name.upper()}" for name in config.SETTINGS} | {
        "KVGATE_ADMIN_TOKEN"
    }
    assert GATEWAY["ports"] == [f"127.0.0.1:{port}:{port}" for port in (admin_port, probe_port)]
    assert {str(Path(SETTINGS.run_dir).parent), str(Path(SETTINGS.admin_dir).parent)} == mounts
    assert seconds_of(GATEWAY["stop_grace_period"]) > SETTINGS.stop_deadline_seconds + 5


def test_the_page_is_on_the_host_only_with_a_token() -> None:
    """The default of each variable in the file is the one without a token, which must stay on loopback."""
    admin = GATEWAY["environment"]["KVGATE_ADMIN"]

    assert admin == f"${{KVGATE_ADMIN:-{config.GatewayConfig().admin}}}"
    with pytest.raises(config.ConfigError, match="no token is set"):
        settings(GATEWAY["command"], {"KVGATE_ADMIN": "0.0.0.0:9480", "KVGATE_ADMIN_TOKEN": ""})
    assert settings(GATEWAY["command"], {"KVGATE_ADMIN": "0.0.0.0:9480", "KVGATE_ADMIN_TOKEN": "t"})


def test_the_health_check_is_a_command_and_needs_no_other_program() -> None:
    kind, program, *words = GATEWAY["healthcheck"]["test"]

    assert (kind, program) == ("CMD", "kvgate")
    timeout = parsed(words).params["timeout"]
    assert timeout < seconds_of(GATEWAY["healthcheck"]["timeout"]) < seconds_of(GATEWAY["healthcheck"]["interval"])


def test_the_pool_fits_into_its_volume_and_the_memory_limit() -> None:
    options = dict(option.split("=") for option in VOLUME["o"].split(","))

    assert (VOLUME["type"], options["mode"]) == ("tmpfs", "0750")
    assert f"{options['uid']}:{options['gid']}" == GATEWAY["user"]
    assert size_of(options["size"]) >= SETTINGS.pool_size * 1.02
    assert size_of(GATEWAY["mem_limit"]) >= needed_bytes(SETTINGS)


def test_engine_and_gateway_share_a_directory_and_a_group_and_no_more() -> None:
    shared = set(GATEWAY["volumes"]) & set(ENGINE["volumes"])

    assert shared == {f"kvgate:{Path(SETTINGS.run_dir).parent}"}
    assert ENGINE["volumes"] == [*shared]
    assert ENGINE["command"] == [SETTINGS.run_dir]
    assert ENGINE["group_add"] == [SETTINGS.run_dir_group] == [GATEWAY["user"].split(":")[1]]
    assert ENGINE["user"] != GATEWAY["user"]
    assert ENGINE["network_mode"] == "none"
    assert "depends_on" not in ENGINE


def test_the_image_copies_what_exists_and_ends_as_the_compose_files_user() -> None:
    lines = DOCKERFILE.read_text(encoding="utf-8").splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    users = [line.removeprefix("USER ") for line in lines if line.startswith("USER ")]
    targets = re.findall(r"^FROM \S+ AS (\S+)$", "\n".join(lines), re.MULTILINE)

    assert {"pyproject.toml", "gateway", "adapter", "dashboards", "examples/engine.py"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert users == [ENGINE["user"], GATEWAY["user"]]
    assert {GATEWAY["build"]["target"], ENGINE["build"]["target"]} <= set(targets)
    assert targets[-1] == "gateway", "what `docker build .` makes"
    assert lines[-1] == 'CMD ["serve"]'
    assert settings(["serve"]).run_dir_group == GATEWAY["user"].split(":")[1]
    assert set(image_environ()) <= {f"KVGATE_{name.upper()}" for name in config.SETTINGS}
