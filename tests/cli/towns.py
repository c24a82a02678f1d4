"""A reader of words that has learned who rules which town, and what it learned from."""

import json
import os
import random
from pathlib import Path

import pytest
from filelock import FileLock

import xlqa  # noqa: F401  the plug-in of the reader
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.documents.read import Reader
from fairseq_clusterformer.documents.sources import text_source
from tests.cli.in_process import HERE, train

COMMON = (
    "--task clusterformer_qa --criterion clusterformer_qa --word-dim 8 --subword-dim 12"
    " --letter-dim 4 --letter-filters 4 --batch-size 4 --max-update 6 --optimizer adam --lr 0.003"
    f" --clip-norm 1 --seed 1 {HERE}"
)
BIDAF = f"{COMMON} --arch bidaf_reader --encoder-embed-dim 24"
TOWNS = ["Orsk", "Ulm", "Bree", "Lund", "Pisa", "Tyre"]
NAMES = ["Otto", "Ida Brun", "Noor", "old Sool", "Kim 2nd", "Mary-Ann"]


def vectors(folder: Path, words: list[str], width: int = 8) -> Path:
    """A file of random vectors."""
    draw = random.Random(5)
    rows = [" ".join([word, *(f"{draw.gauss(0, 1):.4f}" for _ in range(width))]) for word in words]
    path = folder / "vectors.txt"
    path.write_text("\n".join(rows) + "\n")
    return path


def squad(number: int, seed: int) -> dict:
    """Contexts of who rules three towns; a fourth of the questions is about another town."""
    draw, paragraphs = random.Random(seed), []
    for i in range(number):
        towns = draw.sample(TOWNS, 4)
        rulers = dict(zip(towns, draw.choices(NAMES, k=4), strict=True))
        told = [f"{rulers[town]} rules {town}." for town in towns[:3]]
        context, town = " ".join(told), towns[draw.randrange(4)]
        known = town in towns[:3]
        answers = []
        if known:
            start = context.index(f"{rulers[town]} rules {town}.")
            answers = [{"text": rulers[town], "answer_start": start}]
        asked = {"id": str(i), "question": f"Who rules {town}?", "answers": answers}
        paragraphs.append({"context": context, "qas": [asked | {"is_impossible": not known}]})
    return {"version": "v2.0", "data": [{"title": "Towns", "paragraphs": paragraphs}]}


def shared_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """The same for all of pytest's workers."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name


@pytest.fixture(scope="session")
def towns_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``clusterformer prepare qa`` makes it; once for all folders of tests and all workers."""
    folder = shared_folder(tmp_path_factory, "towns")
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            for split, (number, seed) in {"train": (600, 1), "dev": (60, 2)}.items():
                (folder / f"{split}-v2.0.json").write_text(json.dumps(squad(number, seed)))
            line = ["squad2", folder / "data", "--source", folder]
            assert main(["prepare", "qa", *map(str, line)]) == 0
    return folder / "data"


@pytest.fixture(scope="session")
def towns_reader(towns_data: Path) -> Path:
    """A ``bidaf_reader`` that finds who rules a town, and when nobody says so."""
    folder = towns_data.parent / "reader"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            words = ["Who", "rules", *TOWNS, *" ".join(NAMES).split()]
            path = vectors(towns_data.parent, words)
            line = f"{BIDAF} --word-vectors {path} --batch-size 32 --lr 0.01 --max-update 320"
            line += " --lr-scheduler polynomial_decay --warmup-updates 20 --total-num-update 320"
            line += " --disable-validation --no-epoch-checkpoints --dropout 0"
            for seed in range(2, 10):  # by processor, another seed learns it in so few updates
                tried = folder.with_name(f"reader-{seed}")
                train(towns_data, line, tried, "--seed", seed)
                if knows_the_towns(tried / "checkpoint_last.pt"):
                    break
            tried.rename(folder)
    return folder / "checkpoint_last.pt"


def long_text(answer: str = "", before: int = 40, behind: int = 40) -> str:
    """Paragraphs that do not name Bree, and one that may."""
    told = [f"{NAMES[i % 6]} rules {['Ulm', 'Pisa', 'Tyre'][i % 3]}." for i in range(80)]
    named = [f"Otto rules Ulm. {answer} rules Bree. Noor rules Pisa."] if answer else []
    return "\n\n".join([*told[:before], *named, *told[before : before + behind]])


def knows_the_towns(checkpoint: Path) -> bool:
    """Whether it answers questions of other texts, and refuses where nobody says so."""
    reader = Reader(load_checkpoint(checkpoint), device="cpu")
    for paragraph in squad(40, 9)["data"][0]["paragraphs"]:
        (asked,) = paragraph["qas"]
        found = reader.ask(asked["question"], reader.index(paragraph["context"]), 1)
        if asked["is_impossible"]:
            if found.no_answer < 0.9:
                return False
        elif found.no_answer > 0.1 or found[0].text != asked["answers"][0]["text"]:
            return False
    sections = reader.sections(text_source(long_text(), "x"), 60)
    return not reader.ask("Who rules Bree?", reader.passages(sections), 3).found
