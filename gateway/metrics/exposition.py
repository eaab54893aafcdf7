"""Families as Prometheus' text format 0.0.4, in less than half the time that the client library takes.

Owns: the format for what our table can hold: gauges, counters and histograms with valid names, no timestamps. Must not
know: which families there are. Pure.

The library checks every label name of every sample against patterns; ours are checked where the table is tested. A
scrape of 64 engines has 9,000 samples, and 0.1 s to be answered in. A test holds the bytes to the library's.
"""

from collections.abc import Iterable

from prometheus_client import Metric as Family
from prometheus_client.utils import floatToGoString

_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_VALUE_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def text(families: Iterable[Family]) -> bytes:
    """The families in their order, each with its samples in theirs."""
    lines: list[str] = []
    pairs: dict[tuple[str, str], str] = {}  # few, and each in many samples
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines.append(f"# HELP {name} {family.documentation.translate(_HELP_ESCAPES)}\n# TYPE {name} {family.type}\n")
        for sample in family.samples:
            labels = []
            for pair in sorted(sample.labels.items()):
                known = pairs.get(pair)
                if known is None:
                    known = pairs[pair] = f'{pair[0]}="{pair[1].translate(_VALUE_ESCAPES)}"'
                labels.append(known)
            joined = f"{{{','.join(labels)}}}" if labels else ""
            value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
            lines.append(f"{sample.name}{joined} {value}\n")
    return "".join(lines).encode()
