"""Train three small language models at equal budgets, and see what clustered together.

    bash scripts/demo.sh [--out FOLDER]

dense    dense attention: each byte sees all bytes before it
windows  windows alone: each byte sees the 94 latest bytes per layer
default  ``clusterformer_lm_bytes`` as it is: each byte sees the 32 latest bytes, and before
         these the 31 latest of each of two clusters

All three have about the same number of parameters, and see the same batches of the same text:
Python's language reference by bytes, which every Python carries. ``fairseq-train`` trains them at
the same time, with one thread each, and then tests them on topics that were held out.
FOLDER gets ``comparison.png``, ``clusters.html``, ``clusters.png``, ``generated.txt``,
``results.json``, and for each model a folder with its checkpoint and logs. They appear when all is
done; the folder ``unfinished`` has what an interrupted run has left.
"""

import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import filelock

from fairseq_clusterformer.cli.common import Parser, whole_number
from fairseq_clusterformer.errors import UserError, bad_option
from scripts.demo.race import Runner, race, tokens_per_second
from scripts.demo.text import HELD_OUT, first_paragraphs, language_reference, prepare_reference
from scripts.experiments.plots import Line, Panel, draw
from scripts.experiments.provenance import ROOT, provenance

PROMPT = 'The "with" statement'
ROWS = 2  # contexts in an update
LENGTH = 400  # bytes to write
TEMPERATURE = 0.7
SHOWN = 2000  # bytes of the passage in the pictures, at most
MARK = ".demo"  # in a folder that the demo made
ALLOWED = "a new or empty folder, or one that the demo has made"

# What routes has 18,000 parameters; the others get wider feed-forward layers instead.
DEFAULT = {"arch": "clusterformer_lm_bytes", "criterion": "clusterformer_cross_entropy"}
MODELS = {
    "dense": {**DEFAULT, "attention": "full", "decoder-ffn-embed-dim": 304},
    "windows": {**DEFAULT, "attention": "window(94)", "decoder-ffn-embed-dim": 304},
    "default": DEFAULT,
}


def shared_options(updates: int, context: int) -> dict:
    """Options of ``fairseq-train`` for all models; each sees `context` bytes at once."""
    return {
        "task": "language_modeling",
        "tokens-per-sample": context,
        "sample-break-mode": "none",
        "batch-size": ROWS,
        "max-update": updates,
        "dropout": 0.0,
        "optimizer": "adam",
        "adam-betas": "(0.9, 0.98)",
        "lr": 4e-3,
        "lr-scheduler": "cosine",
        "warmup-updates": updates // 10,
        "clip-norm": 1.0,
        "seed": 1,
        "log-format": "json",
        "log-interval": max(1, updates // 50),
        "validate-interval": 1_000_000,  # once, at the end
        "no-epoch-checkpoints": True,
        "no-save-optimizer-state": True,
        "num-workers": 0,
        "cpu": True,  # also where there is a GPU: the models must have equal shares of the cores
    }


def run_demo(out: Path, updates: int, context: int) -> None:
    """The whole demo; see the module's docstring."""
    began = time.monotonic()
    with workspace(out) as work:
        texts = language_reference()
        train, valid = (len(texts[split].encode()) for split in ("train", "valid"))
        say(
            f"text: Python's language reference, {train:,} bytes to train on, {valid:,} held out "
            f"({', '.join(HELD_OUT)})"
        )
        data = prepare_reference(out)
        runners = [Runner(name, options) for name, options in MODELS.items()]
        say(
            f"fairseq-train, {len(runners)} models at the same time, one thread each: "
            f"{updates} updates of {ROWS} x {context:,} bytes"
        )
        shared = shared_options(updates, context)
        race(runners, shared, data=data, work=work, threads=1)
        speeds = tokens_per_second(runners, ROWS * context)
        verdict = compare(*runners)
        print(f"\n{table(runners, speeds)}\n\n{verdict}\n")
        picture(runners, work / "comparison.png", verdict)
        (work / "passage.txt").write_bytes(first_paragraphs(texts["valid"], SHOWN).encode())
        checkpoint = Path("default", "checkpoint_last.pt")
        write_and_draw(work / checkpoint, data, work, verdict)
        seconds = round(time.monotonic() - began)
        record = {
            **provenance("bash scripts/demo.sh", threads=1),
            "options": {"updates": updates, "context": context, "rows": ROWS},
            "models": [
                {
                    "name": runner.name,
                    "bits per byte": runner.bits_per_byte,
                    "tokens per second": round(speed),
                    "parameters": runner.parameters,
                    "peak memory MiB": round(runner.peak_memory),
                    "curve": [point[1:] for point in runner.progress],
                }
                for runner, speed in zip(runners, speeds, strict=True)
            ],
            "verdict": verdict,
            "seconds": seconds,
        }
        (work / "results.json").write_text(json.dumps(record, indent=1) + "\n")
        publish(work, out)
    say(f"{out}/comparison.png: how the three models learned")
    say(f"{out}/clusters.html and clusters.png: what clusters together in the default")
    say(
        f"for your own text: clusterformer draw --checkpoint {out / checkpoint} --data {data} "
        "--text FILE --out FOLDER"
    )
    say(f"done in {seconds} s")


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def table(runners: Sequence[Runner], speeds: Sequence[float]) -> str:
    """What was measured of each model."""
    heads = ("held-out bits per byte", "tokens per second", "parameters", "peak memory")
    lines = [f"{'':8}" + "".join(f"   {head}" for head in heads)]
    for runner, speed in zip(runners, speeds, strict=True):
        cells = (
            f"{runner.bits_per_byte:.3f}",
            f"{speed:,.0f}",
            f"{runner.parameters:,}",
            f"{runner.peak_memory:,.0f} MiB",
        )
        aligned = (f"{cell:>{len(head) + 3}}" for cell, head in zip(cells, heads, strict=True))
        lines.append(f"{runner.name:8}" + "".join(aligned))
    return "\n".join(lines)


def compare(dense: Runner, windows: Runner, default: Runner) -> str:
    """What the bits of the three models say, in plain sentences."""
    changes = []
    for other, name in ((windows, "windows alone"), (dense, "dense attention")):
        gain = other.bits_per_byte - default.bits_per_byte
        than = f"{abs(gain):.3f} {'fewer' if gain > 0 else 'more'} bits per byte than {name}"
        changes.append(f"The default needs {than}.")
    return (
        f"{' '.join(changes)} This is one seed after minutes of training: differences of about "
        "0.02 mean nothing. Longer runs are in examples/language_model."
    )


def picture(runners: Sequence[Runner], path: Path, verdict: str) -> None:
    """Draw what each model learned, by updates and by minutes."""
    begin = min(runner.progress[0][0] for runner in runners)
    panels = []
    for label, x in (
        ("updates", lambda time, update: update),
        ("minutes, all three at the same time", lambda time, update: (time - begin) / 60),
    ):
        lines = [
            Line(
                runner.name,
                {x(time, update): [bits] for time, update, bits in runner.progress},
                label=f"{runner.name}: {runner.bits_per_byte:.3f} held out",
            )
            for runner in runners
        ]
        panels.append(Panel(lines, label, "bits per byte of the training text"))
    first, second = verdict.split(". ")[:2]
    draw(panels, path, f"{first}.\n{second}.")


def write_and_draw(checkpoint: Path, data: Path, work: Path, verdict: str) -> None:
    """Let the default write, and draw its clusters."""
    import fairseq_clusterformer
    from fairseq_clusterformer.visual.figure import draw_passage, save
    from fairseq_clusterformer.visual.language_model import read_clusters
    from fairseq_clusterformer.visual.pages import cluster_page

    model = fairseq_clusterformer.load(checkpoint, data=data, device="cpu")
    say(f"the default writes, one byte per step, after {PROMPT!r}:\n")
    text = ""
    for shown in model.generate(PROMPT, LENGTH, temperature=TEMPERATURE, seed=1, stream=True):
        # an unprintable character could command the terminal
        shown = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in shown)
        text += shown
        print(shown, end="", flush=True)
    print("\n", flush=True)
    (work / "generated.txt").write_text(text + "\n", encoding="utf-8")
    clusters = read_clusters(model.loaded, work / "passage.txt")
    scores = f"The model is the demo's default. {verdict}"
    clusters = replace(clusters, note=f"{clusters.note} {scores}".strip())
    layer = clusters.most_spread()
    save(draw_passage(clusters, layer), work / "clusters.png")
    page = cluster_page(clusters, layer)
    (work / "clusters.html").write_text(page, encoding="utf-8")


@contextmanager
def workspace(out: Path) -> Iterator[Path]:
    """Own the demo's folder, and give an empty one in it for what is not finished.

    Raises:
        UserError: it cannot be made, it has something else in it, or another demo works in it.
    """
    try:
        if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
            raise bad_option("--out", out, ALLOWED, "has something else in it")
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).touch()
        with filelock.FileLock(out / f"{MARK}.lock", blocking=False):
            work = out / "unfinished"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            yield work
            shutil.rmtree(work)
    except filelock.Timeout:
        problem = "another demo works in it"
        raise bad_option("--out", out, "another folder", problem) from None
    except OSError as error:
        raise bad_option("--out", out, ALLOWED, error.strerror) from None


def publish(work: Path, out: Path) -> None:
    """Put finished results in place of older ones, ``results.json`` last."""
    (out / "results.json").unlink(missing_ok=True)
    for path in sorted(work.iterdir(), key=lambda p: p.name == "results.json"):
        target = out / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)


def main(arguments: Sequence[str]) -> int:
    """Run the demo; a user's mistake is one line on stderr and status 1."""
    parser = Parser(prog="demo", description=__doc__)
    for name, default, what in (
        ("--updates", 400, "of each model"),
        ("--context", 1024, "bytes that a model sees at once"),
    ):
        text = f"{what} (default: {default})"
        parser.add_argument(name, type=whole_number, default=default, metavar="N", help=text)
    text = "folder for the results (default: demo/ in the repository)"
    parser.add_argument("--out", type=Path, default=ROOT / "demo", metavar="FOLDER", help=text)
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
