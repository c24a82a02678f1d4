"""Train readers that differ in one thing, and tell how often they are right at each distance.

    python scripts/distance_task.py run GRID.yaml --data DATA --out RESULTS
    python scripts/distance_task.py run GRID.yaml --out RESULTS --table --plot distance.png

Runs that have a result are skipped. A run that names another one with ``from`` starts from its
weights, which ``--keep`` holds: what a run's kind of attention has of its own begins anew.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from scripts.experiments.grid import groups, make_parser, run_grid, table
from scripts.experiments.readers import run_folder, train

EM = "EM at "


def train_and_test(name: str, grid: dict, args: argparse.Namespace) -> dict:
    """One run of the grid, from its start to its exact match by distance."""
    with run_folder(name, args) as folder:
        result = train(name, grid, args, args.data, folder)
        scores = exact_match(folder / "checkpoint_last.pt", args.data)
    return {**result, **{f"{EM}{distance}": score for distance, score in scores.items()}}


def exact_match(checkpoint: Path, data: Path, split: str = "test") -> dict[int, float]:
    """Percent of the questions that are answered as SQuAD asks, by the distance in their ids."""

    import torch
    from fairseq import checkpoint_utils

    import fairseq_clusterformer.plugin  # noqa: F401
    from fairseq_clusterformer.answers import ranked_answers
    from fairseq_clusterformer.metrics.squad import evaluate_v2

    overrides = {"data": str(data), "max_positions_inference": 0}
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)
    model.eval()
    dataset = task.load_dataset(split)
    right: dict[int, list[float]] = defaultdict(list)
    with torch.no_grad():
        for number in range(len(dataset)):
            sample = dataset.collater([dataset[number]])
            logits, _ = model(**sample["net_input"])
            (answers,) = ranked_answers(logits, [dataset.data.document(number)])
            texts = dataset.data.texts(number)
            score = evaluate_v2({0: texts["texts"]}, {0: answers.text})["exact"]
            right[int(texts["id"].split("-")[0])].append(score)
    return {distance: sum(of) / len(of) for distance, of in sorted(right.items())}


def draw(grid: dict, out: Path, picture: Path) -> None:
    """Exact match by distance, a line for each kind, its seeds' mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), dpi=150, layout="constrained")
    distances: set[int] = set()
    for number, (name, results) in enumerate(groups(grid, out).items()):
        points = defaultdict(list)
        for result in results:
            for key, value in result.items():
                if key.startswith(EM):
                    points[int(key.removeprefix(EM))].append(value)
        distances |= points.keys()
        means = [sum(points[d]) / len(points[d]) for d in sorted(points)]
        style = {"color": f"C{number}", "marker": "osv^D*Px"[number % 8], "linewidth": 1.2}
        axes.plot(sorted(points), means, label=name, **style)
    if chance := grid.get("chance"):
        axes.axhline(chance, color="grey", linewidth=1, linestyle=":", label="chance")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(distances), [f"{d:,}" for d in sorted(distances)])
    axes.set_ylim(0, 100)
    axes.set_xlabel("tokens between the two facts")
    axes.set_ylabel("exact match, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    partial = picture.with_name("." + picture.name)
    figure.savefig(partial, format=picture.suffix[1:])
    partial.replace(picture)


def main(arguments: Sequence[str]) -> int:
    """Run what the grid asks for; print its table."""
    args = make_parser(__doc__).parse_args(arguments)
    grid = run_grid(
        args, train_and_test, dictionary="dict.txt", scores=lambda key: key.startswith(EM)
    )
    if args.plot:
        draw(grid, args.out, args.plot)
    keys = {k for results in groups(grid, args.out).values() for r in results for k in r}
    columns = sorted((k for k in keys if k.startswith(EM)), key=lambda k: int(k[len(EM) :]))
    print(
        table(
            grid,
            args.out,
            [(key, 0) for key in ("parameters", "updates", "seconds")]
            + [(key, 1) for key in columns],
        )
    )
    return 0
