"""Tiny byte data, and models that have been trained on it for a moment."""

from pathlib import Path
from pydoc_data.topics import topics

import pytest
from fairseq import options
from fairseq_cli import preprocess

from tests.cli.in_process import CLUSTERFORMER, HERE, SIZES, TRANSFORMER, train
from tests.conftest import REPO_ROOT


@pytest.fixture(scope="session")
def byte_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22.5 kB of the language reference, prepared as ``scripts/prepare_text.sh`` does."""
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "text").mkdir()
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    for split, start, end in (("train", 0, 20), ("valid", 20, 22), ("test", 22, 22.5)):
        part = text[round(1000 * start) : round(1000 * end) - 1]
        (folder / "text" / f"{split}.txt").write_bytes(part + b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPO_ROOT / "scripts")
        import prepare_lm

        arguments = ["text", str(folder / "text"), str(folder / "data"), "--bytes"]
        assert prepare_lm.main(arguments) == 0
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
def translation_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of fairseq's translation model, after one update."""
    folder = tmp_path_factory.mktemp("translation")
    for language in ("src", "tgt"):
        (folder / f"train.{language}").write_text("a b c\nd e\n" * 8)
    words = ["-s", "src", "-t", "tgt", "--destdir", folder / "data"]
    words += ["--trainpref", folder / "train", "--validpref", folder / "train"]
    parser = options.get_preprocessing_parser()
    preprocess.main(parser.parse_args([str(word) for word in words]))
    line = (
        "--task translation --arch transformer --optimizer adam --max-tokens 100 --max-update 1"
        f" --encoder-layers 1 --encoder-embed-dim 32 {SIZES} {HERE}"
    )
    line = line.replace("--decoder-input-dim 32", "").replace(" --activation-fn gelu", "")
    train(folder / "data", line, folder)
    return folder / "checkpoint_last.pt"
