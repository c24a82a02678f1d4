"""Writes what is generated in docs/: command-line.md, the tables of options.md, and two pictures.

python -m scripts.docs            write all of it
python -m scripts.docs --check    say what is not current, and end with status 1

A table of options.md follows a line ``<!-- options: ... -->``, which names its dataclasses.
"""

import argparse
import contextlib
import importlib
import io
import os
import re
import sys
from dataclasses import MISSING, fields
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
WIDTH = 100  # characters in a line of a help text
_TABLE = re.compile(r"(<!-- options: (.+?) -->\n)(?:\|.*\n)*")


def help_texts() -> dict[str, str]:
    """What each command of `clusterformer` prints for ``--help``, those of its corpora too."""
    from fairseq_clusterformer.cli.main import COMMANDS

    return {name: _help(name.split()) for name in COMMANDS}


def _help(words: list[str]) -> str:
    from fairseq_clusterformer.cli.main import main

    said = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
    return said.getvalue().rstrip()


def command_line() -> str:
    """docs/command-line.md."""
    parts = [
        "# Command line\n\n`python -m scripts.docs` writes this page from the commands' own "
        "`--help`. `python -m fairseq_clusterformer` is the same as `clusterformer`. "
        "The exit status is 0 for success, 1 for a mistake in what was given, "
        "2 for a mistake in the command line.\n"
    ]
    for name, text in help_texts().items():
        parts.append(f"\n## clusterformer {name}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def option_table(owners: list[str]) -> str:
    """The options that these dataclasses have, and earlier ones of the list do not.

    Args:
        owners: ``module:Class`` below fairseq_clusterformer; one that begins with ``-`` only
            takes options away.
    """
    rows, known = ["| option | default | meaning |", "| --- | --- | --- |"], set()
    for owner in owners:
        module, name = owner.removeprefix("-").split(":")
        path = module if module.startswith("fairseq.") else f"fairseq_clusterformer.{module}"
        for field in fields(getattr(importlib.import_module(path), name)):
            if field.name.startswith("_") or field.name in known:
                continue
            known.add(field.name)
            text = field.metadata.get("help", "").replace("|", "\\|").replace("<", "&lt;")
            if not owner.startswith("-") and text:
                option = "--" + field.name.replace("_", "-")
                rows.append(f"| `{option}` | {_shown(field)} | {text} |")
    return "\n".join(rows) + "\n"


def _shown(field) -> str:
    default = field.default if field.default is not MISSING else field.default_factory()
    if default is False:
        return "off"
    return "none" if default in (None, "", []) else f"`{default}`"


def options(page: str) -> str:
    """docs/options.md with today's tables."""
    import fairseq_clusterformer.plugin  # noqa: F401  registers all dataclasses

    return _TABLE.sub(lambda found: found[1] + option_table(found[2].split()), page)


def draw(folder: Path) -> None:
    """The two pictures of attention-kinds.md."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    _draw_steps(plt, folder / "order-ranges-restore.png")
    _draw_seen(plt, folder / "who-sees-whom.png")


def _draw_steps(plt, path: Path) -> None:
    words = "Ann met Bob . Bob sang . Ann left .".split()
    clusters = [0, 1, 0, 2, 0, 1, 2, 0, 1, 2]
    order = sorted(range(len(words)), key=lambda token: (clusters[token], token))
    colours = ("#8ecae6", "#ffb703", "#b7e4c7")
    figure, axes = plt.subplots(figsize=(10, 4.4))
    numbers = list(range(len(words)))
    rows = (
        (3.4, numbers, "position", "the text; a token's\ncolour is its cluster"),
        (1.8, order, "slot", "1. order\nby cluster, then position\n\n2. ranges\nof slots (two are shown)"),
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
        axes.text((lo + hi - 1) / 2, 1.38, note, color="#d00000", fontsize=8, ha="center", va="top")
    axes.text(7.0, 1.38, "W = 3: the three latest\nof its own cluster", fontsize=8, va="top")
    axes.set_xlim(-3.7, 9.6)
    axes.set_ylim(-0.4, 3.95)
    axes.axis("off")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def _draw_seen(plt, path: Path) -> None:
    import torch

    from fairseq_clusterformer.attention.inspect import tokens_seen
    from fairseq_clusterformer.attention import AttentionConfig, MultiheadAttention

    kinds = {"full": {}, "window": {}, "strided": {"stride": 4}, "neural": {"num_clusters": 6}}
    figure, panels = plt.subplots(2, 4, figsize=(9, 5))
    for row, causal in zip(panels, (True, False), strict=True):
        for axes, (kind, more) in zip(row, kinds.items(), strict=True):
            rule = "recent" if causal else "chunk"
            config = AttentionConfig(window=6 if causal else 3, cluster_rule=rule, **more)
            torch.manual_seed(3)
            layer = MultiheadAttention(16, 2, kinds=(kind,), config=config, causal=causal).eval()
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; compare")
    check = parser.parse_args().check
    page = DOCS / "options.md"
    wanted = {DOCS / "command-line.md": command_line(), page: options(page.read_text())}
    stale = [p for p, text in wanted.items() if not p.is_file() or p.read_text() != text]
    for path in stale:
        print(f"{path.name} is not current" if check else f"writing {path.name}")
        if not check:
            path.write_text(wanted[path])
    if not check:
        draw(DOCS / "images")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
