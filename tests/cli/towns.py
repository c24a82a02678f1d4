"""A reader of words that has learned who rules which town, and what it learned from.

PYTHONPATH=.:examples python -m tests.cli.towns    learns its weights anew, which are kept
"""

import json
import random
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import xlqa  # noqa: F401  the plug-in of the reader
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.documents.read import Reader
from fairseq_clusterformer.documents.sources import text_source
from tests.cli.in_process import HERE, load_state, train
from tests.conftest import once

WEIGHTS = Path(__file__).with_name("towns.safetensors")
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


@pytest.fixture(scope="session")
def towns_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``clusterformer prepare qa`` makes it; once for all folders of tests and all workers."""
    return once(tmp_path_factory, "towns", prepare_towns) / "data"


def prepare_towns(folder: Path) -> None:
    for split, (number, seed) in {"train": (600, 1), "dev": (60, 2)}.items():
        (folder / f"{split}-v2.0.json").write_text(json.dumps(squad(number, seed)))
    line = ["squad2", folder / "data", "--source", folder]
    assert main(["prepare", "qa", *map(str, line)]) == 0


@pytest.fixture(scope="session")
def towns_reader(towns_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ``bidaf_reader`` that finds who rules a town, and when nobody says so: with the weights
    that are kept."""

    def make(folder: Path) -> None:
        weights = load_file(WEIGHTS)
        kept = {name: t.float() if t.is_floating_point() else t for name, t in weights.items()}
        path = train_reader(towns_data, folder, "--max-update 1 --batch-size 2")
        torch.save(torch.load(path, weights_only=True) | {"model": kept}, path)
        assert knows_the_towns(path, 6), "python -m tests.cli.towns"

    return once(tmp_path_factory, "towns-reader", make) / "checkpoint_last.pt"


def train_reader(data: Path, folder: Path, more: str) -> Path:
    path = vectors(data.parent, ["Who", "rules", *TOWNS, *" ".join(NAMES).split()])
    train(data, f"{BIDAF} --word-vectors {path} --disable-validation {more}", folder)
    return folder / "checkpoint_last.pt"


def learn(data: Path, folder: Path) -> Path:
    """A reader that knows the towns; by processor, another seed learns it in so few updates."""
    line = "--no-epoch-checkpoints --dropout 0 --batch-size 32 --lr 0.01 --max-update 320"
    line += " --lr-scheduler polynomial_decay --warmup-updates 20 --total-num-update 320"
    for seed in range(2, 10):
        shutil.rmtree(folder, ignore_errors=True)
        path = train_reader(data, folder, f"{line} --seed {seed}")
        if knows_the_towns(path):
            break
    return path


def long_text(answer: str = "", before: int = 40, behind: int = 40) -> str:
    """Paragraphs that do not name Bree, and one that may."""
    told = [f"{NAMES[i % 6]} rules {['Ulm', 'Pisa', 'Tyre'][i % 3]}." for i in range(80)]
    named = [f"Otto rules Ulm. {answer} rules Bree. Noor rules Pisa."] if answer else []
    return "\n\n".join([*told[:before], *named, *told[before : before + behind]])


def knows_the_towns(checkpoint: Path, contexts: int = 40) -> bool:
    """Whether it answers questions of other texts, and refuses where nobody says so."""
    reader = Reader(load_checkpoint(checkpoint), device="cpu")
    for paragraph in squad(contexts, 9)["data"][0]["paragraphs"]:
        (asked,) = paragraph["qas"]
        found = reader.ask(asked["question"], reader.index(paragraph["context"]), 1)
        if asked["is_impossible"]:
            if found.no_answer < 0.9:
                return False
        elif found.no_answer > 0.1 or found[0].text != asked["answers"][0]["text"]:
            return False
    sections = reader.sections(text_source(long_text(), "x"), 60)
    return not reader.ask("Who rules Bree?", reader.passages(sections), 3).found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        prepare_towns(Path(made))
        learned = load_state(learn(Path(made, "data"), Path(made, "reader")))["model"]
    halves = {n: t.half() if t.is_floating_point() else t for n, t in learned.items()}
    save_file({name: tensor.contiguous() for name, tensor in halves.items()}, WEIGHTS)
