"""A toy translation folder, as ``prepare_mt.py`` makes them, and a model that knows it all."""

import io
import json
from itertools import product
from pathlib import Path

import pytest
from fairseq import options
from fairseq_cli import preprocess
from subword_nmt.learn_bpe import learn_bpe

from fairseq_clusterformer.text import TextPipeline
from tests.cli.in_process import HERE, train

SUBJECTS = {"Der Hund": "The dog", "Die Katze": "The cat", "Ein Kind": "A child", "Er": "He"}
VERBS = {
    "schläft": "is sleeping",
    "singt laut": "sings loudly",
    "läuft heute nach Hause": "walks home today",
    "isst ein Eis, oder zwei": "eats an ice cream, or two",
}
# German and English; in a folder of lower-cased data, so that no case comes back
PAIRS = [
    (f"{german} {verb}.", f"{english} {VERBS[verb]}.")
    for (german, english), verb in product(SUBJECTS.items(), VERBS)
]
SMALL = " ".join(
    f"--{side}-layers 1 --{side}-embed-dim 32 --{side}-ffn-embed-dim 64"
    f" --{side}-attention-heads 4 --{side}-normalize-before"
    for side in ("encoder", "decoder")
)
TRAINING = (
    f"--task translation {SMALL} --share-all-embeddings --dropout 0 --optimizer adam --lr 0.01"
    f" --clip-norm 1 --batch-size 16 --seed 1 {HERE} --max-source-positions 40"
)


@pytest.fixture(scope="session")
def translation_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """German to English, lower-cased, in a few subwords; test holds the pairs backwards."""
    folder = tmp_path_factory.mktemp("toy")
    data = folder / "data"
    (data / "raw").mkdir(parents=True)
    codes = data / "bpe.codes"
    pipeline = TextPipeline(languages=("de", "en"), lowercase=True, model=codes)
    with open(codes, "w") as file:
        lines = (pipeline.tokens(pair[i], "de en".split()[i]) for pair in PAIRS for i in (0, 1))
        learn_bpe(io.StringIO("\n".join(lines)), file, 40)
    for split, pairs in (("train", PAIRS), ("test", PAIRS[::-1])):
        for side, lang in enumerate(("de", "en")):
            lines = [pair[side] for pair in pairs]
            (data / "raw" / f"{split}.{lang}").write_text("\n".join(lines) + "\n")
            subwords = [pipeline.encode(line, lang) for line in lines]
            (folder / f"{split}.{lang}").write_text("\n".join(subwords) + "\n")
    (data / "prepared.json").write_text(json.dumps({"recipe": pipeline.recipe()}))
    words = ["-s", "de", "-t", "en", "--destdir", data, "--joined-dictionary"]
    for split, name in (("train", "train"), ("valid", "test"), ("test", "test")):
        words += [f"--{split}pref", folder / name]
    preprocess.main(options.get_preprocessing_parser().parse_args([str(word) for word in words]))
    return data


@pytest.fixture(scope="session")
def translation_models(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of fairseq's translation model after 60 and 75 epochs of one update."""
    folder = tmp_path_factory.mktemp("transformer")
    line = f"{TRAINING} --arch transformer --max-update 75 --save-interval 15"
    line += " --keep-last-epochs 2 --disable-validation"
    train(translation_data, line, folder)
    return folder


@pytest.fixture(scope="session")
def translation_model(translation_models: Path) -> Path:
    """The last of them."""
    return translation_models / "checkpoint_last.pt"
