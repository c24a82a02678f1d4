"""Question answering data, from a corpus's files to a folder that is complete or not there."""

import json
import re
from pathlib import Path

import pytest

from fairseq_clusterformer.data import subwords
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.data.stored import load_dictionary
from tests.corpora.commands import SPLITS, files_in, one_line, record_of, write
from tests.corpora.commands import run as run_command
from tests.data.subword_models import TEXTS, write_gpt2


def run(*arguments: object) -> int:
    return run_command("prepare qa", *arguments)


def questions_of(folder: Path) -> dict[str, int]:
    return {split: counts["questions"] for split, counts in record_of(folder)["splits"].items()}


def squad(*paragraphs: tuple[str, str]) -> dict:
    """SQuAD 2.0 with a question on each answer, and one without."""
    made = []
    for i, (context, answer) in enumerate(paragraphs):
        place = {"text": answer, "answer_start": context.index(answer)}
        questions = [
            {"id": f"{i}a", "question": "What of it?", "answers": [place], "is_impossible": False},
            {"id": f"{i}b", "question": "What not?", "answers": [], "is_impossible": True},
        ]
        made.append({"context": context, "qas": questions})
    return {"version": "v2.0", "data": [{"title": "The cafés", "paragraphs": made}]}


WRONG = {"id": "w", "question": "?", "answers": [{"text": "x", "answer_start": 900}]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    train = squad((TEXTS[0], "1901"), (TEXTS[1], "$5 million"), (TEXTS[2], "日本の首都"))
    train["data"][0]["paragraphs"][0]["qas"].append(WRONG)
    write(tmp_path / "source" / "train-v2.0.json", json.dumps(train))
    write(tmp_path / "source" / "dev-v2.0.json", json.dumps(squad((TEXTS[2], "🍰"))))
    return tmp_path / "source"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt2(tmp_path_factory.mktemp("gpt2"))


def assert_answers(folder: Path, split: str) -> None:
    """Every gold span is the gold text or a little more, and no token beyond it is of use."""
    data = QAData(folder, split)
    for i, example in enumerate(data):
        texts = data.texts(i)
        assert len(example.answers) == len(texts["answers"])
        assert (example.document[example.paragraph_starts] == 0).all()
        for (first, last), told in zip(example.answers.tolist(), texts["answers"], strict=True):
            paragraph, start, end = data.document(i).place(first, last)
            assert paragraph == told[0]
            assert start <= told[1] < told[2] <= end
            gold = texts["paragraphs"][paragraph][1][told[1] : told[2]]
            assert gold in data.document(i).answer(first, last).text
            assert data.document(i).place(first, first + 1)[2] > told[1]
            assert data.document(i).place(last - 1, last)[1] < told[2]


def test_squad_to_folder_and_back(source, model, tmp_path, capsys):
    dest = tmp_path / "dest"
    arguments = ("squad2", dest, "--source", source, "--gpt2-bpe", model)
    assert run(*arguments) == 0
    printed = capsys.readouterr().out
    assert "train: dropped 1: answer not in its context" in printed
    assert "id w: " in printed
    assert "6 questions" in printed
    for split in ("train", "valid"):
        assert_answers(dest, split)
    data, bpe = QAData(dest, "train"), subwords.load_prepared(dest)  # the model is in the folder
    assert [data.texts(i)["id"] for i in range(6)] == ["0a", "0b", "1a", "1b", "2a", "2b"]
    assert [example.answerable for example in data] == [True, False] * 3
    assert data.document(2).answer(*data[2].answers[0].tolist()).text == "$5 million"
    dictionary = load_dictionary(dest)
    symbols = [dictionary[index] for index in data[2].document[1:]]
    assert symbols == [bpe.symbols[id_] for id_ in bpe.encode(TEXTS[1]).ids]
    record = record_of(dest)
    assert record["splits"]["train"]["dropped"] == 1
    assert list(record["dropped"]["train"]) == ["answer not in its context"]
    assert record["splits"]["valid"]["tokens"] == sum(
        len(e.document) for e in QAData(dest, "valid")
    )
    # once more: nothing to do; for something else: refused
    before = files_in(dest)
    assert run(*arguments) == 0
    assert "is already prepared" in capsys.readouterr().out
    assert run(*arguments, "--titles") == 1
    assert "was prepared otherwise (titles: false then, true now)" in capsys.readouterr().err
    assert files_in(dest) == before


def test_a_corpus_that_has_moved(tmp_path, capsys):
    assert run("searchqa", tmp_path / "dest", "--source", tmp_path) == 1
    said = "CORPUS is searchqa: it has moved; allowed: python examples/question_answering/prepare."
    assert said in one_line(capsys)


def test_nothing_left_is_an_error(model, tmp_path, capsys):
    content = {"data": [{"paragraphs": [{"context": "x", "qas": [WRONG]}]}]}
    path = write(tmp_path / "train.json", json.dumps(content))
    for words in (("--gpt2-bpe", model), ("--sentencepiece", 99)):
        assert run("squad1", tmp_path / "dest", "--train", path, *words) == 1
        said = "train.*; left out: answer not in its context: .*train.json: article"
        assert re.search(said, one_line(capsys))
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("squad2 --source {source} --gpt2-bpe nowhere", "--gpt2-bpe is nowhere: no such folder"),
        ("squad1 --source {source} --gpt2-bpe {model}", "nothing found; allowed: a folder"),
        ("squad1 --gpt2-bpe {model}", "--source is missing; allowed: .* or --train, --valid or"),
        ("squad2 --valid {source}/dev-v2.0.json --sentencepiece 99", "there is no train to draw"),
        ("squad1 --test {source} --gpt2-bpe {model} --valid-fraction .1", "there is no train"),
        ("squad1 --train x --sentencepiece 99", "the file is /.*x: no such file"),
        ("squad1 --train x --gpt2-bpe {model} --dict y", "--dict is y: no such file"),
        ("text {source} --gpt2-bpe {model} --test x", "the file is /.*x: no such file"),
        ("text {model} --gpt2-bpe {model}", "SOURCE is .*: nothing found; .* names contain"),
    ],
)
def test_mistakes(source, model, tmp_path, capsys, arguments, message):
    name, *words = arguments.format(source=source, model=model).split()
    place = 1 if name == "text" else 0
    assert run(name, *words[:place], tmp_path / "dest", *words[place:])
    assert re.search(f"error: .*{message}", one_line(capsys))
    assert not list(tmp_path.glob("dest*"))


# Own questions, and splits drawn by document


def own_lines(number: int) -> list[dict]:
    """Two questions on each document, whose answers are given in every way."""
    lines = []
    for i in range(number):
        document = f"The café {i} opened in 1901."
        ways = ["1901"], [{"text": "1901", "answer_start": document.index("1901")}]
        ways += ({"text": ["1901"], "answer_start": [document.index("1901")]}, [])
        for answers in (ways[i % 4], ways[(i + 1) % 4]):
            place = {"context": document} if i % 2 else {"paragraphs": [{"text": document}]}
            lines.append({"question": f"When did {i} open?", "answers": answers, **place})
    return lines


def test_too_few_documents_because_questions_are_unusable(model, tmp_path, capsys):
    line = '{"question": "Who?", "context": "x", "answers": ["Ada"]}\n'
    path = write(tmp_path / "own.jsonl", line * 2 + "What?\n")
    assert run("text", path, tmp_path / "dest", "--gpt2-bpe", model) == 1
    said = f"documents of {path}: 0; allowed: more than 2, to draw valid and test from, or files "
    said += f"of each split; left out: answer not found: {path}: line 1: 'Ada' is in no paragraph"
    assert said in (error := one_line(capsys))
    assert error.endswith("; and 2 more")


def write_own(path: Path, *titles: str, **more: object) -> None:
    """Two questions on the same text for each title."""
    lines = []
    for i, title in enumerate(titles):
        context = f"The {title.split()[0]} opened in 190{i % 10}."
        for answer in (f"190{i % 10}", "opened"):
            question = f"What of {title} and {answer}?"
            item = {"question": question, "context": context, "title": title, "answers": [answer]}
            lines.append(json.dumps(item | more) + "\n")
    path.write_text("".join(lines))


def test_ids_are_of_one_question_in_all_files_of_a_split(model, tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("train", "valid-one", "valid-two"):
        write_own(source / f"{name}.jsonl", "bar", "museum")
    (source / "._train.jsonl").write_bytes(b"\0\5\x16\7")  # beside a file that a Mac copied
    arguments = ("text", source, tmp_path / "dest", "--gpt2-bpe", model)
    assert run(*arguments) == 0
    data = QAData(tmp_path / "dest", "valid")
    ids = [data.texts(i)["id"] for i in range(len(data))]
    names = ("valid-one", "valid-two")
    assert ids == [f"{name}.jsonl:{i}" for name in names for i in range(4)]
    for name in names:
        question = (source / f"{name}.jsonl").read_text().splitlines()[0]
        (source / f"{name}.jsonl").write_text(json.dumps(json.loads(question) | {"id": 7}))
    assert run(*arguments, "--force") == 1
    assert "valid: the id '7' is of more than one question; allowed: " in capsys.readouterr().err


def test_the_same_text_under_two_titles_is_one_document(model, tmp_path):
    titles = [f"house{i} {again}" for again in ("first", "second", "third") for i in range(10)]
    write_own(tmp_path / "own.jsonl", *titles)
    arguments = (tmp_path / "own.jsonl", tmp_path / "dest", "--gpt2-bpe", model)
    assert run("text", *arguments) == 0
    texts = []
    for split in SPLITS:
        data = QAData(tmp_path / "dest", split)
        texts.append({data.texts(i)["paragraphs"][0][1] for i in range(len(data))})
    assert [len(of_split) for of_split in texts] == [8, 1, 1]
    assert len(set.union(*texts)) == 10


def test_own_questions_are_divided_by_document(model, tmp_path, capsys):
    path = write(tmp_path / "own.jsonl", "\n".join(map(json.dumps, own_lines(40))))
    arguments = (path, tmp_path / "dest", "--gpt2-bpe", model, "--valid-fraction", "0.2")
    assert run("text", *arguments) == 0
    seen, counts = set(), {}
    for split in SPLITS:
        assert_answers(tmp_path / "dest", split)
        data = QAData(tmp_path / "dest", split)
        counts[split] = len(data)
        documents = {data.texts(i)["paragraphs"][0][1] for i in range(len(data))}
        assert not seen & documents
        seen |= documents
        for i, example in enumerate(data):
            assert example.answerable is bool(data.texts(i)["texts"])
            assert len(example.answers) == example.answerable
    assert counts == {"train": 56, "valid": 16, "test": 8}
    assert run("text", *arguments) == 0
    assert run("text", *arguments, "--seed", 2) == 1
    assert run("text", *arguments, "--seed", 2, "--force") == 0


def test_own_files_of_splits(source, model, tmp_path):
    """SQuAD's format, recognised by what is in it; test is not drawn where valid is there. Files
    that bear no split's name are named."""
    assert run("text", source, tmp_path / "dest", "--gpt2-bpe", model) == 0
    (source / "train-v2.0.json").rename(source / "questions.json")
    named = ("--train", source / "questions.json", "--paragraphs", 2)
    assert run("text", source, tmp_path / "named", *named, "--gpt2-bpe", model) == 0
    assert_answers(tmp_path / "named", "train")
    for name, paragraphs in (("dest", 1), ("named", 2)):
        assert questions_of(tmp_path / name) == {"train": 6, "valid": 2}
        data = QAData(tmp_path / name, "train")
        assert {len(example.paragraph_starts) for example in data} == {paragraphs}


def test_squad_validates_on_articles_of_train(tmp_path, model, capsys):
    """What is left out of train is reported once."""
    content = squad(*[(f"{i} is here.", str(i)) for i in range(10)])
    (data,) = content["data"]
    content["data"] = [{"paragraphs": [paragraph]} for paragraph in data["paragraphs"]]
    content["data"][0]["paragraphs"][0]["qas"].append(WRONG)
    (tmp_path / "train-v2.0.json").write_text(json.dumps(content))
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(squad(("Paris", "Paris"))))
    words = ("squad2", tmp_path / "dest", "--source", tmp_path, "--gpt2-bpe", model)
    assert run(*words, "--valid-fraction", "0.3") == 0
    assert questions_of(tmp_path / "dest") == {"train": 14, "valid": 6, "test": 2}
    assert capsys.readouterr().out.count("dropped 1: answer not in its context") == 1


def test_what_is_not_found_is_scored_and_not_trained_on(model, tmp_path):
    """Also where splits are drawn."""
    lines = [
        {"question": f"{answer} {i}?", "context": f"The bar {i}.", "answers": [answer]}
        for i in range(30)
        for answer in ("bar", "café")
    ]
    write(tmp_path / "own.jsonl", "\n".join(map(json.dumps, lines)))
    words = ("text", tmp_path / "own.jsonl", tmp_path / "dest", "--gpt2-bpe", model)
    assert run(*words) == 0
    assert questions_of(tmp_path / "dest") == {"train": 24, "valid": 6, "test": 6}
