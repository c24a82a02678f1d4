"""Questions that take two facts: what documents say, how far apart, and no word tells another."""

import random
import re
from collections import Counter
from itertools import repeat
from pathlib import Path

import pytest

from fairseq_clusterformer.cli.prepare import qa as prepare_qa
from fairseq_clusterformer.data.qa import QAData
from scripts.experiments.distance import __main__ as distance
from scripts.experiments.distance import documents as distance_documents
from scripts.experiments.distance.documents import NAMES, PLACES, Stage

WORDS = NAMES[:12], PLACES[:12]
TOLD = re.compile(r"(\w+) (?:(won|lost)\.|went to (\w+)\.)")


def tokens(text: str) -> int:
    """Words and full stops."""
    return len(re.findall(r"\w+|\.", text))


def documents(stage: Stage) -> list[tuple[dict, int]]:
    draw, filler = random.Random(1), repeat(("The sea is wide.", 5))
    return [
        distance_documents.make_document(stage, WORDS, filler, tokens, draw)
        for _ in range(stage.documents)
    ]


def read(context: str) -> tuple[dict[str, str], dict[str, str]]:
    """Results by name, and places by name; each is told once."""
    found = TOLD.findall(context)
    results = {name: result for name, result, _ in found if result}
    places = {name: place for name, _, place in found if place}
    assert len(found) == len(results) + len(places)
    return results, places


@pytest.mark.parametrize(
    "stage",
    [
        Stage(40, (60, 100), people=3),
        Stage(40, (150, 250), losers=(0, 7)),
        Stage(40, (400, 400), zone=0.2, losers=(5, 5)),
    ],
)
def test_the_answer_takes_both_facts(stage: Stage) -> None:
    asked, orders, told = Counter(), set(), set()
    for document, apart in documents(stage):
        context, (answer,) = document["context"], document["answers"]
        results, places = read(context)
        assert len(places) == len(set(places.values())) == stage.people
        assert set(results) <= set(places)
        told.add(len(results) - 1)
        (winner,) = (name for name, result in results.items() if result == "won")
        assert answer["text"] == f"{winner} went to {places[winner]}"
        assert context[answer["answer_start"] :].startswith(answer["text"] + ".")
        assert not {*places, *places.values()} & set(document["question"].split())
        asked[list(places).index(winner)] += 1
        kinds = [match[2] is None for match in TOLD.finditer(context)]
        assert kinds in (sorted(kinds), sorted(kinds, reverse=True))
        orders.add(kinds[0])
        # whoever won, the two facts are as far from each other, up to the sentences between
        for name in results:
            first, second = (match.start() for match in re.finditer(rf"\b{name}\b", context))
            between = tokens(context[first:second])
            low, high = stage.distance
            assert low - 6 * stage.people <= between <= high + 6 * stage.people
            if name == winner:
                assert apart == between
    assert set(asked) == set(range(stage.people))
    assert orders == {True, False}
    assert told == set(range(stage.losers[0], stage.losers[1] + 1))


def test_no_word_tells_another() -> None:
    """Else models answer from what goes together in training, and not from the document."""
    winners, pairs = Counter(), Counter()
    for document, _ in documents(Stage(1200, (60, 100), losers=(0, 7))):
        results, places = read(document["context"])
        winners[next(name for name, result in results.items() if result == "won")] += 1
        pairs.update(places.items())
    assert len(winners) == 12
    assert len(pairs) == 144
    assert all(50 < number < 150 for number in winners.values())
    assert all(33 < number < 133 for number in pairs.values())


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


def test_from_passages_to_what_training_reads(passages: Path, tmp_path: Path) -> None:
    dest, data = tmp_path / "made", tmp_path / "data"
    given = ("--passages", passages, "--distances", 300, 700, "--questions", 3)
    assert make(dest, *given) == 0
    content = {path.name: path.read_bytes() for path in dest.iterdir()}
    assert make(dest, *given) == 0  # says that it is there
    assert make(tmp_path / "again", *given) == 0
    assert content == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}

    splits = [
        word for s in ("train", "valid", "test") for word in (f"--{s}", str(dest / f"{s}.json"))
    ]
    model = ("--sentencepiece-model", str(dest / "sentencepiece.model"))
    assert prepare_qa.main(["squad1", str(data), *splits, *model]) == 0
    assert len(QAData(data, "train")) == len(distance.STAGES)
    test = QAData(data, "test")
    asked = [test.texts(i)["id"].split("-")[0] for i in range(len(test))]
    assert asked == ["300"] * 3 + ["700"] * 3
    for i in range(len(test)):
        texts, example = test.texts(i), test[i]
        (first, last), (answer,) = example.answers[0].tolist(), texts["texts"]
        assert last - first >= 4  # words
        assert test.answer(i, first, last) == answer
        results, places = read(texts["paragraphs"][0][1])
        assert len(results) == 1
        name = answer.split()[0]
        assert results[name] == "won"
        assert places[name] in answer
        at = [k for k in range(1, len(example.document)) if name == test.answer(i, k, k + 1)]
        _, true, _ = texts["id"].split("-")
        assert at[1] - at[0] == int(true)
        assert abs(int(true) - int(asked[i])) < 200
        assert "Sullivan said" not in texts["paragraphs"][0][1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--passages", "nothing.txt"], "nothing.txt"),
        (["--questions", "0"], "--questions"),
    ],
)
def test_bad_options(
    passages: Path, tmp_path: Path, capsys, arguments: list[str], message: str
) -> None:
    try:
        status = make(tmp_path / "made", "--passages", passages, *arguments)
    except SystemExit as error:
        status = error.code
    assert status in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
