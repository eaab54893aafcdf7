"""What compose file and PodMonitors take from dashboards/ is there, and where Prometheus and Grafana look for it."""

from gateway import config
from tests.deploy.files import ROOT, documents
from tests.deploy.test_compose import SERVICES, SETTINGS
from tests.deploy.test_kubernetes import MONITORS, relabelings


def test_what_is_mounted_from_here_exists_and_is_read_only() -> None:
    mounted = [entry for service in SERVICES.values() for entry in service["volumes"] if entry.startswith(".")]

    assert len(mounted) == 4
    for entry in mounted:
        here, _, mode = entry.split(":")
        assert (ROOT / here).exists(), entry
        assert mode == "ro", entry


def test_grafana_and_prometheus_find_what_is_mounted() -> None:
    places = {name: {e.split(":")[0]: e.split(":")[1] for e in SERVICES[name]["volumes"]} for name in SERVICES}
    provisioning = ROOT / "dashboards" / "grafana" / "provisioning"
    (provider,) = documents(provisioning / "dashboards" / "kvgate.yml")[0]["providers"]
    (source,) = documents(provisioning / "datasources" / "prometheus.yml")[0]["datasources"]
    (scrape,) = documents(ROOT / "dashboards" / "prometheus.yml")
    targets = [t for job in scrape["scrape_configs"] for group in job["static_configs"] for t in group["targets"]]
    rules = "./dashboards/" + scrape["rule_files"][0].split("/")[0]

    assert places["grafana"]["./dashboards/grafana/provisioning"] == "/etc/grafana/provisioning"
    assert places["grafana"]["./dashboards/grafana/dashboards"] == provider["options"]["path"]
    assert source["url"] == "http://prometheus:9090"
    assert places["prometheus"]["./dashboards/prometheus.yml"] == "/etc/prometheus/prometheus.yml"
    assert places["prometheus"][rules] == f"/etc/prometheus/{rules.rpartition('/')[2]}"
    assert f"gateway:{config.parse_address('probe', SETTINGS.probe)[1]}" in targets


def test_the_rules_find_gateways_of_a_cluster_by_their_job() -> None:
    rules = (ROOT / "dashboards" / "rules" / "kvgate.yml").read_text(encoding="utf-8")

    assert {"targetLabel": "job", "replacement": "kvgate"} in relabelings(MONITORS[0])
    assert 'up{job="kvgate"}' in rules
