"""Questions that take two facts: what documents say, how far apart, and no word tells another."""

import random
import re
from collections import Counter
from itertools import repeat
from pathlib import Path
from string import ascii_lowercase

import pytest

from examples.question_answering import distance
from fairseq_clusterformer.cli.prepare import qa as prepare_qa
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.errors import UserError

TOLD = re.compile(r"(\w+) (?:(won)\.|went to (\w+)\.)")


def tokens(text: str) -> int:
    """Words and full stops."""
    return len(re.findall(r"\w+|\.", text))


def read(context: str) -> tuple[str, dict[str, str]]:
    """Who won, and places by name; each is told once."""
    found = TOLD.findall(context)
    (winner,) = (name for name, won, _ in found if won)
    places = {name: place for name, _, place in found if place}
    assert len(found) == 1 + len(places)
    return winner, places


@pytest.mark.parametrize("distances", [(60, 100), (400, 400)])
def test_the_answer_takes_both_facts(distances):
    asked, orders = Counter(), set()
    draw, filler = random.Random(1), repeat(("The sea is wide.", 5))
    for _ in range(60):
        document, apart = distance.make_document(distances, filler, tokens, draw)
        context, (answer,) = document["context"], document["answers"]
        winner, places = read(context)
        assert len(places) == len(set(places.values())) == distance.PEOPLE
        assert answer["text"] == f"{winner} went to {places[winner]}"
        assert context[answer["answer_start"] :].startswith(answer["text"] + ".")
        assert not {*places, *places.values()} & set(document["question"].split())
        asked[list(places).index(winner)] += 1
        ends = [match[2] is None for match in TOLD.finditer(context)]
        assert not ends[0] or not ends[-1]  # who won stands before all places, or after them
        orders.add(ends[0])
        told = [context[start:end] for _, start, end in document["sentences"]]
        assert " ".join(told) == context
        supporting = {told[number] for number in document["supporting"]}
        assert supporting == {answer["text"] + ".", f"{winner} won."}
        first, second = (match.start() for match in re.finditer(rf"\b{winner}\b", context))
        assert apart == tokens(context[first:second])
        slack = 6 * distance.PEOPLE  # the sentences between
        assert distances[0] - slack <= apart <= distances[1] + slack
    assert set(asked) == set(range(distance.PEOPLE))
    assert orders == {True, False}


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred passages, of which one names a winner."""
    draw = random.Random(2)
    vocabulary = ["".join(draw.choices(ascii_lowercase, k=draw.randint(1, 4))) for _ in range(300)]

    def words() -> list[str]:
        return draw.choices(vocabulary, k=draw.randint(2, 12))

    lines = [" ".join(" ".join(words()).capitalize() + "." for _ in range(5)) for _ in range(100)]
    lines[7] = "Sullivan said so. " + lines[7]
    path = tmp_path_factory.mktemp("passages") / "passages.txt"
    path.write_text("A heading\n" + "\n".join(lines) + "\n")
    return path


def make(dest: Path, *arguments: object) -> int:
    words = ["make", dest, "--scale", 1e-9, "--pieces", 400, *arguments]
    return distance.main([str(word) for word in words])


def test_from_passages_to_what_training_reads(passages, tmp_path):
    dest, data = tmp_path / "made", tmp_path / "data"
    given = ("--passages", passages, "--distances", 300, 700, "--questions", 3)
    for folder in (dest, tmp_path / "again"):
        assert make(folder, *given) == 0
        content = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert content == {path.name: path.read_bytes() for path in dest.iterdir()}

    model = ("--sentencepiece-model", str(dest / "sentencepiece.model"))
    assert prepare_qa.main(["text", str(dest), str(data), *model]) == 0
    assert len(QAData(data, "train")) == len(distance.LESSONS)
    test = QAData(data, "test")
    assert len(test) == 6
    for i, asked in enumerate([300] * 3 + [700] * 3):
        texts, example, document = test.texts(i), test[i], test.document(i)
        (first, last), (answer,) = example.answers[0].tolist(), texts["texts"]
        assert document.answer(first, last).text == answer
        winner, places = read(texts["paragraphs"][0][1])
        assert answer == f"{winner} went to {places[winner]}"
        spans = range(1, len(example.document))
        at = [k for k in spans if winner == document.answer(k, k + 1).text]
        wanted, true, _ = map(int, texts["id"].split("-"))
        assert (wanted, at[1] - at[0]) == (asked, true)
        assert abs(true - asked) < 200
        outline = test[i].outline
        told = (outline.sentences[k].tolist() for k in outline.supporting)
        supporting = sorted(document.answer(*span).text for span in told)
        assert supporting == sorted([f"{winner} won.", f"{answer}."])
        assert "Sullivan said" not in texts["paragraphs"][0][1]


def test_bad_options(passages, tmp_path, capsys):
    with pytest.raises((UserError, OSError), match="nothing.txt"):
        make(tmp_path / "made", "--passages", tmp_path / "nothing.txt")
    with pytest.raises(SystemExit):
        make(tmp_path / "made", "--passages", passages, "--questions", 0)
    assert "--questions is 0" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
