"""Train three small language models of long contexts for the same time, and compare them.

    bash scripts/demo.sh [--minutes N] [--layers N] [--out FOLDER]

dense     dense attention: each byte sees all bytes before it
windows   windows alone: each byte sees the 256 latest bytes per layer
clusters  each byte sees the 128 latest bytes, and before these the 63 latest of each of its two
          nearest clusters, which attention teaches (kind ``taught``)

All three have about as many parameters, and read contexts of 8,192 bytes of the source files of
Python's library, which every Python carries. ``fairseq-train`` trains them at the same time, with
one thread each. A short trial measures their speeds, by which their learning rates fall; then the
clock stops all three. All are tested on files that were held out.
FOLDER gets ``comparison.png``, ``results.json``, and for each model a folder with its checkpoint
and logs; and ``clusters.html`` and ``generated.txt``, if the model has learned enough for them.
They appear when all is done, in place of those of an earlier demo.
"""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, number
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import whole_file
from fairseq_clusterformer.ranges import Range
from scripts.demo.race import Runner, alive, race, tokens_per_second
from scripts.demo.text import HELD_OUT, first_lines, library, prepare_library
from scripts.experiments.plots import Line, Panel, draw
from scripts.experiments.results import ROOT, provenance

TRIAL = 20  # seconds that measure the models' speeds, at most; a sixth of a shorter race
ENOUGH = 100  # updates after which clusters were ahead of windows, at 8,192 bytes
BLOCKS = 8  # contexts that each model is tested on
GIVEN, TOLD = 3000, 150  # bytes that the model goes on from, and the last ones, which are printed
LENGTH = 300  # bytes to write
TEMPERATURE = 0.7
SHOWN = 2000  # bytes of the passage in the pictures, at most
MANY = 1_000_000  # updates; the clock stops a race
LAYERS = 3  # of each model
READABLE = 3.0  # bits per byte, above which nothing that a model writes can be read

# What routes has 48,000 parameters; the others get wider feed-forward layers instead.
MODELS = {
    "dense": {"attention": "full", "decoder-ffn-embed-dim": 572},
    "windows": {"attention": "window(256)", "decoder-ffn-embed-dim": 572},
    "clusters": {
        "attention": "taught(window=64,clusters=64,probes=2,gap=128,scouts=16,routes_by=heads)",
        "decoder-ffn-embed-dim": 512,
    },
}


def shared_options(context: int, layers: int) -> dict:
    """Options of ``fairseq-train`` for all models; each sees `context` bytes at once."""
    chosen = {"task": "language_modeling", "arch": "clusterformer_lm_bytes", "dropout": 0.0}
    chosen |= {"criterion": "clusterformer_cross_entropy", "decoder-embed-dim": 128, "seed": 1}
    chosen |= {"tokens-per-sample": context, "sample-break-mode": "none"}
    chosen |= {"batch-size": 1, "required-batch-size-multiple": 1, "num-workers": 0}
    chosen |= {"decoder-layers": layers, "max-update": MANY}
    chosen |= {"optimizer": "adam", "adam-betas": "(0.9, 0.98)", "clip-norm": 1.0}
    chosen |= {"lr": 4e-3, "lr-scheduler": "polynomial_decay"}
    chosen |= {"validate-interval": 1_000_000, "max-valid-steps": BLOCKS}  # once, at the end
    chosen |= {"no-epoch-checkpoints": True, "no-save-optimizer-state": True, "log-format": "json"}
    # also where there is a GPU: the models must have equal shares of the cores
    return chosen | {"cpu": True}


def of_updates(updates: int) -> dict:
    """Options of a training in which about so many updates are expected; if more are made, they
    learn at the last rate."""
    rates = {"total-num-update": updates, "warmup-updates": min(20, updates // 3)}
    return rates | {"end-learning-rate": 8e-4}


def run_demo(out: Path, minutes: float, context: int, layers: int) -> None:
    """The whole demo; see the module's docstring. Raises UserError: the folder cannot be made, has
    something else in it, or another demo works in it."""
    began = time.monotonic()
    with whole_file("--out", out, folder=True, force=True) as work:
        too_early = fill(work, minutes, context, layers, began)
    say(f"{out}/comparison.png: how the three models learned")
    if not too_early:
        say(f"{out}/clusters.html: what clusters together")
    checkpoint = f"--checkpoint {out}/clusters/checkpoint_last.pt --data {out}/data"
    say(f"for your own text: clusterformer draw {checkpoint} --text FILE --out FOLDER")
    say(f"done in {time.monotonic() - began:.0f} s")


def fill(work: Path, minutes: float, context: int, layers: int, began: float) -> str:
    """Make all results in a folder; returns why there is no text and no picture of clusters."""
    train, valid = (len(text) for text in library().values())
    say(
        f"text: Python's library, {train:,} bytes to train on, {valid:,} bytes of {HELD_OUT} "
        "files held out"
    )
    with alive(lambda: "preparing the text"):
        data = prepare_library(work / "data")
    shared, seconds = shared_options(context, layers), minutes * 60
    where = {"data": data, "work": work, "threads": 1}
    say("a short trial measures how fast the models are")
    trial = [Runner(name, {**of_updates(MANY), **own}) for name, own in MODELS.items()]
    given = {**shared, "no-save": True, "disable-validation": True}
    race(trial, given, seconds=min(TRIAL, seconds / 6), **where)
    speeds = tokens_per_second(trial, context)
    updates = [max(3, round(seconds * speed / context)) for speed in speeds]
    say(
        f"fairseq-train, {len(MODELS)} models at the same time for {minutes:g} minutes, "
        f"one thread each, contexts of {context:,} bytes"
    )
    expected = zip(MODELS.items(), updates, strict=True)
    runners = [Runner(name, {**of_updates(number), **own}) for (name, own), number in expected]
    race(runners, shared, seconds=seconds, **where)
    speeds = tokens_per_second(runners, context)
    with alive(lambda: "measuring names that stood last far back"):
        far = [far_names(work / runner.name, data, context) for runner in runners]
    verdict = compare(runners, far)
    print(f"\n{table(runners, far, speeds)}\n\n{verdict}\n")
    picture(runners, work / "comparison.png", verdict)
    (work / "passage.txt").write_bytes(first_lines(library()["valid"], SHOWN))
    if too_early := unlearned(runners[-1]):
        say(f"no text and no picture of clusters: {too_early}")
    else:
        write_and_draw(work / "clusters" / "checkpoint_last.pt", data, work, verdict)
    models = [
        {
            "name": runner.name,
            "updates": runner.updates,
            "bits per byte": runner.bits_per_byte,
            "bits on far names": bits,
            "tokens per second": round(speed),
            "parameters": runner.parameters,
            "peak memory MiB": round(runner.peak_memory),
            "curve": [point[1:] for point in runner.progress],
        }
        for runner, bits, speed in zip(runners, far, speeds, strict=True)
    ]
    record = provenance("bash scripts/demo.sh", threads=1)
    record["options"] = {"minutes": minutes, "context": context, "layers": layers}
    record |= {"models": models, "verdict": verdict, "seconds": round(time.monotonic() - began)}
    (work / "results.json").write_text(json.dumps(record, indent=1) + "\n")
    return too_early


def far_names(folder: Path, data: Path, context: int) -> float | None:
    """Bits per letter of rare names that stood last an eighth of the context back or more; None:
    there is none."""
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.use import perplexity
    from fairseq_clusterformer.use.language_model import LanguageModel

    loaded = load_checkpoint(folder / "checkpoint_last.pt", data=data)
    language = LanguageModel(loaded, device="cpu")
    training = (target for _, target in perplexity.split_blocks(loaded, "train"))
    breakdown = perplexity.Breakdown(language.coding, training)
    blocks = perplexity.split_blocks(loaded, "valid")
    perplexity.compare(language.model, blocks, stepwise=False, most=BLOCKS, breakdown=breakdown)
    buckets = breakdown.result()["bits on repeats by distance"]
    far = [bucket for bucket in buckets if bucket["from"] >= context // 8]
    letters = sum(bucket["tokens"] for bucket in far)
    return sum(b["tokens"] * b["bits"] for b in far) / letters if letters else None


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def table(runners: Sequence[Runner], far: Sequence[float | None], speeds: Sequence[float]) -> str:
    """What was measured of each model."""
    row = "{:10}{:>16}{:>25}{:>10}{:>10}{:>13}".format
    heads = ("bits per byte", "on names from far back", "updates", "bytes/s", "parameters")
    lines = [row("held out:", *heads)]
    for runner, bits, speed in zip(runners, far, speeds, strict=True):
        score, shown = f"{runner.bits_per_byte:.3f}", "-" if bits is None else f"{bits:.2f}"
        numbers = (runner.updates, round(speed), runner.parameters)
        lines.append(row(runner.name, score, shown, *(f"{number:,}" for number in numbers)))
    return "\n".join(lines)


def compare(runners: Sequence[Runner], far: Sequence[float | None]) -> str:
    """What the bits of the three models say, in plain sentences."""
    dense, windows, clusters = (runner.bits_per_byte for runner in runners)
    changes = []
    for other, name in ((dense, "dense attention"), (windows, "windows alone")):
        gain = other - clusters
        changes.append(f"{abs(gain):.2f} {'fewer' if gain > 0 else 'more'} than {name}")
    said = [f"In equal time, clusters need {clusters:.2f} bits per byte: {', '.join(changes)}."]
    if None not in far:
        of_far = "{2:.2f}, dense {0:.2f}, windows {1:.2f}.".format(*far)
        said.append(f"On names that stood last far back: {of_far}")
    if runners[-1].updates < ENOUGH and clusters > windows:
        said.append(f"That is after {runners[-1].updates} updates; clusters need about {ENOUGH}:")
        said.append("give more --minutes or fewer --layers.")
    said.append("One seed, after minutes of training: differences of 0.03 mean nothing.")
    return " ".join(said)


def unlearned(runner: Runner) -> str:
    """Why what a model writes and draws is not worth a look; empty: it is."""
    if runner.updates < ENOUGH:
        return f"{runner.updates} updates are too few, about {ENOUGH} are needed"
    if runner.bits_per_byte > READABLE:
        return f"{runner.bits_per_byte:.2f} bits per byte cannot be read"
    return ""


def picture(runners: Sequence[Runner], path: Path, verdict: str) -> None:
    """Draw what each model learned in the same minutes."""
    begin, lines = min(runner.progress[0][0] for runner in runners), []
    for runner in runners:
        points = {(time - begin) / 60: [bits] for time, _, bits in runner.progress}
        label = f"{runner.name}: {runner.bits_per_byte:.2f} held out"
        lines.append(Line(runner.name, points, label))
    label = "minutes, all three at the same time"
    panel = Panel(lines, label, "bits per byte of the training text")
    draw([panel], path, verdict.replace(". ", ".\n"))


def write_and_draw(checkpoint: Path, data: Path, work: Path, verdict: str) -> None:
    """Let the model with clusters write, and draw them."""
    import fairseq_clusterformer
    from fairseq_clusterformer.visual.pages import cluster_page, read_clusters

    model = fairseq_clusterformer.load(checkpoint, data=data, device="cpu")
    valid = library()["valid"]
    given = first_lines(valid[len(valid) // 6 :], GIVEN).decode(errors="replace")
    say(f"the model with clusters goes on from {len(given):,} bytes of a held-out file:\n")
    text = given[-TOLD:]
    print(text, end="|", flush=True)
    written = model.generate(given, LENGTH, temperature=TEMPERATURE, seed=1, stream=True)
    for shown in islice(written, 1, None):  # behind what was given
        # an unprintable character could command the terminal
        shown = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in shown)
        text += shown
        print(shown, end="", flush=True)
    print("\n", flush=True)
    (work / "generated.txt").write_text(text + "\n", encoding="utf-8")
    with alive(lambda: "drawing clusters"):
        clusters = read_clusters(model.loaded, work / "passage.txt")
    clusters = replace(clusters, note=f"{clusters.note} {verdict}".strip())
    (work / "clusters.html").write_text(cluster_page(clusters), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Run the demo; a user's mistake is one line on stderr and status 1."""
    parser = Parser(prog="demo", description=__doc__)
    minutes = number(Range(above=0))
    parser.add("--minutes X", "that the models train", type=minutes, default=4.0)
    parser.add("--context N", "bytes that a model sees at once", default=8192)
    parser.add("--layers N", "of each model", default=LAYERS)
    parser.add("--out FOLDER", "for the results", default=ROOT / "demo")
    options = parser.parse_args(arguments)
    try:
        run_demo(**vars(options))
    except UserError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; run it again to train anew", file=sys.stderr)
        return 130  # the shell's status for a run ended by SIGINT
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.disable(logging.INFO)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
