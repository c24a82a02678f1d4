"""Few questions of every type over documents of random words, that can be learned by heart."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from fairseq.data import Dictionary

from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data.qa import Example, QAWriter

WORDS = [first + second for first in "bdfgk" for second in "aeiou"]
TITLE = "Title"
TYPES = ["short"] * 12 + ["yes", "no", "long", "none"] * 2


def write_questions(folder: Path, types: Sequence[str] = TYPES) -> Path:
    """``train``, the same as ``valid``, and ``test``, whose answers are kept secret."""
    folder.mkdir(parents=True, exist_ok=True)
    dictionary = symbol_dictionary([*WORDS, TITLE])
    dictionary.save(str(folder / "dict.txt"))
    for split in ("train", "valid", "test"):
        draw = random.Random(1)
        with QAWriter(folder, split, vocab_size=len(dictionary)) as writer:
            for i, type_ in enumerate(types):
                told = None if split == "test" else type_
                writer.write(*_question(draw, dictionary, str(i), told))
    return folder


def _question(draw: random.Random, dictionary: Dictionary, id_: str, type_: str | None) -> tuple:
    """Paragraphs with a title each; the answer is one place or two in one of them."""
    paragraphs, document, characters, starts, place = [], [], [], [], 3
    for _ in range(draw.randint(1, 4)):
        words = draw.choices(WORDS, k=draw.randint(4, 20))
        # as of Natural Questions: in tags, which are tokens of the web page
        tokens = range(place + 1, place + 1 + len(words))
        paragraphs.append([TITLE, " ".join(words), [place, tokens.stop + 1], list(tokens)])
        place = tokens.stop + 3
        starts.append(len(document))
        document += [dictionary.bos(), *map(dictionary.index, [TITLE, *words])]
        characters += [(-1, -1)] * 2 + [(3 * i, 3 * i + 2) for i in range(len(words))]
    gold = draw.randrange(len(paragraphs))
    words = paragraphs[gold][1].split()
    places = []
    if type_ == "short":
        for first in sorted(draw.sample(range(len(words)), draw.randint(1, 2))):
            places.append((first, min(first + draw.randint(1, 3), len(words))))
    texts = [" ".join(words[first:last]) for first, last in places]
    head = starts[gold] + 2
    example = Example(
        question=torch.tensor([dictionary.index(draw.choice(WORDS)) for _ in range(5)]),
        document=torch.tensor(document),
        characters=torch.tensor(characters).T,
        paragraph_starts=torch.tensor(starts),
        answers=torch.tensor([(head + a, head + b) for a, b in places], dtype=int).view(-1, 2),
        long_answers=torch.tensor([] if type_ in ("none", None) else [gold], dtype=int),
        answerable=None if type_ is None else type_ != "none",
        yes_no=type_ if type_ in ("yes", "no") else None,
    )
    lines = {
        "id": id_,
        "question": " ".join(dictionary[token] for token in example.question),
        "paragraphs": paragraphs,
        "answers": [[gold, 3 * a, 3 * b - 1] for a, b in places],
        "texts": texts or ([type_] if example.yes_no else []),
    }
    return example, lines
