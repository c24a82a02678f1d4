"""Tiny byte data, and models that have been trained on it for a moment."""

import random
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from fairseq import options
from fairseq_cli import preprocess

from fairseq_clusterformer.cli.prepare import lm
from tests.cli.in_process import (
    CLASSIFICATION,
    CLUSTERED_TRANSLATION,
    CLUSTERFORMER,
    DENSE_TRANSLATION,
    QUESTIONS,
    ROBERTA,
    TRANSFORMER,
    trained,
)
from tests.cli.qa_data import write_questions
from tests.cli.sentence_data import write_pairs, write_texts
from tests.cli.tasks import MASKED, stories, train_task  # noqa: F401  fixtures
from tests.cli.topics import prepare_documents
from tests.cli.towns import towns_data, towns_reader  # noqa: F401  fixtures
from tests.conftest import once


@pytest.fixture(scope="session")
def byte_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22.5 kB of the language reference, prepared by ``clusterformer prepare lm``."""

    def make(folder: Path) -> None:
        (folder / "text").mkdir()
        text = "\n".join(topics[name] for name in sorted(topics)).encode()
        for split, start, end in (("train", 0, 20), ("valid", 20, 22), ("test", 22, 22.5)):
            part = text[round(1000 * start) : round(1000 * end) - 1]
            (folder / "text" / f"{split}.txt").write_bytes(part + b"\n")
        arguments = ["text", str(folder / "text"), str(folder / "data"), "--bytes"]
        assert lm.main(arguments) == 0

    return once(tmp_path_factory, "bytes", make) / "data"


@pytest.fixture(scope="session")
def word_data(byte_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text of ``byte_data`` in words."""

    def make(folder: Path) -> None:
        words = ["text", byte_data.parent / "text", folder / "data", "--words"]
        assert lm.main([str(word) for word in words]) == 0

    return once(tmp_path_factory, "words", make) / "data"


#: of a clustered language model after 40 updates (half an epoch)
checkpoint = trained(
    "byte_data", CLUSTERFORMER, "--max-update", 40, "--attention", "window+neural"
)
#: of fairseq's own language model of the same size after 40 updates
dense_checkpoint = trained("byte_data", TRANSFORMER, "--max-update", 40)
#: of fairseq's own RoBERTa after three updates
roberta = trained("byte_data", ROBERTA)


@pytest.fixture(scope="session")
def parallel_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of 1 to 8 words, every length as often, and the same with every word mapped."""

    def make(folder: Path) -> None:
        words = "abcdefghijkl"
        mapped = str.maketrans(words, words[5:] + words[:5])
        draw = random.Random(1)
        for split, count in (("train", 384), ("valid", 24), ("test", 24)):
            lines = [" ".join(draw.choices(words, k=1 + i % 8)) for i in range(count)]
            draw.shuffle(lines)
            text = "\n".join(lines) + "\n"
            (folder / f"{split}.src").write_text(text)
            (folder / f"{split}.tgt").write_text(text.translate(mapped))
        prefixes = ("--validpref", folder / "valid", "--testpref", folder / "test")
        binarize(folder, folder / "data", *prefixes, "--joined-dictionary")

    return once(tmp_path_factory, "parallel", make)


@pytest.fixture(scope="session")
def parallel_data(parallel_text: Path) -> Path:
    """:func:`parallel_text` with one dictionary for both sides."""
    return parallel_text / "data"


def binarize(text: Path, data: Path, *more: object) -> None:
    """``fairseq-preprocess`` of parallel text."""
    words = ["-s", "src", "-t", "tgt", "--trainpref", text / "train", "--destdir", data, *more]
    parser = options.get_preprocessing_parser()
    preprocess.main(parser.parse_args([str(word) for word in words]))


@pytest.fixture(scope="session")
def text_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of three classes."""
    return once(tmp_path_factory, "texts", write_texts)


@pytest.fixture(scope="session")
def pair_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of two classes, seven a question."""
    return once(tmp_path_factory, "pairs", write_pairs)


@pytest.fixture(scope="session")
def qa_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions of every type."""
    return once(tmp_path_factory, "questions", write_questions)


#: until a translation is more often right than wrong, and no beam is sure of it
LEARNED = (
    "--max-update 150 --lr 0.006 --lr-scheduler inverse_sqrt --warmup-updates 20 --dropout 0"
    " --validate-interval 100 --save-interval-updates 75"
)


#: of a clustered model that has begun to translate :func:`parallel_data`
translator = trained("parallel_data", f"{CLUSTERED_TRANSLATION} {LEARNED} --seed 3")
#: of fairseq's own translation model of the same size after as many updates
dense_translator = trained("parallel_data", f"{DENSE_TRANSLATION} {LEARNED}")
#: a ranker and a reader, after too few updates to be sure of anything
ranker = trained(
    "pair_data",
    f"{CLASSIFICATION} --pair-form siamese"
    " --best-checkpoint-metric map --maximize-best-checkpoint-metric",
)
qa_reader = trained(
    "qa_data",
    f"{QUESTIONS} --lr 0.006 --dropout 0 --attention-dropout 0 --validate-interval 20"
    " --best-checkpoint-metric f1 --maximize-best-checkpoint-metric --max-update 45"
    " --batch-size-valid 3",
)


masked_lm = trained("text_data/input0", MASKED)


@pytest.fixture
def no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def train_step(*_):
        pytest.fail("training began")

    monkeypatch.setattr("fairseq.trainer.Trainer.train_step", train_step)


@pytest.fixture(scope="session")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "documents", prepare_documents) / "data"
