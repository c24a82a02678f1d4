"""Draws the pictures of README.md and attention-kinds.md: python docs/images/draw.py"""

from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot as plt

from fairseq_clusterformer.attention import MultiheadAttention
from fairseq_clusterformer.attention.inspect import tokens_seen

IMAGES = Path(__file__).resolve().parent


def windows_and_clusters(path: Path) -> None:
    """What the last word of a text sees, with as many keys each: a window, and a cluster."""
    words = (
        "Mara hid the key below the stone . Rain fell all week . Then she looked for the".split()
    )
    query = len(words) - 1
    rows = (
        ("window: the latest 6 words", range(query - 5, query), ()),
        ("cluster: the latest 3 words, and 3 of its cluster", range(query - 2, query), (0, 1, 3)),
    )
    figure, panels = plt.subplots(2, 1, figsize=(10, 4))
    for axes, (title, near, far) in zip(panels, rows, strict=True):
        places, x = [], 0.0
        for word in words:
            width = 0.13 * len(word) + 0.32
            places.append(x + width / 2)
            x += width
        for number, (word, place) in enumerate(zip(words, places, strict=True)):
            seen = number == query or number in near or number in far
            colour = "#ffb703" if number in far else "#8ecae6" if seen else "#f1f1f1"
            box = {
                "boxstyle": "round,pad=0.3",
                "fc": colour,
                "ec": "#d00000" if number == query else "none",
            }
            axes.text(
                place,
                0,
                word,
                ha="center",
                va="center",
                fontsize=11,
                bbox=box,
                color="black" if seen else "#999999",
            )
            if seen and number != query:
                bend = f"arc3,rad={0.2 if number in far else 0.6}"
                arrow = {
                    "arrowstyle": "->",
                    "color": "#777777",
                    "lw": 1.0,
                    "connectionstyle": bend,
                }
                axes.annotate("", (place, 0.3), (places[query], 0.3), arrowprops=arrow)
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xlim(-0.2, x + 0.2)
        axes.set_ylim(-0.5, 2.4)
        axes.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def order_ranges_restore(path: Path) -> None:
    """Ten tokens on their way through the three steps."""
    words = "Ann met Bob . Bob sang . Ann left .".split()
    clusters = [0, 1, 0, 2, 0, 1, 2, 0, 1, 2]
    order = sorted(range(len(words)), key=lambda token: (clusters[token], token))
    colours = ("#8ecae6", "#ffb703", "#b7e4c7")
    figure, axes = plt.subplots(figsize=(10, 4.4))
    numbers = list(range(len(words)))
    rows = (
        (3.4, numbers, "position", "the text; a token's\ncolour is its cluster"),
        (
            1.8,
            order,
            "slot",
            "1. order\nby cluster, then position\n\n2. ranges\nof slots (two are shown)",
        ),
        (0.0, numbers, "position", "3. restore\neach result goes back\nto its token's position"),
    )
    for y, tokens, counted, title in rows:
        axes.text(-3.6, y, title, fontsize=10, va="center")
        for x, token in enumerate(tokens):
            box = {"boxstyle": "round,pad=0.35", "fc": colours[clusters[token]], "ec": "#555555"}
            axes.text(x, y, words[token], ha="center", va="center", fontsize=11, bbox=box)
            number = f"{counted} 0" if x == 0 else str(x)
            axes.text(x, y + 0.33, number, ha="center", fontsize=7, color="#555555")
    for slot, token in enumerate(order):
        line = {"color": "#aaaaaa", "lw": 0.8, "zorder": 0}
        axes.plot([token, slot], [3.15, 2.35], **line)
        axes.plot([slot, token], [0.95, 0.55], **line)
    for lo, hi, query in ((1, 4, "Ann, position 7,"), (4, 7, "left, position 8,")):
        axes.plot([lo - 0.4, hi - 0.6], [1.47] * 2, color="#d00000", lw=3)
        note = f"{query}\nsees slots {lo} to {hi - 1}"
        axes.text(
            (lo + hi - 1) / 2, 1.38, note, color="#d00000", fontsize=8, ha="center", va="top"
        )
    axes.text(7.0, 1.38, "W = 3: the three latest\nof its own cluster", fontsize=8, va="top")
    axes.set_xlim(-3.7, 9.6)
    axes.set_ylim(-0.4, 3.95)
    axes.axis("off")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def who_sees_whom(path: Path) -> None:
    """Which keys each query sees, by kind, causal and in an encoder."""
    causal_kinds = ("full", "window(6)", "strided(6,stride=4)", "neural(6,clusters=6)")
    others = ("full", "window(3)", "strided(3,stride=4)", "neural(rule=chunk,clusters=6)")
    figure, panels = plt.subplots(2, 4, figsize=(9, 5))
    for row, causal in zip(panels, (True, False), strict=True):
        for axes, spec in zip(row, causal_kinds if causal else others, strict=True):
            torch.manual_seed(3)
            layer = MultiheadAttention(16, 2, kinds=spec, causal=causal).eval()
            kind = spec.partition("(")[0]
            seen = next(iter(tokens_seen(layer, torch.randn(1, 24, 16)).values()))[0, 0]
            axes.imshow(seen, cmap="Blues", vmin=0, vmax=1.4)
            axes.set_title(f"{kind}, {'causal' if causal else 'both sides'}", fontsize=10)
            axes.set_xticks([0, 8, 16, 23])
            axes.set_yticks([0, 8, 16, 23])
    panels[0][0].set_ylabel("query")
    panels[1][0].set_ylabel("query")
    panels[1][0].set_xlabel("key")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    matplotlib.use("Agg")
    windows_and_clusters(IMAGES / "windows-and-clusters.png")
    order_ranges_restore(IMAGES / "order-ranges-restore.png")
    who_sees_whom(IMAGES / "who-sees-whom.png")
