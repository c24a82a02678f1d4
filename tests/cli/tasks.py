"""A small training of each task: its data (a fixture's name) and its command line."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.in_process import (
    CLASSIFICATION,
    CLUSTERED_TRANSLATION,
    CLUSTERFORMER,
    HERE,
    QUESTIONS,
    Run,
    data_of,
    train,
)
from tests.cli.topics import LINE as ETC
from tests.cli.towns import BIDAF, COMMON
from tests.conftest import once
from tests.corpora.commands import run

QANET = (
    f"{COMMON} --arch qanet_reader --encoder-embed-dim 32 --encoder-ffn-embed-dim 32"
    " --encoder-attention-heads 4 --encoder-layers 2 --convolutions 2 --attention-window 4"
    " --num-clusters 4 --kmeans-interval 2"
)
ETC_READER = (
    "--task clusterformer_qa --arch etc_reader --criterion clusterformer_qa --encoder-layers 2"
    " --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 4 --radius 4"
    " --max-distance 4 --encoder-normalize-before --dropout 0 --batch-size 8 --optimizer adam"
    f" --lr 0.006 --clip-norm 1 --seed 1 --max-update 2 {HERE}"
)
MASKED = (
    "--task masked_lm --tokens-per-sample 32 --arch clusterformer_masked_lm --encoder-layers 2"
    " --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 4"
    " --attention-window 4 --criterion clusterformer_masked_lm --batch-size 4 --max-update 6"
    f" --optimizer adam --lr 0.003 --clip-norm 1 --seed 1 {HERE}"
)
TASKS = {
    "lm": ("byte_data", CLUSTERFORMER),
    "translation": ("parallel_data", CLUSTERED_TRANSLATION),
    "masked_lm": ("text_data/input0", MASKED),
    "classifier": ("text_data", CLASSIFICATION),
    "pairs": ("pair_data", CLASSIFICATION),
    "reader": ("qa_data", QUESTIONS),
    "bidaf": ("qa_data", BIDAF),
    "qanet": ("qa_data", QANET),
    "etc": ("sentences", ETC),
    "etc_reader": ("stories", ETC_READER),
}
TrainTask = Callable[..., Run]


@pytest.fixture
def train_task(request: pytest.FixtureRequest, tmp_path: Path) -> TrainTask:
    """A training of a task, by more options; those that come later win."""

    def run(task: str, options: str, folder: Path = tmp_path, *more: object) -> Run:
        data, line = TASKS[task]
        return train(data_of(request, data), f"{line} {options}", folder, *more)

    return run


def last(folder: Path) -> Path:
    return folder / "checkpoint_last.pt"


NAMES, PLACES = ("Ada", "Bob", "Eve"), ("hall", "park", "shop", "barn")


def write_stories(path: Path, questions: int) -> None:
    """Of bAbI: two sentences a question on different people, one of which it asks about."""
    draw, lines = random.Random(1), []
    for number in range(questions):
        names, places = draw.sample(NAMES, 2), draw.sample(PLACES, 2)
        lines += [f"{i} {names[i - 1]} is in the {places[i - 1]}." for i in (1, 2)]
        asked = draw.randrange(2)
        if number % 4:
            lines.append(f"3 Where is {names[asked]}? \t{places[asked]}\t{asked + 1}")
        else:
            place, right = draw.choice([(places[asked], "yes"), ("shed", "no")])
            lines.append(f"3 Is {names[asked]} in the {place}?\t{right}\t{asked + 1}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder whose ``valid`` is as its ``train``."""

    def make(folder: Path) -> None:
        write_stories(path := folder / "qa.txt", 16)
        assert run("prepare qa babi", folder / "data", "--train", path, "--valid", path) == 0

    return once(tmp_path_factory, "stories", make) / "data"
