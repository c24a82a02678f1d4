"""The questions that reader-en learns from: which files they are from, in which pass."""

import gzip
import json
import lzma
import re
from collections import Counter
from pathlib import Path

import pytest

from examples.question_answering import reader_data

WIKIPEDIA = {"train-v1.1", "new_wiki_v1.0"}
WRITERS = {".gz": gzip.open, ".xz": lzma.open}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each name. Its titles say where they are from; of development articles, the first
    file has the questions with an answer and the second those without."""
    folder = tmp_path_factory.mktemp("squad")
    for name in (*reader_data.TRAIN, *reader_data.DIVIDED):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        own, divided = path.name.split(".json")[0], name in reader_data.DIVIDED
        most = (reader_data.TRAIN.get(name), reader_data.AGAIN.get(name))
        number = max(3, *(each or 0 for each in most))
        articles = []
        for i in range(4 if divided else 1):
            answers = [] if divided and "dev-v1.1" not in name else [{"text": "ox"}]
            answers = [answer | {"answer_start": 3} for answer in answers]
            asked = [
                {"id": f"{own} {i} {n}", "question": "Who?", "answers": answers}
                | ({} if answers else {"is_impossible": True})
                for n in range(number)
            ]
            title = f"Article {i}" if divided else own.removesuffix(".first11articles")
            paragraphs = [{"context": f"An ox. {i}", "qas": asked}, {"context": "Else", "qas": []}]
            articles.append({"title": title, "paragraphs": paragraphs})
        with WRITERS.get(path.suffix, open)(path, "wt", encoding="utf-8") as file:
            json.dump({"data": articles}, file)
    return folder


def counted(folder: Path, out: Path, *options: str) -> tuple[Counter, Counter]:
    """Titles of training questions with and without an answer, but those of the development
    articles, which are one."""
    assert reader_data.main([str(folder), str(out), "--none", "0", *options]) == 0
    found: tuple[Counter, Counter] = Counter(), Counter()
    for line in (out / "train.jsonl").read_text().splitlines():
        record = json.loads(line)
        found[not record["answers"]][re.sub(r"^Article .*", "Article", record["title"])] += 1
    return found


def test_each_pass_has_its_files(folder, tmp_path):
    first = counted(folder, tmp_path / "first")
    assert len(first[0]) == 1 + len(reader_data.TRAIN)
    again = counted(folder, tmp_path / "again", "--again")
    assert again[0].keys() == first[0].keys()
    assert again[0]["reddit_v1.0"] == 5_000
    assert again[1]["Article"] == 2 * first[1]["Article"] > 0
    last = counted(folder, tmp_path / "last", "--again", "--last")
    assert last[0].keys() == {"Article"} | {title for title in first[0] if title in WIKIPEDIA}
    assert last[1] == again[1]
    for name in ("Article", *WIKIPEDIA):
        assert last[0][name] == again[0][name] > 0


@pytest.mark.parametrize("options", [["--long", "--again"], ["--last"], ["--long", "--last"]])
def test_passes_that_do_not_go_together(options, folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        reader_data.main([str(folder), str(tmp_path / "out"), *options])
    assert "allowed: --long, --again, or --again --last" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
