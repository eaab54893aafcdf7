"""deploy/kubernetes: valid by the schemas, true of kvgate's command line and defaults, and safe to roll out."""

import copy
import json

import click
import jsonschema
import kubernetes_validate
import pytest
import yaml

from adapter.vllm.settings import read
from gateway import config
from gateway.config import GatewayConfig
from tests.deploy.files import (
    COMPOSE,
    DOCKERFILE,
    KUBERNETES,
    ROOT,
    Json,
    document,
    documents,
    image_environ,
    needed_bytes,
    settings,
    size_of,
)

#: The oldest version in which a side-car's ``restartPolicy`` is not behind a gate, and one that is recent.
VERSIONS = ("1.29", "1.37")
MONITORS = documents(ROOT / "deploy" / "kubernetes" / "podmonitors.yaml")
SCHEMA = json.loads((ROOT / "tests" / "deploy" / "podmonitor.schema.json").read_text(encoding="utf-8"))

DAEMONSET = document("daemonset.yaml")
POD = DAEMONSET["spec"]["template"]["spec"]
ENGINE_POD = document("engine.yaml")["spec"]["template"]["spec"]
SIDECAR_POD = document("sidecar.yaml")["spec"]["template"]["spec"]
(KVGATE,) = POD["containers"]
(SIDECAR,) = SIDECAR_POD["initContainers"]
(ENGINE,) = ENGINE_POD["containers"]
(ENGINE_BESIDE,) = SIDECAR_POD["containers"]

BOTH = pytest.mark.parametrize("gateway", [KVGATE, SIDECAR], ids=["daemonset", "sidecar"])
ENGINES = pytest.mark.parametrize("engine", [ENGINE, ENGINE_BESIDE], ids=["daemonset", "sidecar"])


def probes_of(container: Json) -> set[str]:
    return {name for name in container if name.endswith("Probe")}


# -- schemas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["daemonset.yaml", "engine.yaml", "sidecar.yaml"])
def test_a_manifest_is_valid_by_the_schema(name: str, version: str) -> None:
    kubernetes_validate.validate(document(name), version, strict=True)


@pytest.mark.parametrize("change", [{"restartPolicies": "Always"}, {"ports": 9481}, {"livenessProbe": {"httpGet": {}}}])
def test_the_schema_would_find_a_wrong_word(change: dict[str, Json]) -> None:
    broken = copy.deepcopy(document("sidecar.yaml"))
    broken["spec"]["template"]["spec"]["initContainers"][0] |= change

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("monitor", MONITORS, ids=lambda monitor: monitor["metadata"]["name"])
def test_a_pod_monitor_is_valid_by_its_schema(monitor: Json) -> None:
    jsonschema.validate(monitor, SCHEMA)


@pytest.mark.parametrize("change", [{"scrapeTimeout": "5 s"}, {"relabeling": []}, {"port": 9481}])
def test_the_schema_of_pod_monitors_would_find_a_wrong_word(change: dict[str, Json]) -> None:
    broken = copy.deepcopy(MONITORS[0])
    broken["spec"]["podMetricsEndpoints"][0] |= change

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_every_file_is_looked_at() -> None:
    assert {path.name for path in KUBERNETES} == {"daemonset.yaml", "engine.yaml", "sidecar.yaml", "podmonitors.yaml"}


# -- the gateway ------------------------------------------------------------------------------------------------------


@BOTH
def test_the_gateway_starts_with_settings_that_exist_and_is_asked_where_it_answers(gateway: Json) -> None:
    of = settings(gateway["args"])
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}

    assert ports == {"probe": config.parse_address("probe", of.probe)[1]}
    assert of.admin == GatewayConfig().admin, "on the pod's loopback"
    assert {gateway[name]["httpGet"]["port"] for name in probes_of(gateway)} == {"probe"}
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert "env" not in gateway, "the image has what it needs"


def test_a_pod_begins_by_livez_and_is_ready_by_readyz() -> None:
    assert probes_of(KVGATE) == {"startupProbe", "livenessProbe", "readinessProbe"}
    assert KVGATE["startupProbe"]["httpGet"]["path"] == "/livez"
    assert KVGATE["readinessProbe"]["httpGet"]["path"] == "/readyz"


@BOTH
def test_the_watchdog_is_quicker_than_the_kubelet(gateway: Json) -> None:
    probe = gateway["livenessProbe"]

    assert probe["periodSeconds"] * probe["failureThreshold"] > settings(gateway["args"]).watchdog_seconds


@BOTH
def test_memory_is_what_the_formula_says_and_cpu_has_no_limit(gateway: Json) -> None:
    resources = gateway["resources"]
    needed = needed_bytes(settings(gateway["args"]))

    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert needed <= size_of(resources["limits"]["memory"]) <= needed * 1.05
    assert "cpu" in resources["requests"]
    assert "cpu" not in resources["limits"]


@BOTH
def test_the_gateway_is_confined_as_in_the_compose_file(gateway: Json) -> None:
    (compose,) = documents(COMPOSE)
    security = {**POD["securityContext"], **gateway["securityContext"]}
    user = f"{security['runAsUser']}:{security['runAsGroup']}"

    assert security["runAsNonRoot"] is security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert user == compose["services"]["gateway"]["user"]
    assert f"USER {user}" in DOCKERFILE.read_text(encoding="utf-8")


@pytest.mark.parametrize("pod", [POD, ENGINE_POD, SIDECAR_POD], ids=["gateway", "engine", "sidecar"])
def test_no_pod_takes_more_of_the_node_than_a_directory(pod: Json) -> None:
    assert not pod.keys() & {"hostNetwork", "hostIPC", "hostPID"}
    assert pod["enableServiceLinks"] is False
    assert [v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v] in ([], ["/dev/shm/kvgate"])  # noqa: S108
    assert not any(c.get("securityContext", {}).get("privileged") for c in pod["containers"])


def test_only_the_init_container_is_root_with_two_capabilities() -> None:
    (prepare,) = POD["initContainers"]
    security = prepare["securityContext"]

    assert (security["runAsUser"], security["runAsNonRoot"]) == (0, False)
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "FOWNER"]}
    assert security["readOnlyRootFilesystem"] is True
    assert prepare["image"] == KVGATE["image"]
    *_, owner, _, group, directory = prepare["command"]
    of_pod = POD["securityContext"]
    assert (int(owner), int(group)) == (of_pod["runAsUser"], of_pod["runAsGroup"])
    assert directory == "/kvgate"


def test_two_gateways_never_hold_one_pool_and_a_stop_has_its_time() -> None:
    strategy = DAEMONSET["spec"]["updateStrategy"]["rollingUpdate"]

    assert (strategy["maxSurge"], strategy["maxUnavailable"]) == (0, 1)
    assert DAEMONSET["spec"]["minReadySeconds"] > 0
    for pod, gateway in ((POD, KVGATE), (SIDECAR_POD, SIDECAR)):
        assert pod["terminationGracePeriodSeconds"] > settings(gateway["args"]).stop_deadline_seconds + 5
        assert "lifecycle" not in gateway, "SIGTERM drains: there is no preStop"


# -- what gateway and engines share -----------------------------------------------------------------------------------


def mount_of(container: Json, name: str) -> Json:
    (found,) = [mount for mount in container["volumeMounts"] if mount["name"] == name]
    return found


@ENGINES
def test_an_engine_looks_for_the_gateway_where_it_is(engine: Json) -> None:
    (words,) = [word for word in engine["args"] if word.startswith("--kv-transfer-config=")]
    transfer = json.loads(words.partition("=")[2])
    chosen = read(transfer["kv_connector_extra_config"])

    assert chosen.run_dir == image_environ()["KVGATE_RUN_DIR"]
    assert (transfer["kv_connector"], transfer["kv_connector_module_path"]) == ("KVGateConnector", "adapter.vllm")
    assert transfer["kv_load_failure_policy"] == "recompute"
    assert mount_of(engine, "kvgate")["mountPath"] + "/run" == chosen.run_dir
    assert [entry["name"] for entry in engine["env"]] == ["POD_NAME"]


def test_both_pods_mount_the_parent_and_see_what_is_mounted_there_later() -> None:
    of_gateway, of_engine = mount_of(KVGATE, "shared"), mount_of(ENGINE, "kvgate")

    for mount in (of_gateway, of_engine):
        assert (mount["mountPath"], mount["mountPropagation"]) == ("/kvgate", "HostToContainer")
    assert [v["hostPath"] for v in POD["volumes"] if "hostPath" in v] == [
        v["hostPath"] for v in ENGINE_POD["volumes"] if "hostPath" in v
    ]


def test_the_side_cars_pool_is_memory_with_room_for_it() -> None:
    volumes = {volume["name"]: volume["emptyDir"] for volume in SIDECAR_POD["volumes"]}

    assert volumes["kvgate"]["medium"] == volumes["admin"]["medium"] == "Memory"
    assert size_of(volumes["kvgate"]["sizeLimit"]) >= settings(SIDECAR["args"]).pool_size * 1.02
    assert mount_of(ENGINE_BESIDE, "kvgate")["mountPath"] == mount_of(SIDECAR, "kvgate")["mountPath"]


@BOTH
def test_no_engine_has_the_operators_directory(gateway: Json) -> None:
    place = mount_of(gateway, "admin")["mountPath"]

    assert image_environ()["KVGATE_ADMIN_DIR"].startswith(f"{place}/")
    for engine in (ENGINE, ENGINE_BESIDE):
        assert all(mount["name"] != "admin" for mount in engine["volumeMounts"])


@pytest.mark.parametrize("pod", [ENGINE_POD, SIDECAR_POD], ids=["engine", "sidecar"])
def test_engines_have_the_group(pod: Json) -> None:
    assert [str(group) for group in pod["securityContext"]["supplementalGroups"]] == [
        image_environ()["KVGATE_RUN_DIR_GROUP"]
    ]


def test_nothing_of_an_engine_waits_for_kvgate() -> None:
    assert "initContainers" not in ENGINE_POD
    assert SIDECAR["restartPolicy"] == "Always"
    assert probes_of(SIDECAR) == {"livenessProbe"}, "the kubelet would wait for a startup probe, and count readiness"
    for engine in (ENGINE, ENGINE_BESIDE):
        assert "kvgate" not in yaml.safe_dump({name: engine[name] for name in probes_of(engine)})
        assert "command" not in engine


# -- what Prometheus finds --------------------------------------------------------------------------------------------


def relabelings(monitor: Json) -> list[Json]:
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    return endpoint["relabelings"]


def pods() -> list[Json]:
    return [document(name)["spec"]["template"] for name in ("daemonset.yaml", "engine.yaml", "sidecar.yaml")]


@pytest.mark.parametrize("monitor", MONITORS, ids=["gateways", "engines"])
def test_a_pod_monitor_finds_the_ports_that_have_metrics(monitor: Json) -> None:
    labels = monitor["spec"]["selector"]["matchLabels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    chosen = [pod["spec"] for pod in pods() if labels <= pod["metadata"]["labels"].items()]

    assert len(chosen) == 2
    for pod in chosen:
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        named = [port["name"] for container in containers for port in container.get("ports", [])]
        assert named.count(endpoint["port"]) == 1
    assert endpoint["path"] == "/metrics"


def test_gateways_and_engines_of_a_node_have_its_name_in_one_label() -> None:
    node = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}

    assert [node in relabelings(monitor) for monitor in MONITORS] == [True, True]


# -- the checks themselves --------------------------------------------------------------------------------------------


def test_a_flag_that_does_not_exist_would_be_found() -> None:
    with pytest.raises(click.UsageError, match="No such option"):
        settings([*KVGATE["args"], "--pool-sise=4GiB"])
