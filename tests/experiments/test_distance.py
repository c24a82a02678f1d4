"""Questions that take two facts: what documents say, how far apart, and no word tells another."""

import random
import re
from collections import Counter
from itertools import repeat
from pathlib import Path

import pytest

from examples.question_answering import distance
from fairseq_clusterformer.cli.prepare import qa as prepare_qa
from fairseq_clusterformer.data.qa import QAData

TOLD = re.compile(r"(\w+) (?:(won)\.|went to (\w+)\.)")


def tokens(text: str) -> int:
    """Words and full stops."""
    return len(re.findall(r"\w+|\.", text))


def made(number: int, distances: tuple[int, int]) -> list[tuple[dict, int]]:
    draw, filler = random.Random(1), repeat(("The sea is wide.", 5))
    return [distance.make_document(distances, filler, tokens, draw) for _ in range(number)]


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
    for document, apart in made(60, distances):
        context, (answer,) = document["context"], document["answers"]
        winner, places = read(context)
        assert len(places) == len(set(places.values())) == distance.PEOPLE
        assert answer["text"] == f"{winner} went to {places[winner]}"
        assert context[answer["answer_start"] :].startswith(answer["text"] + ".")
        assert not {*places, *places.values()} & set(document["question"].split())
        asked[list(places).index(winner)] += 1
        ends = [match[2] is None for match in TOLD.finditer(context)]
        assert sum(ends) == distance.PEOPLE
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


def test_no_word_tells_another():
    """Else models answer from what goes together in training, and not from the document."""
    winners, pairs = Counter(), Counter()
    for document, _ in made(1600, (60, 100)):
        winner, places = read(document["context"])
        winners[winner] += 1
        pairs.update(places.items())
    assert len(winners) == 16
    assert len(pairs) == 256
    assert all(50 < number < 150 for number in winners.values())
    assert all(20 < number < 90 for number in pairs.values())


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred passages, of which one names a winner."""
    draw = random.Random(2)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(draw.choices(letters, k=draw.randint(1, 4))) for _ in range(300)]

    def sentence() -> str:
        return " ".join(draw.choices(vocabulary, k=draw.randint(2, 12))).capitalize() + "."

    lines = [" ".join(sentence() for _ in range(5)) for _ in range(100)]
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
    assert make(dest, *given) == 0
    content = {path.name: path.read_bytes() for path in dest.iterdir()}
    assert make(dest, *given) == 0  # says that it is there
    assert make(tmp_path / "again", *given) == 0
    assert content == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}

    model = ("--sentencepiece-model", str(dest / "sentencepiece.model"))
    assert prepare_qa.main(["text", str(dest), str(data), *model]) == 0
    assert len(QAData(data, "train")) == len(distance.LESSONS)
    test = QAData(data, "test")
    asked = [test.texts(i)["id"].split("-")[0] for i in range(len(test))]
    assert asked == ["300"] * 3 + ["700"] * 3
    for i in range(len(test)):
        texts, example = test.texts(i), test[i]
        (first, last), (answer,) = example.answers[0].tolist(), texts["texts"]
        assert last - first >= 4  # words
        assert test.document(i).answer(first, last).text == answer
        winner, places = read(texts["paragraphs"][0][1])
        name = answer.split()[0]
        assert name == winner
        assert places[name] in answer
        document, positions = test.document(i), range(1, len(example.document))
        at = [k for k in positions if name == document.answer(k, k + 1).text]
        _, true, _ = texts["id"].split("-")
        assert at[1] - at[0] == int(true)
        outline = test.outline(i)
        supporting = [
            document.answer(*outline.sentences[k].tolist()).text for k in outline.supporting
        ]
        assert sorted(supporting) == sorted([f"{name} won.", f"{answer}."])
        assert abs(int(true) - int(asked[i])) < 200
        assert "Sullivan said" not in texts["paragraphs"][0][1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--passages", "nothing.txt"], "nothing.txt"), (["--questions", "0"], "--questions")],
)
def test_bad_options(passages, tmp_path, capsys, arguments, message):
    try:
        status = make(tmp_path / "made", "--passages", passages, *arguments)
    except SystemExit as error:
        status = error.code
    assert status in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
