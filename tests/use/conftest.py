"""Toy data of several tasks, as prepared folders have it, and models of it."""

import io
import json
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from fairseq import options
from fairseq_cli import preprocess
from subword_nmt.learn_bpe import learn_bpe

from fairseq_clusterformer.checkpoints.bundle import write_bundle
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.data import formats
from fairseq_clusterformer.data.text import TextPipeline
from tests.cli.conftest import (  # noqa: F401  fixtures
    byte_data,
    checkpoint,
    dense_checkpoint,
    pair_data,
    qa_data,
    towns_data,
    towns_reader,
    word_data,
)
from tests.cli.in_process import CLUSTERFORMER, HERE, train, trained
from tests.cli.tasks import MASKED
from tests.conftest import once

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

    def make(folder: Path) -> None:
        data = folder / "data"
        (data / "raw").mkdir(parents=True)
        codes, model = folder / "codes", data / "tokenizer.json"
        pipeline = TextPipeline(languages=("de", "en"), lowercase=True, model=model)
        with open(codes, "w") as file:
            lines = (
                pipeline.tokens(pair[i], "de en".split()[i]) for pair in PAIRS for i in (0, 1)
            )
            learn_bpe(io.StringIO("\n".join(lines)), file, 40)
        formats.codes(codes).save(str(model))
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
        preprocess.main(
            options.get_preprocessing_parser().parse_args([str(word) for word in words])
        )

    return once(tmp_path_factory, "toy", make) / "data"


@pytest.fixture(scope="session")
def translation_models(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of fairseq's translation model after 60 and 75 epochs of one update."""
    line = f"{TRAINING} --arch transformer --max-update 75 --save-interval 15"
    line += " --keep-last-epochs 2 --disable-validation"
    return once(tmp_path_factory, "toy-dense", partial(train, translation_data, line))


@pytest.fixture(scope="session")
def translation_model(translation_models: Path) -> Path:
    """The last of them."""
    return translation_models / "checkpoint_last.pt"


#: of our translation model, after two updates
clustered_translator = trained(
    "translation_data", f"{TRAINING} --arch clusterformer_tiny --max-update 2"
)


#: of a clustered language model with adaptive embeddings and softmax, all tied
word_checkpoint = trained(
    "word_data",
    CLUSTERFORMER.replace("cross_entropy", "adaptive_loss").replace(
        "--share-decoder-input-output-embed", "--ddp-backend legacy_ddp"
    ),
    *"--adaptive-softmax-cutoff 100,200 --adaptive-input-cutoff 100,200".split(),
    *"--adaptive-softmax-factor 4 --adaptive-input-factor 4 --adaptive-input".split(),
    *"--tie-adaptive-weights --tie-adaptive-proj --max-update 12".split(),
)
#: of a masked language model
masked_checkpoint = trained(
    "word_data", f"{MASKED} --batch-size 16 --tokens-per-sample 64 --max-update 3"
)


@pytest.fixture(scope="session")
def lm_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The bundle of ``checkpoint``."""
    return write_bundle(load_checkpoint(checkpoint), tmp_path_factory.mktemp("bundle") / "lm")
