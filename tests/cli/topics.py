"""Documents whose sentences have one topic each, and a small ETC that is trained on them."""

import random
from pathlib import Path

from tests.cli.in_process import HERE
from tests.corpora.commands import run

LINE = (
    "--task etc_masked_lm --arch etc_masked_lm --encoder-layers 1 --encoder-embed-dim 32"
    " --encoder-ffn-embed-dim 64 --encoder-attention-heads 4 --radius 4 --max-distance 3"
    " --criterion etc_masked_lm --tokens-per-sample 64 --max-parts 16 --hide-parts 0.3"
    f" --batch-size 4 --optimizer adam --lr 0.005 --clip-norm 1 --seed 1 --dropout 0 {HERE}"
)
TOPICS = ("one two three four", "red green blue black", "cat dog cow hen", "iron gold tin lead")


def prepare_documents(folder: Path) -> None:
    """Documents of three sentences on one topic each, prepared."""
    draw = random.Random(1)
    (folder / "text").mkdir()
    for split, number in (("train", 120), ("valid", 24), ("test", 4)):
        lines = []
        for _ in range(number):
            words = draw.choice(TOPICS).split()
            lines += [" ".join(draw.choices(words, k=5)).capitalize() + "." for _ in range(3)]
            lines.append("##")
        (folder / "text" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    options = "--sentencepiece 300 --sentences --document-separator ##"
    assert run("prepare lm text", folder / "text", folder / "data", options) == 0
