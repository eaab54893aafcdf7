"""The race as a picture: how many times as much LMCache takes, one bar a figure.

``python -m benchmarks.peer.plot RACE.json PICTURE.png``, in the environment that ``scripts/setup-peer`` makes: it has
matplotlib. Reads the file alone.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt


def main(source: Path, picture: Path) -> None:
    """Draw all figures that are ratios."""
    race = json.loads(source.read_text(encoding="utf-8"))
    figures = [one for one in reversed(race["figures"]) if not one["is_count"] and one["ours"] > 0]
    figures = [one for one in figures if not one["what"].startswith(" ")]
    ratios = [one["peer"] / one["ours"] for one in figures]
    figure, axes = plt.subplots(figsize=(11, 0.42 * len(figures) + 1.6))
    colours = ["#2b6cb0" if ratio >= 1 else "#c05621" for ratio in ratios]
    axes.barh(range(len(figures)), ratios, left=0, color=colours, height=0.62)
    for i, (one, ratio) in enumerate(zip(figures, ratios, strict=True)):
        label = f" {ratio:.1f} x   {_amount(one['ours'])} against {_amount(one['peer'])} {one['unit']}"
        axes.text(max(ratio, 1), i, label, va="center", fontsize=8)
        if one["bar"]:
            axes.plot([one["bar"]] * 2, [i - 0.4, i + 0.4], color="black", linewidth=2)
    axes.set_yticks(range(len(figures)), [one["what"] for one in figures], fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, *ratios), 12 * max(ratios))
    axes.axvline(1, color="grey", linewidth=0.8)
    machine = race["machine"]
    axes.set_title(
        f"{race['peer']} by kvgate, larger is better for kvgate; a black line is a bar\n"
        f"{machine['processor']}, {machine['cores']} cores, CPU only, both in the same laps",
        fontsize=9,
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def _amount(value: float) -> str:
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
