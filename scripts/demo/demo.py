"""Train a clustered and a dense language model side by side, and see what clustered together.

    bash scripts/demo.sh [--out FOLDER]

Both models have the same number of parameters, and see the same batches of the same text: Python's
language reference by bytes, which every Python carries. They train at the same time with
``fairseq-train``, each with one thread of its own, so that their speeds can be compared; then
``fairseq-eval-lm`` tests them on topics that were held out. FOLDER gets ``clusters.html``,
``clusters.png``, ``generated.txt``, ``results.json``, and a folder with checkpoint and logs for
each model. They appear when all is done; ``unfinished`` holds what an interrupted run has left.
"""

import argparse
import fcntl
import json
import logging
import os
import platform
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fairseq_clusterformer.errors import UserError
from scripts.demo.race import Runner, race, tokens_per_second
from scripts.demo.text import HELD_OUT, first_paragraphs, language_reference, prepare_reference

ROOT = Path(__file__).resolve().parents[2]
PROMPT = 'The "with" statement'
LENGTH = 400  # bytes to write
TEMPERATURE = 0.7
SHOWN = 2000  # bytes of the passage in the pictures, at most
MARK = ".demo"  # in a folder that is the demo's to fill

# A dense model has no W_c (64 x 64) and no centroids (8 x 64) in its last layer: 12 more hidden
# units of 2 x 64 + 1 parameters in each of the three layers make up for them.
CLUSTERED = {
    "arch": "clusterformer_lm_tiny",
    "attention": "window*2,window+neural",  # the paper's clusters
    "criterion": "clusterformer_cross_entropy",
}
DENSE = {
    "arch": "transformer_lm",
    "criterion": "cross_entropy",
    "decoder-layers": 3,
    "decoder-embed-dim": 64,
    "decoder-input-dim": 64,
    "decoder-output-dim": 64,
    "decoder-ffn-embed-dim": 256 + 12,
    "decoder-attention-heads": 4,
    "decoder-normalize-before": True,
    "share-decoder-input-output-embed": True,
    "activation-fn": "gelu",
}


def shared_options(updates: int, context: int, rows: int) -> dict:
    """Options of ``fairseq-train`` for both models; an update sees `rows` of `context` bytes."""
    return {
        "task": "language_modeling",
        "tokens-per-sample": context,
        "sample-break-mode": "none",
        "batch-size": rows,
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
        "log-interval": max(1, updates // 100),
        "disable-validation": True,
        "no-epoch-checkpoints": True,
        "no-save-optimizer-state": True,
        "num-workers": 0,
        "cpu": True,  # also beside a GPU: two models with a core each are what is compared
    }


def run_demo(out: Path, updates: int, context: int, rows: int, threads: int) -> None:
    """The whole demo; see the module's docstring."""
    began = time.monotonic()
    with workspace(out) as work:
        texts = language_reference()
        size = {split: len(text.encode()) for split, text in texts.items()}
        say(
            f"text: Python's language reference, {size['train']:,} bytes to train on, "
            f"{size['valid']:,} held out ({', '.join(HELD_OUT)})"
        )
        data = prepare_reference(out)
        clustered = Runner("clusterformer_lm", CLUSTERED)
        runners = [clustered, Runner("transformer_lm", DENSE)]
        shared = shared_options(updates, context, rows)
        say(
            f"fairseq-train, both models at the same time, {threads} thread(s) each: "
            f"{updates} updates of {rows} x {context:,} bytes"
        )
        race(runners, shared, data=data, work=work, threads=threads)
        speeds = tokens_per_second(runners, rows * context)
        comparison = compare(runners, speeds)
        print(f"\n{comparison}\n")

        checkpoint = work / clustered.name / "checkpoint_last.pt"
        say(f"{clustered.name} writes, one byte a step, after {PROMPT!r}:\n")
        (work / "generated.txt").write_text(write_text(checkpoint, data), encoding="utf-8")
        (work / "passage.txt").write_bytes(first_paragraphs(texts["valid"], SHOWN).encode())

        from fairseq_clusterformer.cli.draw import draw

        label = draw(checkpoint, work / "passage.txt", work, data=data)
        record = {
            "options": {"out": str(out), "updates": updates, "context": context, "rows": rows},
            "text bytes": size,
            "models": [
                {
                    "name": runner.name,
                    "bits per byte": runner.bits_per_byte,
                    "tokens per second": round(speed),
                    "parameters": runner.parameters,
                    "peak memory MiB": round(runner.peak_memory),
                }
                for runner, speed in zip(runners, speeds, strict=True)
            ],
            "threads of each": threads,
            "seconds": round(time.monotonic() - began),
            "processor seconds": round(processor_seconds()),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
        }
        (work / "results.json").write_text(json.dumps(record, indent=1) + "\n")
        publish(work, out)
    again = (
        f"python scripts/cluster_picture.py --checkpoint {out}/{clustered.name}/{checkpoint.name}"
    )
    say(f"{out}/clusters.html (all layers) and {out}/clusters.png ({label})")
    say(f"for a text of your own: {again} --data {data} --text FILE --out FOLDER")
    say(f"done in {record['seconds']} s ({record['processor seconds']} s of processor time)")


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def processor_seconds() -> float:
    """User and system time of this process and of all that it waited for."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def compare(runners: list[Runner], speeds: list[float]) -> str:
    """Table of both models, and what it says in a sentence."""
    heads = ("bits per byte", "tokens per second", "parameters", "peak memory")
    lines = [f"{'':16}" + "".join(f"   {head}" for head in heads)]
    for runner, speed in zip(runners, speeds, strict=True):
        cells = (
            f"{runner.bits_per_byte:.3f}",
            f"{speed:,.0f}",
            f"{runner.parameters:,}",
            f"{runner.peak_memory:,.0f} MiB",
        )
        aligned = (f"{cell:>{len(head) + 3}}" for cell, head in zip(cells, heads, strict=True))
        lines.append(f"{runner.name:16}" + "".join(aligned))
    (ours, dense), ratio = runners, speeds[0] / speeds[1]
    difference = ours.bits_per_byte - dense.bits_per_byte
    bits = f"{abs(difference):.3f} bits per byte {'more' if difference > 0 else 'fewer'}"
    lines.append("")
    lines.append(
        f"{ours.name} trained {ratio:.2f} times as fast as {dense.name} while both trained, and "
        f"needs {bits} on held-out text."
    )
    lines.append(
        "Both are far from done after minutes, and full attention takes longer to find what "
        "stands just before a byte: longer runs are in examples/language_model."
    )
    return "\n".join(lines)


def write_text(checkpoint: Path, data: Path) -> str:
    """Let a checkpoint continue the prompt, printing each character when it is there."""
    from fairseq_clusterformer.inference.language_model import LanguageModel
    from fairseq_clusterformer.inference.load import load_checkpoint

    model = LanguageModel(load_checkpoint(checkpoint, data=data), device="cpu")
    text = ""
    for shown in model.generate(PROMPT, LENGTH, temperature=TEMPERATURE, seed=1, stream=True):
        # an unprintable character could command the terminal
        shown = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in shown)
        text += shown
        print(shown, end="", flush=True)
    print("\n", flush=True)
    return text + "\n"


@contextmanager
def workspace(out: Path) -> Iterator[Path]:
    """Own the demo's folder, and give an empty one in it for what is not finished.

    Raises:
        UserError: if it cannot be made, holds something else, or another demo is at work in it.
    """
    allowed = "allowed is a new or empty folder, or one that the demo has made"
    try:
        if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
            raise UserError(f"--out {out}: holds something else; {allowed}")
        out.mkdir(parents=True, exist_ok=True)
        with open(out / MARK, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"--out {out}: another demo is at work in it; allowed is another folder"
                ) from None
            work = out / "unfinished"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            yield work
            shutil.rmtree(work)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}; {allowed}") from None


def publish(work: Path, out: Path) -> None:
    """Put finished results in place of older ones, ``results.json`` last."""
    (out / "results.json").unlink(missing_ok=True)
    for path in sorted(work.iterdir(), key=lambda p: p.name == "results.json"):
        target = out / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Type of an option for argparse."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"is {text!r}; allowed: a whole number from {least} to {most}"
            )
        return int(text)

    return convert


def main(arguments: Sequence[str]) -> int:
    """Run the demo; a user's mistake is one line on stderr and status 1."""
    parser = argparse.ArgumentParser(
        prog="demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, default, most, what in (
        ("--updates", 1100, 100_000, "of each model"),
        ("--context", 1024, 8192, "bytes that a model sees at once"),
        ("--rows", 2, 64, "contexts in an update"),
        ("--threads", 1, 64, "of each of the two models"),
    ):
        least = {"--updates": 4, "--context": 16}.get(name, 1)
        kind, text = whole_number(least, most), f"{what} (default: %(default)s)"
        parser.add_argument(name, type=kind, default=default, metavar="N", help=text)
    text = "folder for the results (default: demo/ in the repository)"
    parser.add_argument("--out", type=Path, default=ROOT / "demo", metavar="FOLDER", help=text)
    options = parser.parse_args(arguments)
    try:
        run_demo(**vars(options))
    except UserError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; run it again to start the training anew", file=sys.stderr)
        return 130  # the shell's status for a run ended by SIGINT
    return 0


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    logging.disable(logging.INFO)
    sys.exit(main(sys.argv[1:]))
