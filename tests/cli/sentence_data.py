"""Small labelled texts and pairs that can be learned, as the preparing scripts lay them out."""

import random
from pathlib import Path

from fairseq import options
from fairseq.data import Dictionary
from fairseq_cli import preprocess

WORDS = "abcdefghijklmnopqrst"
SIZES = {"train": 240, "valid": 42, "test": 42}


def write_texts(folder: Path) -> Path:
    """Three classes: a text has a word of its class more often than not."""
    draw = random.Random(1)
    texts, labels = {}, {}
    for split, size in SIZES.items():
        classes = [draw.choice("xyz") for _ in range(size)]
        texts[split] = [_text(draw, "abcdefghi"["xyz".index(c) * 3 :][:3]) for c in classes]
        labels[split] = classes
    binarize(folder / "input0", texts)
    binarize(folder / "label", labels)
    return folder


def write_pairs(folder: Path) -> Path:
    """Questions with seven candidates each, of which some answer: they have words of their own."""
    draw = random.Random(2)
    first, second, labels, groups = ({split: [] for split in SIZES} for _ in range(4))
    for split, size in SIZES.items():
        for number in range(size):
            right = draw.random() < 0.3
            if number % 7 == 0:
                question = _text(draw, WORDS)
            first[split].append(question)
            second[split].append(_text(draw, "abcd" if right else "efgh"))
            labels[split].append(str(int(right)))
            groups[split].append(f"Q{number // 7}")
    words = Dictionary()
    for line in first["train"] + second["train"]:
        words.encode_line(line)
    words.finalize()
    words.save(str(folder / "words.txt"))
    for side, texts in (("input0", first), ("input1", second)):
        binarize(folder / side, texts, dictionary=folder / "words.txt")
    binarize(folder / "label", labels)
    (folder / "group").mkdir()
    for split, lines in groups.items():
        (folder / "group" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


def _text(draw: random.Random, often: str) -> str:
    length = draw.randint(1, 12)
    return " ".join(draw.choice(often if draw.random() < 0.6 else WORDS) for _ in range(length))


def binarize(folder: Path, lines: dict[str, list[str]], dictionary: Path | None = None) -> None:
    """``fairseq-preprocess --only-source``."""
    raw = folder.with_name(f"{folder.name}.txt")
    raw.mkdir(parents=True)
    for split, of_split in lines.items():
        (raw / split).write_text("\n".join(of_split) + "\n")
    words = ["--only-source", "--trainpref", raw / "train", "--destdir", folder]
    words += ["--validpref", raw / "valid", "--testpref", raw / "test"]
    words += ["--srcdict", dictionary] if dictionary else []
    preprocess.main(options.get_preprocessing_parser().parse_args([str(word) for word in words]))
