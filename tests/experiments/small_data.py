"""Little data for the grids of each kind, in the formats that their data have, and prepared."""

import gzip
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from classification import prepare as labelled
from examples.question_answering import distance
from openkp import prepare
from openkp.tests.web_pages import pages_with_headings, write_pages
from tests.cli.tasks import write_stories
from tests.corpora.commands import run, write, write_splits

WORDS = "the sea a boat wind rain and or big small near far red blue old new sails ends".split()


def sentence(words: int = 8) -> str:
    """At random, which each test begins anew."""
    return " ".join(random.choices(WORDS, k=words)).capitalize() + "."


def text(folder: Path, data: Path, *how: str) -> None:
    """Documents of sentences, as a language model has them."""
    documents = (" ".join(sentence() for _ in range(12)) for _ in range(6))
    write_splits(folder, "\n\n".join(documents) + "\n")
    assert run("prepare lm text", folder, data, *how) == 0


def bytes_of_text(folder: Path, data: Path) -> None:
    text(folder, data, "--bytes")


def sentences_of_text(folder: Path, data: Path) -> None:
    text(folder, data, "--sentencepiece 305 --sentences")


def translations(folder: Path, data: Path) -> None:
    pairs = "".join(f"{line}\t{line[::-1]}\n" for line in (sentence(4) for _ in range(60)))
    write(folder / "pairs.tsv", pairs)
    how = "--source-lang en --target-lang de --bpe-operations 310"
    assert run("prepare translation text", data, "--train", folder / "pairs.tsv", how) == 0


def scitail(folder: Path, data: Path) -> None:
    labels = ("entails", "neutral")
    lines = "".join(f"{sentence()}\t{sentence()}\t{labels[i % 2]}\n" for i in range(16))
    for split in ("train", "dev", "test"):
        write(folder / f"SciTailV1.1/tsv_format/scitail_1.0_{split}.tsv", lines)
    assert labelled.main(["scitail", str(data), "--source", str(folder)]) == 0


def quora(folder: Path, data: Path) -> None:
    lines = "".join(f"{i % 2}\t{sentence()}\t{sentence()}\t{i}\n" for i in range(16))
    for split in ("train", "dev", "test"):
        write(folder / f"{split}.tsv", lines)
    assert labelled.main(["quora", str(data), "--source", str(folder)]) == 0


def stories(folder: Path, data: Path) -> None:
    folder.mkdir()
    write_stories(path := folder / "qa1_train.txt", 16)
    words = ("--train", path, "--valid", path)
    assert run("prepare qa babi", data / "babi1", *words) == 0


def distances(folder: Path, data: Path) -> None:
    told = [" ".join(sentence(4) for _ in range(10)) for _ in range(60)]
    passages = "".join(f"{passage}\n" for passage in told)
    write(folder / "passages.txt", passages)
    words = ["make", folder / "made", "--passages", folder / "passages.txt", "--pieces", 335]
    words += ["--distances", 500, "--questions", 2, "--scale", 0.001]
    assert distance.main([*map(str, words)]) == 0
    model = folder / "made" / "sentencepiece.model"
    assert run("prepare qa text", folder / "made", data, "--sentencepiece-model", model) == 0


def pages(folder: Path, data: Path) -> None:
    folder.mkdir()
    path = write_pages(folder / "pages.jsonl", pages_with_headings(16))
    words = ("--train", path, "--valid", path)
    assert prepare.main([str(data / "openkp"), *map(str, words)]) == 0


def digits(folder: Path, data: Path) -> None:
    """Four files as MNIST's."""
    (data / "mnist").mkdir(parents=True)
    numbers = np.random.default_rng(1)
    for name, number in (("train", 60), ("t10k", 20)):
        images = numbers.integers(0, 256, (number, 4, 4), dtype=np.uint8)
        labels = numbers.integers(0, 10, number, dtype=np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            with gzip.open(data / "mnist" / f"{name}-{kind}-ubyte.gz", "wb") as file:
                file.write(head + array.tobytes())


#: by a grid's path in examples/: its row, what makes its data, options that make it smaller, and
#: which of its data sets
Case = tuple[str, Callable[[Path, Path], None], dict, list[str]]
CASES: dict[str, Case] = {
    "classification/table3": ("ClusterFormer", quora, {}, ["quora"]),
    "classification/table5": ("Y/Y", scitail, {}, ["scitail"]),
    "clustering/table6": ("neural", digits, {}, ["mnist-10"]),
    "etc/babi1": ("sentences", stories, {}, []),
    "etc/openkp/openkp": (
        "default",
        pages,
        {"arch": "etc_keyphrases_tiny", "lift": None, "update-freq": 1, "cpu": True},
        [],
    ),
    "etc/pretraining": (
        "sentences, hidden ones recognised",
        sentences_of_text,
        {"tokens-per-sample": 128},
        [],
    ),
    "language_model/grid_cf20": ("kmeans-64", bytes_of_text, {"tokens-per-sample": 256}, []),
    "question_answering/distance": ("kmeans-64", distances, {}, []),
    "translation/grid_ablation": (
        "window+neural to neural",
        translations,
        {"eval-bleu-args": '{"max_len_b": 5}'},
        [],
    ),
}
