"""Questions that are made from plain text."""

import random
from pathlib import Path

import pytest

from fairseq_clusterformer.corpora.question_answering.readers import (
    cloze_questions,
    passages,
    questions,
)
from fairseq_clusterformer.corpora.question_answering.records import Drops
from fairseq_clusterformer.data.qa import QAData
from tests.corpora.commands import SPLITS, one_line, record_of, run

FIRST = "In the old days the town of Ulm was ruled by Ida Brun, who came from Bree."
SECOND = "For more than 1,200 years nobody but Ida Brun had asked for the keys of Ulm."
THIRD = "Then the people of Bree, about 1,200 of them, went home (Ulm was far)."
PASSAGE = f"{FIRST} {SECOND} {THIRD}"


def test_every_question_of_a_passage():
    """What stands in two sentences is asked for, once, from a sentence that has it once."""
    found = questions(PASSAGE, random.Random(1))
    assert sorted(answer for *_, answer in found) == ["1,200", "Bree", "Ida Brun", "Ulm"]
    for question, document, answer in found:
        assert answer not in question
        assert answer in document
        (asked,) = [s for s in (FIRST, SECOND, THIRD) if s.replace(answer, "what") == question]
        assert document == " ".join(s for s in (FIRST, SECOND, THIRD) if s != asked)
    orders = {tuple(a for *_, a in questions(PASSAGE, random.Random(i))) for i in range(9)}
    assert len(orders) > 1


@pytest.mark.parametrize(
    "passage",
    [
        f"{FIRST} In another place and at another time nothing of this was known at all.",
        "Here Ulm lies. Now Ulm is there.",  # too short to be asked
        "For years the men of Ulm and the women of Ulm had quarrelled. So it was with Ulm.",
        "People of the town had left the place long ago. People come back to it now, they say.",
    ],
)
def test_no_question(passage):
    assert not questions(passage, random.Random(1))


def test_passages():
    """Lines are joined until there are enough words; what is too long parts them."""
    lines = ["a " * 30, "", "b " * 15, "c " * 45, "d " * 20, "e " * 250, "f " * 39, "g h"]
    found = [passage.split() for passage in passages(line.strip() for line in lines)]
    assert [sorted(set(words)) for words in found] == [["a", "b"], ["c"], ["f", "g", "h"]]
    assert [len(words) for words in found] == [45, 45, 41]


def write(path: Path, documents: int) -> Path:
    draw, lines = random.Random(1), []
    for _ in range(documents):
        names = draw.sample(["Ulm", "Bree", "Orsk", "Lund", "Pisa"], 2)
        text = PASSAGE.replace("Ulm", names[0]).replace("Bree", names[1])
        lines += [f"{text} It was {draw.randrange(10**9)} times so.", "<|end|>"]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_records(tmp_path):
    """Always the same, of which no more than so many are of one passage."""
    path = write(tmp_path / "text.txt", 5)

    def records(**how) -> list:
        return list(cloze_questions(path, Drops(), document_separator="<|end|>", **how))

    found = records(per_passage=3)
    assert len(found) == 15
    assert len({record.document for record in found}) == 5
    for record in found:
        (text,) = record.texts
        document = record.paragraphs[0].text
        assert len(record.answers) == document.count(text)
        assert all(document[a.start : a.end] == text for a in record.answers)
    assert records(per_passage=3) == found
    assert [r.question for r in records(seed=2)][:3] != [r.question for r in found][:3]


def test_command(tmp_path):
    """Documents are drawn whole."""
    source, dest = write(tmp_path / "text.txt", 40), tmp_path / "data"
    options = "--cloze --document-separator <|end|> --sentencepiece 310"
    assert run("prepare qa text", source, dest, options) == 0
    chosen = record_of(dest)["recipe"]["options"]
    assert (chosen["cloze"], chosen["document_separator"]) == (True, "<|end|>")
    texts = []
    for split in SPLITS:
        data = QAData(dest, split)
        texts.append({data.texts(i)["paragraphs"][0][1] for i in range(len(data))})
        assert all(example.answerable for example in data)
    assert len(texts[0]) > len(texts[1]) > 0
    assert not texts[0] & (texts[1] | texts[2])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--document-separator", "x"], "--document-separator is x; allowed: with --cloze"),
        (["--cloze", "--document-separator", "x"], "--document-separator is x: no such line in "),
        (["--cloze", "--paragraphs", "3"], "--paragraphs is given; allowed: without --cloze"),
    ],
)
def test_mistakes(more, message, tmp_path, capsys):
    words = write(tmp_path / "text.txt", 3), tmp_path / "data", *more
    assert run("prepare qa text", *words) == 1
    assert message in one_line(capsys)
    assert not (tmp_path / "data").exists()
