"""Reading an exposition as Prometheus would."""

import httpx
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Series:
    """Every sample by its name and its labels in order of their names."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of_registry(registry: CollectorRegistry) -> Series:
    return parse(generate_latest(registry).decode())


def of_gateway(url: str) -> Series:
    reply = httpx.get(f"{url}/metrics", timeout=10, trust_env=False)
    reply.raise_for_status()
    return parse(reply.text)


def value(series: Series, name: str, **labels: str) -> float:
    """The one sample of this name whose labels include these.

    Raises:
        AssertionError: none, or several.
    """
    wanted = set(labels.items())
    found = [sample for (key, having), sample in series.items() if key == name and wanted <= set(having)]
    assert len(found) == 1, f"{len(found)} samples of {name} with {labels}"
    return found[0]


def three(series: Series, prefix: str = "kvgate_adapter_", **labels: str) -> tuple[int, int, int]:
    """(pending stores, pending retrieves, retained events)."""
    return tuple(
        int(value(series, prefix + name, **labels))
        for name in ("pending_stores", "pending_retrieves", "retained_events")
    )
