"""Questions that take two facts: what documents say, how far apart, and no word tells another."""

import json
import random
import re
import sys
from collections import Counter
from itertools import repeat
from pathlib import Path

import pytest

from fairseq_clusterformer.data.qa import QAData

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import distance_documents  # noqa: E402
import distance_task  # noqa: E402
import prepare_qa  # noqa: E402
from distance_documents import Stage  # noqa: E402

WORDS = distance_documents.choose_words(8)
FACTS = re.compile(r"(\w+) was also called (\w+)\.|(\w+) came from (\w+)\.")


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
    """Aliases by name, and places by alias; each is told once."""
    found = FACTS.findall(context)
    aliases = {name: alias for name, alias, _, _ in found if name}
    places = {alias: place for _, _, alias, place in found if alias}
    assert len(found) == len(aliases) + len(places)
    return aliases, places


@pytest.mark.parametrize(
    "stage",
    [
        Stage(40, people=3, gaps=0.5),
        Stage(40, people=4, distance=(150, 250), zone=60),
        Stage(40, people=2, distance=(40, 40), zone=10, direct=1.0),
    ],
)
def test_the_answer_takes_both_facts(stage: Stage) -> None:
    subjects, orders, asked = set(), set(), set()
    for document, apart in documents(stage):
        context, (answer,) = document["context"], document["answers"]
        aliases, places = read(context)
        assert len(aliases) == len(places) == stage.people
        assert set(aliases.values()) == set(places)
        assert len({*aliases, *places, *places.values()}) == 3 * stage.people
        start = answer["answer_start"]
        assert context[start : start + len(answer["text"])] == answer["text"]
        subject = re.fullmatch(r"Where did (\w+) come from\?", document["question"])[1]
        subjects.add(subject in aliases)
        alias = aliases.get(subject, subject)
        assert places[alias] == answer["text"]
        link, fact = context.index(f"called {alias}") + 7, context.index(f"{alias} came")
        orders.add(link < fact)
        asked.add(list(places).index(alias))
        kinds = ["also" in match[0] for match in FACTS.finditer(context)]
        assert kinds in (sorted(kinds), sorted(kinds, reverse=True))
        first, second = sorted((link, fact))
        assert apart == tokens(context[first:second])
        if stage.distance:
            # from sentence to sentence; a link's alias is its fifth token
            low, high = stage.distance[0] - 4, stage.distance[1] + 2 * 7 * stage.people + 5
            assert low <= apart <= high
            # whoever is asked for, the facts are as far from each other
            for one, place in places.items():
                at = [match.start() for match in re.finditer(rf"\b{one}\b", context)]
                assert low <= tokens(context[at[0] : at[1]]) <= high
                assert place in context
    assert subjects == {stage.direct == 0}
    assert orders == {True, False}
    assert asked == set(range(stage.people))


def pairs_told(stage: Stage) -> Counter:
    pairs = Counter()
    for document, _ in documents(stage):
        for of_kind in read(document["context"]):
            pairs.update(of_kind.items())
    return pairs


def test_no_word_tells_another() -> None:
    """Else models answer from what goes together in training, and not from the document."""
    pairs = pairs_told(Stage(600, people=4))
    assert len(pairs) == 2 * len(WORDS.names) ** 2
    expected = 600 * 4 / len(WORDS.names) ** 2
    assert all(expected / 2 < number < 2 * expected for number in pairs.values())
    assert not distance_task.TESTED.regular


def test_of_regular_documents_a_quarter_of_the_pairs_is_missing() -> None:
    pairs = pairs_told(Stage(600, people=4, regular=True))
    assert len(pairs) == 2 * len(WORDS.names) ** 2 * 3 / 4


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred passages, of which one names Henry."""
    draw = random.Random(2)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(draw.choices(letters, k=draw.randint(1, 4))) for _ in range(300)]

    def sentence() -> str:
        return " ".join(draw.choices(vocabulary, k=draw.randint(2, 12))).capitalize() + "."

    lines = [" ".join(sentence() for _ in range(5)) for _ in range(100)]
    lines[7] = "Henry said so. " + lines[7]
    path = tmp_path_factory.mktemp("passages") / "passages.txt"
    path.write_text("A heading\n" + "\n".join(lines) + "\n")
    return path


def make(dest: Path, *arguments: object) -> int:
    words = ["make", dest, "--scale", 1e-9, "--pieces", 400, "--words", 12, *arguments]
    return distance_task.main([str(word) for word in words])


def test_from_passages_to_what_training_reads(passages: Path, tmp_path: Path) -> None:
    dest, data = tmp_path / "made", tmp_path / "data"
    given = ("--passages", passages, "--distances", 300, 700, "--questions", 3)
    assert make(dest, *given) == 0
    content = {path.name: path.read_bytes() for path in dest.iterdir()}
    assert make(dest, *given) == 0  # says that it is there
    assert make(tmp_path / "again", *given) == 0
    assert content == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    assert make(tmp_path / "longer", *given, "--skip", len(distance_task.STAGES) - 1) == 0
    for name in ("test.json", "sentencepiece.model"):
        assert content[name] == (tmp_path / "longer" / name).read_bytes()
    longer = json.loads((tmp_path / "longer" / "train.json").read_text())["data"]
    assert [len(article["paragraphs"]) for article in longer] == [1]

    splits = [
        word for s in ("train", "valid", "test") for word in (f"--{s}", str(dest / f"{s}.json"))
    ]
    model = ("--sentencepiece-model", str(dest / "sentencepiece.model"))
    assert prepare_qa.main(["squad1", str(data), *splits, *model]) == 0
    assert len(QAData(data, "train")) == len(distance_task.STAGES)
    test = QAData(data, "test")
    asked = [test.texts(i)["id"].split("-")[0] for i in range(len(test))]
    assert asked == ["300"] * 3 + ["700"] * 3
    for i in range(len(test)):
        texts, example = test.texts(i), test[i]
        (first, last), (answer,) = example.answers[0].tolist(), texts["texts"]
        assert last - first == 1  # names are single tokens
        assert test.answer(i, first, last) == answer
        aliases, _ = read(texts["paragraphs"][0][1])
        alias = aliases[texts["question"].split()[2]]
        at = [k for k in range(1, len(example.document)) if alias in test.answer(i, k, k + 1)]
        _, true, _ = texts["id"].split("-")
        assert at[1] - at[0] == int(true)
        assert abs(int(true) - int(asked[i])) < 200
        assert len(example.document) > int(true) + 150
        assert "Henry said" not in texts["paragraphs"][0][1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--words", "1000"], "--words is 1000; allowed: up to"),
        (["--words", "7"], "--words is 7; allowed: 8 or more"),
        (["--passages", "nothing.txt"], "nothing.txt: cannot be read"),
        (["--scale", "0"], "'0'; allowed is a number above 0"),
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


def test_the_table_and_the_picture_of_what_is_there(tmp_path: Path, capsys) -> None:
    grid, out = tmp_path / "grid.yaml", tmp_path / "results"
    runs = {name: {"cluster-attention": name[:-2]} for name in ("full@1", "full@2", "lsh@1")}
    grid.write_text(json.dumps({"chance": 12.5, "shared": {}, "runs": runs}))
    out.mkdir()
    for seed, score in ((1, 90.0), (2, 70.0)):
        scores = {"EM at 4000": score, "EM at 500": 100.0}
        (out / f"full@{seed}.json").write_text(json.dumps({"updates": 10, **scores}))
    picture = tmp_path / "distance.png"
    assert distance_task.main(["run", str(grid), "--out", str(out), "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    head, _, row = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in head.split("|")[-3:-1]] == ["EM at 500", "EM at 4000"]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *("full", "2", "10", "100.0 ± 0.0", "80.0 ± 10.0")
    ]


def test_a_run_that_starts_from_another_needs_its_weights(tmp_path: Path) -> None:
    grid, keep = tmp_path / "grid.yaml", tmp_path / "keep"
    grid.write_text(json.dumps({"shared": {}, "runs": {"lsh@1": {"from": "full@1"}}}))
    (tmp_path / "dict.txt").write_text("a 1\n")
    arguments = ["--data", tmp_path, "--out", tmp_path / "results", "--keep", keep]
    with pytest.raises(SystemExit, match=r"--keep is .*keep; allowed: .* holds full@1"):
        distance_task.main(["run", str(grid), *map(str, arguments)])
