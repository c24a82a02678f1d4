"""Tiny byte data, and models that have been trained on it for a moment."""

import random
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from fairseq import options
from fairseq_cli import preprocess

from fairseq_clusterformer.cli.prepare import lm
from tests.cli.expected import assert_logged
from tests.cli.in_process import (
    CLASSIFICATION,
    CLUSTERED_TRANSLATION,
    CLUSTERFORMER,
    DENSE_TRANSLATION,
    HERE,
    QUESTIONS,
    ROBERTA,
    SIZES,
    TRANSFORMER,
    train,
)
from tests.cli.qa_data import write_questions
from tests.cli.sentence_data import write_pairs, write_texts
from tests.cli.tasks import MASKED, pages, stories, train_task  # noqa: F401  fixtures
from tests.cli.topics import prepare_documents
from tests.cli.towns import towns_data, towns_reader  # noqa: F401  fixtures


@pytest.fixture(scope="session")
def byte_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22.5 kB of the language reference, prepared by ``clusterformer prepare lm``."""
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "text").mkdir()
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    for split, start, end in (("train", 0, 20), ("valid", 20, 22), ("test", 22, 22.5)):
        part = text[round(1000 * start) : round(1000 * end) - 1]
        (folder / "text" / f"{split}.txt").write_bytes(part + b"\n")
    arguments = ["text", str(folder / "text"), str(folder / "data"), "--bytes"]
    assert lm.main(arguments) == 0
    return folder / "data"


@pytest.fixture(scope="session")
def checkpoint(byte_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clustered language model after 40 updates (half an epoch)."""
    folder = tmp_path_factory.mktemp("clusterformer")
    train(byte_data, CLUSTERFORMER, folder, "--max-update", 40, "--attention", "window+neural")
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def dense_checkpoint(byte_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fairseq's own language model of the same size after 40 updates."""
    folder = tmp_path_factory.mktemp("transformer")
    train(byte_data, TRANSFORMER, folder, "--max-update", 40)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def roberta(byte_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fairseq's own RoBERTa after three updates."""
    folder = tmp_path_factory.mktemp("roberta")
    train(byte_data, ROBERTA, folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def translation_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of fairseq's translation model, after one update."""
    folder = tmp_path_factory.mktemp("translation")
    for language in ("src", "tgt"):
        (folder / f"train.{language}").write_text("a b c\nd e\n" * 8)
    binarize(folder, folder / "data", "--validpref", folder / "train")
    line = (
        "--task translation --arch transformer --optimizer adam --max-tokens 100 --max-update 1"
        f" --encoder-layers 1 --encoder-embed-dim 32 {SIZES} {HERE}"
    )
    line = line.replace("--decoder-input-dim 32", "").replace(" --activation-fn gelu", "")
    train(folder / "data", line, folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def parallel_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of 1 to 8 words, every length as often, and the same with every word mapped."""
    folder = tmp_path_factory.mktemp("parallel")
    words = "abcdefghijkl"
    mapped = str.maketrans(words, words[5:] + words[:5])
    draw = random.Random(1)
    for split, count in (("train", 384), ("valid", 24), ("test", 24)):
        lines = [" ".join(draw.choices(words, k=1 + i % 8)) for i in range(count)]
        draw.shuffle(lines)
        text = "\n".join(lines) + "\n"
        (folder / f"{split}.src").write_text(text)
        (folder / f"{split}.tgt").write_text(text.translate(mapped))
    return folder


@pytest.fixture(scope="session")
def parallel_data(parallel_text: Path) -> Path:
    """:func:`parallel_text` with one dictionary for both sides."""
    folder = parallel_text / "data"
    prefixes = ("--validpref", parallel_text / "valid", "--testpref", parallel_text / "test")
    binarize(parallel_text, folder, *prefixes, "--joined-dictionary")
    return folder


def binarize(text: Path, data: Path, *more: object) -> None:
    """``fairseq-preprocess`` of parallel text."""
    words = ["-s", "src", "-t", "tgt", "--trainpref", text / "train", "--destdir", data, *more]
    parser = options.get_preprocessing_parser()
    preprocess.main(parser.parse_args([str(word) for word in words]))


@pytest.fixture(scope="session")
def text_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of three classes."""
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="session")
def pair_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of two classes, seven a question."""
    return write_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="session")
def qa_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions of every type."""
    return write_questions(tmp_path_factory.mktemp("questions"))


#: until a translation is more often right than wrong, and no beam is sure of it
LEARNED = (
    "--max-update 150 --lr 0.006 --lr-scheduler inverse_sqrt --warmup-updates 20 --dropout 0"
    " --validate-interval 100 --save-interval-updates 75"
)


@pytest.fixture(scope="session")
def translator(parallel_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clustered model that has begun to translate :func:`parallel_data`."""
    folder = tmp_path_factory.mktemp("translator")
    train(parallel_data, f"{CLUSTERED_TRANSLATION} {LEARNED} --seed 3", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def dense_translator(parallel_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fairseq's own translation model of the same size after as many updates."""
    folder = tmp_path_factory.mktemp("dense_translator")
    train(parallel_data, f"{DENSE_TRANSLATION} {LEARNED}", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def masked_lm(text_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked_lm")
    run = train(text_data / "input0", MASKED, folder)
    assert run.mean_loss(-1) < run.mean_loss(0) - 0.1
    assert_logged(run)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def ranker(pair_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After too few updates to be sure of anything."""
    folder = tmp_path_factory.mktemp("ranker")
    line = f"{CLASSIFICATION} --pair-form siamese"
    line += " --best-checkpoint-metric map --maximize-best-checkpoint-metric"
    train(pair_data, line, folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def qa_reader(qa_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After too few updates to be sure of anything."""
    folder = tmp_path_factory.mktemp("reader")
    line = f"{QUESTIONS} --lr 0.006 --dropout 0 --attention-dropout 0 --validate-interval 20"
    line += " --best-checkpoint-metric f1 --maximize-best-checkpoint-metric"
    train(qa_data, f"{line} --max-update 50 --batch-size-valid 3", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture
def no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    def train_step(*_):
        pytest.fail("training began")

    monkeypatch.setattr("fairseq.trainer.Trainer.train_step", train_step)


@pytest.fixture(scope="session")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_documents(tmp_path_factory.mktemp("documents"))
