"""Question answering corpora in their own formats: every answer at its place, every loss told."""

import copy
import json
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from fairseq_clusterformer.corpora.question_answering.distant_supervision import find_answers
from fairseq_clusterformer.corpora.question_answering.hops import several_hops
from fairseq_clusterformer.corpora.question_answering.natural_questions import natural_questions
from fairseq_clusterformer.corpora.question_answering.open_domain import (
    quasar_t,
    searchqa,
    triviaqa,
)
from fairseq_clusterformer.corpora.question_answering.records import Drops, Paragraph, Record
from fairseq_clusterformer.corpora.question_answering.squad import own_questions, qed, squad
from fairseq_clusterformer.errors import UserError
from tests.corpora.commands import pack
from tests.corpora.commands import write as write_file


def write(path: Path, data: object) -> Path:
    """Write bytes, or JSON (a list for .jsonl: a line each), packed as the name tells."""
    if not isinstance(data, bytes):
        lines = data if ".jsonl" in path.name or "_" in path.name else [data]
        data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    return write_file(path, data)


def read(reader: Callable, path: Path, **options) -> tuple[dict[str, Record], Drops]:
    """Return the records by their ids, all answers looked at, and what was dropped."""
    drops = Drops(keep_unfound=options.pop("keep_unfound", False))
    records = {record.id: record for record in reader(path, drops, **options)}
    for record in records.values():
        for answer in record.answers:
            text = record.paragraphs[answer.paragraph].text
            assert text[answer.start : answer.end] == answer.text != ""
    return records, drops


def spans(record: Record) -> list[tuple[int, int, str]]:
    return [(answer.paragraph, answer.start, answer.text) for answer in record.answers]


# SQuAD

CONTEXT = "Zoë’s café 🍰 opened in\r\nPoznań.\tIt closed."


def question(id_: str, *answers: tuple[str, int], **more) -> dict:
    entries = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id_, "question": f"{id_}?", "answers": entries} | more


def articles(*questions: dict) -> dict:
    paragraphs = [{"context": CONTEXT, "qas": list(questions)}]
    return {"version": "v2.0", "data": [{"title": "Zoë", "paragraphs": paragraphs}]}


GOOD = question("cake", ("🍰", 11), ("🍰", 11), ("café 🍰", 6))
NONE = question("none", is_impossible=True, plausible_answers=[{"text": "x", "answer_start": 0}])


@pytest.mark.parametrize("name", ["dev.json", "dev.json.gz", "dev.json.bz2"])
def test_squad(tmp_path, name):
    where = question("where", ("Poznań", CONTEXT.index("Poznań")), is_impossible=False)
    data = b"\xef\xbb\xbf" + json.dumps(articles(GOOD, NONE, where)).encode()
    records, drops = read(squad, write(tmp_path / name, data))
    assert not drops.counts
    assert list(records) == ["cake", "none", "where"]
    cake = records["cake"]
    assert spans(cake) == [(0, 11, "🍰"), (0, 6, "café 🍰")]
    assert (cake.texts, cake.answerable) == (("🍰", "café 🍰"), True)
    assert cake.paragraphs == (Paragraph("Zoë", CONTEXT),)
    assert (records["none"].answers, records["none"].answerable) == ((), False)


def test_squad_with_paragraphs_around(tmp_path):
    paragraphs = [
        {
            "context": f"{i} is here.",
            "qas": [question(f"q{i}", (str(i), 0)), NONE | {"id": f"n{i}"}],
        }
        for i in range(5)
    ]
    path = write(tmp_path / "dev.json", {"data": [{"title": "Zoë", "paragraphs": paragraphs}]})
    places = set()
    for wanted in (1, 3, 5, 9):
        records, drops = read(squad, path, paragraphs=wanted)
        assert not drops.counts
        assert len(records) == 10
        assert records == read(squad, path, paragraphs=wanted)[0]
        for i in range(5):
            texts = [part.text for part in records[f"q{i}"].paragraphs]
            first = int(texts[0][0])
            assert texts == [f"{j} is here." for j in range(first, first + min(wanted, 5))]
            assert spans(records[f"q{i}"]) == [(i - first, 0, str(i))]
            assert records[f"q{i}"].long_answers == ((i - first,) if wanted > 1 else ())
            assert len(records[f"n{i}"].paragraphs) == min(wanted, 5)
            assert records[f"n{i}"].long_answers == ()
            places.add((wanted, i - first))
    assert {place for wanted, place in places if wanted == 3} == {0, 1, 2}


NFD_NAME = "Rene\u0301 Mu\u0308ller"
PLACED = [  # context, answer, its place as given, what is found where
    (CONTEXT, "café", 6, "café", 6),
    *((CONTEXT, "café", 6 + off, "café", 6) for off in (-2, -1, 1, 2)),
    (CONTEXT, "Zoë", -1, "Zoë", 0),
    (CONTEXT, "closed.", 36, "closed.", 35),
    (CONTEXT, "Poznań", 25, "Poznań", 24),  # in UTF-16
    (CONTEXT, "Poznań", 27, "Poznań", 24),  # in UTF-16, off by two
    (CONTEXT, "o", 14, "o", 13),  # in UTF-16; in characters, it is the "p" of opened
    (CONTEXT, "e", 15, "e", 15),
    (f"Heute kam {NFD_NAME} an.", "René Müller", 10, NFD_NAME, 10),
    ("Heute kam René Müller an.", NFD_NAME, 10, "René Müller", 10),
    ("The o\ufb03ce of Smith.", "office", 4, "o\ufb03ce", 4),
    ("In １９９８ he came.", "1998", 4, "１９９８", 3),
    (f"{NFD_NAME} kam.", "Müller", 6, "Mu\u0308ller", 6),
]


@pytest.mark.parametrize(("context", "answer", "start", "found", "place"), PLACED)
@pytest.mark.parametrize("own", [False, True])
def test_an_answer_is_taken_where_its_text_stands(
    tmp_path, context, answer, start, found, place, own
):
    asked = question("a", (answer, start))
    content = {"data": [{"paragraphs": [{"context": context, "qas": [asked]}]}]}
    path = write(tmp_path / "dev.json", [asked | {"context": context}] if own else content)
    records, drops = read(own_questions if own else squad, path)
    assert spans(records["a"]) == [(0, place, found)]
    assert (drops.moved, drops.counts.total()) == (start != place, 0)
    assert ("took 1 answer where the text stands" in str(drops)) is (start != place)


@pytest.mark.parametrize(
    ("wrong", "reason", "detail"),
    [
        (question("a", ("cafe", 6)), "answer not in its context", "'cafe' is 'café' there"),
        (question("a", ("café", 9)), "answer not in its context", "'é "),
        (question("a", ("café", -4)), "answer not in its context", "'café' is at [-4, 0) of 42"),
        (
            question("a", ("closed. ", 35)),
            "answer not in its context",
            "'closed. ' is at [35, 43) of 42",
        ),
        (question("a", ("", 3)), "answer not in its context", "'' is at [3, 3) of 42"),
        (question("a"), "answers and is_impossible disagree", "with 0 answers"),
        (question("a", ("café", 6), is_impossible=True), "answers and is_impossible disagree", ""),
        (question("a", ("café", "6")), "no answer_start", '"6"; allowed: int'),
        (question("a", ("café", True)), "no answer_start", "true; allowed: int"),
        (question("a", ("café", 6), question="  "), "empty question", ""),
        (question("a", ("café", 6), question="\ud83c"), "not valid Unicode", r"'\ud83c' is half"),
        ({"id": "a", "answers": []}, "answers and is_impossible disagree", ""),
        ({"id": "a"}, "no answers", "null; allowed: list"),
        ("a", "malformed", "str"),
        (GOOD, "id seen before", "cake"),
    ],
)
def test_squad_drops_one_question(tmp_path, wrong, reason, detail):
    text = json.dumps(articles(GOOD, wrong, NONE)).encode()
    records, drops = read(squad, write(tmp_path / "dev.json", text))
    assert list(records) == ["cake", "none"]
    assert drops.counts == {reason: 1}
    (example,) = drops.examples[reason]
    id_ = wrong["id"] if isinstance(wrong, dict) else None
    assert example.startswith(f"{tmp_path}/dev.json: article 0, paragraph 0, id {id_}: ")
    assert detail in example
    assert f"dropped 1: {reason}" in str(drops)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"data": [', "dev.json: broken JSON: Expecting value: line 1"),
        (b'{"data": "caf\xe9"}', "dev.json: not UTF-8: byte 0xE9 at 13"),
        (b'["data"]', "dev.json: is something else; allowed: SQuAD's JSON"),
        (b"[" * 100_000, "dev.json: broken JSON: "),
    ],
)
def test_squad_refuses_a_file(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        read(squad, write(tmp_path / "dev.json", data))


def test_empty_documents_are_dropped(tmp_path):
    content = articles(GOOD)
    content["data"][0]["paragraphs"].append({"context": " \n", "qas": [question("b", ("x", 0))]})
    content["data"][0]["paragraphs"].append({"context": "x"})
    content["data"].append({"title": "no paragraphs"})
    records, drops = read(squad, write(tmp_path / "dev.json", content))
    assert list(records) == ["cake"]
    assert drops.counts == {"empty document": 1, "no qas": 1, "no paragraphs": 1}


@pytest.mark.parametrize("damage", [None, "text", {"context": " "}, {"context": 1}])
def test_a_damaged_paragraph_of_squad_costs_no_other(tmp_path, damage):
    content = articles(GOOD)
    (good,) = content["data"][0]["paragraphs"]
    good_too = {"context": CONTEXT, "qas": [NONE]}
    content["data"][0]["paragraphs"] = [damage, good, damage, good_too, damage]
    path = write(tmp_path / "dev.json", content)
    for wanted in (1, 2, 5):
        records, drops = read(squad, path, paragraphs=wanted)
        assert list(records) == ["cake", "none"]
        assert {len(record.paragraphs) for record in records.values()} == {min(wanted, 2)}
        reason = "empty document" if damage == {"context": " "} else "no context"
        assert drops.counts == {reason: 3}


# QED, for all formats of one record a line

QED = {
    "example_id": -329,
    "title_text": "Physics",
    "question_text": "who got it",
    "paragraph_text": "To Wilhelm Röntgen , of Germany .",
    "original_nq_answers": [
        [{"start": 3, "end": 18, "string": "Wilhelm Röntgen"}],
        [{"start": 3, "end": 31, "string": "Wilhelm Röntgen , of Germany"}],
    ],
}


def test_qed(tmp_path):
    records, drops = read(qed, write(tmp_path / "qed.jsonl", [QED]))
    assert not drops.counts
    assert spans(records["-329"]) == [(0, 3, text) for text in records["-329"].texts]


def test_qed_among_paragraphs_of_other_questions(tmp_path):
    lines = [
        QED | {"example_id": i, "paragraph_text": f"To Wilhelm Röntgen , of Germany . {i // 2}"}
        for i in range(12)
    ]
    path = write(tmp_path / "qed.jsonl", lines)
    for wanted, there in ((1, 1), (4, 4), (9, 6)):
        records, _ = read(qed, path, paragraphs=wanted)
        assert records == read(qed, path, paragraphs=wanted)[0]
        places = set()
        for i in range(12):
            texts = [part.text for part in records[str(i)].paragraphs]
            assert len(texts) == len(set(texts)) == there
            place = texts.index(lines[i]["paragraph_text"])
            assert {answer.paragraph for answer in records[str(i)].answers} == {place}
            assert records[str(i)].long_answers == ((place,) if wanted > 1 else ())
            places.add(place)
        assert len(places) >= min(there, 3)


def test_a_damaged_line_is_dropped(tmp_path):
    good = json.dumps(QED).encode()
    wrong = json.dumps(QED | {"example_id": 1, "original_nq_answers": []}).encode()
    latin = json.dumps(QED, ensure_ascii=False).encode("latin-1")
    path = write(tmp_path / "qed.jsonl.gz", b"\n".join([good[:50], b"", latin, wrong, b"7", good]))
    records, drops = read(qed, path)
    assert list(records) == ["-329"]
    assert drops.counts == {
        "broken JSON": 1,
        "not UTF-8": 1,
        "no answer": 1,
        "no original_nq_answers": 1,
    }
    assert drops.examples["not UTF-8"][0].startswith(f"{path}: line 3: byte 0xF6")


def test_a_truncated_file_is_refused(tmp_path):
    random.seed(0)
    lines = [QED | {"example_id": i, "noise": random.random()} for i in range(2000)]
    path = write(tmp_path / "qed.jsonl.gz", lines)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"qed.jsonl.gz: cannot be read after line [\d,]+: "):
        read(qed, path)
    with pytest.raises(UserError, match="cannot be read after line 0: .*No such file"):
        read(qed, tmp_path / "nothing.jsonl")


# Search for answers


@pytest.mark.parametrize(
    ("text", "answer", "found"),
    [
        ("The U.S. Navy", "u.s.", ["U.S"]),
        ("New\nYork, new  york", "New York", ["New\nYork", "new  york"]),
        ("Cafe\u0301 Müller; MULLER", "Müller", ["Müller", "MULLER"]),
        ("at Cafe\u0301!", "Café", ["Cafe\u0301"]),
        ("Samosa, Samos.", "Samos", ["Samos"]),
        ("c, C++ and C#", "C++", ["C++"]),
        ("“Rock ’n’ Roll”", "Rock 'n' Roll", ["Rock ’n’ Roll"]),
        ("$5 million", "5 million", ["5 million"]),
        ("𝔘nicode ﬁts", "Unicode fits", ["𝔘nicode ﬁts"]),
        ("हिन्दी भाषा", "हिन्दी", ["हिन्दी"]),
        ("我住在东京市, 东京", "东京", ["东京", "东京"]),
        ("เขาอยู่กรุงเทพมานาน", "กรุงเทพ", ["กรุงเทพ"]),
        ("ライブは1999年に", "1999年", ["1999年"]),
        ("サーバー2台", "サーバー", ["サーバー"]),
        ("...", "...", []),
        ("", "x", []),
    ],
)
def test_find_answers(text, answer, found):
    answers = find_answers([answer], [Paragraph("", "none"), Paragraph("", text)])
    assert [place.text for place in answers] == found
    assert all(place.paragraph == 1 for place in answers)
    assert all(text[place.start : place.end] == place.text for place in answers)


def test_longest_of_several_names():
    paragraph = Paragraph("", "Sinclair Lewis; Harry Sinclair Lewis; Lewis")
    answers = find_answers(["Lewis", "Sinclair", "Sinclair Lewis"], [paragraph])
    assert [(a.start, a.text) for a in answers] == [
        (0, "Sinclair Lewis"),
        (9, "Lewis"),
        (22, "Sinclair Lewis"),
        (31, "Lewis"),
        (38, "Lewis"),
    ]


# Quasar-T


def quasar_folder(folder: Path) -> Path:
    questions = [
        {"uid": f"s3q{i}", "question": f"{i} ?", "answer": answer, "tags": ["1-word"]}
        for i, answer in enumerate(["gouda", "brie", "feta", "lost"])
    ]
    passages = {2: "Feta , from Greece .", 0: "In gouda , Gouda is made .", 1: "No cheese ."}
    contexts = [
        {"uid": f"s3q{i}", "contexts": [[0.9, "x y"], [0.5, ""], [0.1, text]]}
        for i, text in passages.items()  # in another order
    ]
    write(folder / "contexts" / "short" / "dev_contexts.json.gz", contexts)
    return write(folder / "questions" / "dev_questions.json.gz", questions)


def test_quasar_t(tmp_path):
    path = quasar_folder(tmp_path)
    records, drops = read(quasar_t, path)
    assert list(records) == ["s3q2", "s3q0"]
    assert spans(records["s3q0"]) == [(1, 3, "gouda"), (1, 11, "Gouda")]
    assert [part.text for part in records["s3q2"].paragraphs] == ["x y", "Feta , from Greece ."]
    assert drops.counts == {"answer not found": 1, "question without passages": 1}
    assert "'brie' is in no paragraph of question s3q1" in str(drops)

    records, drops = read(quasar_t, path, keep_unfound=True)
    assert (records["s3q1"].answers, records["s3q1"].texts) == ((), ("brie",))
    with pytest.raises(UserError, match="contexts/long/dev_contexts.json.gz"):
        read(quasar_t, path, contexts="long")
    with pytest.raises(UserError, match="allowed: questions/..._questions.json"):
        read(quasar_t, write(tmp_path / "questions" / "dev.json", {}))


# SearchQA

SEARCHQA = {
    "id": 30000,
    "question": "Of Samos or Davos, Pythagoras' island",
    "answer": "Samos",
    "search_results": [
        {"url": "u", "title": "Pythagoras", "snippet": "He was born on \n   Samos...", "x": None},
        {"url": "u", "title": "nothing", "snippet": None},
        {"url": "u", "title": None, "snippet": "SAMOS"},
    ],
}


@pytest.mark.parametrize("name", ["folder", "train.tar", "train.tar.gz", "train.zip"])
def test_searchqa(tmp_path, name):
    items = {
        "train/030000-1.json": json.dumps(SEARCHQA).encode(),
        "train/030001-1.json": b"{",
        "train/030002-1.json": json.dumps(SEARCHQA | {"id": 2, "answer": "Davos"}).encode(),
        "train/030003-1.json": json.dumps(SEARCHQA | {"id": 3, "search_results": []}).encode(),
        "train/readme.txt": b"",
    }
    path = tmp_path / name
    if path.suffix:
        pack(path, items)
    else:
        for member, data in items.items():
            write(path / member, data)
    records, drops = read(searchqa, path)
    assert list(records) == ["30000"]
    assert spans(records["30000"]) == [(0, 19, "Samos"), (1, 0, "SAMOS")]
    assert [part.title for part in records["30000"].paragraphs] == ["Pythagoras", ""]
    assert drops.counts == {"broken JSON": 1, "answer not found": 1, "empty document": 1}
    assert "030001-1.json" in drops.examples["broken JSON"][0]


def test_searchqa_refuses_what_is_no_archive(tmp_path):
    with pytest.raises(UserError, match="cannot be read after 0 files"):
        read(searchqa, write(tmp_path / "train.tar", b"no archive"))
    with pytest.raises(UserError, match="allowed: a folder, .tar"):
        read(searchqa, tmp_path)


# TriviaQA


def trivia(id_: str, *files: str, **more) -> dict:
    answer = {
        "Value": "Sinclair Lewis",
        "Aliases": ["Harry Sinclair Lewis", "Sinclair Lewis"],
        "NormalizedAliases": ["harry sinclair lewis", "sinclair lewis"],
    }
    web = [{"Filename": file, "Title": "Nobel", "Rank": 0} for file in files]
    pages = [{"Filename": "Lewis.txt", "Title": "Sinclair Lewis", "DocSource": "TagMe"}]
    return {
        "QuestionId": id_,
        "Question": f"{id_}?",
        "Answer": answer,
        "EntityPages": pages,
        "SearchResults": web,
    } | more


TRIVIA = {
    "Data": [
        trivia("tc_1", "46/46_46.txt"),
        trivia("tc_2", "46/missing.txt"),
        trivia("tc_3", "46/latin.txt"),
        trivia("tc_4", "../../qa/web-train.json"),
        trivia("tc_5", EntityPages=[]),
        {key: value for key, value in trivia("tc_6").items() if key != "Answer"},
        "tc_7",
    ]
}
EVIDENCE = {
    "evidence/web/46/46_46.txt": "\ufeffThe prize \n\n  went to SINCLAIR LEWIS.\n".encode(),
    "evidence/web/46/latin.txt": "Zoë".encode("latin-1"),
    "evidence/web/46/unused.txt": b"",
    "evidence/wikipedia/Lewis.txt": b"Harry Sinclair Lewis was\nborn.",
}


@pytest.mark.parametrize("layout", ["folder", "archive", "archive without a top folder"])
def test_triviaqa(tmp_path, layout):
    files = {"qa/web-train.json": json.dumps(TRIVIA).encode()} | EVIDENCE
    if layout == "folder":
        for name, data in files.items():
            write(tmp_path / name, data)
        path = tmp_path / "qa" / "web-train.json"
    else:
        top = "triviaqa-rc/" if layout == "archive" else ""
        archive = {top + name: files[name] for name in sorted(files)}  # evidence first
        path = pack(tmp_path / "triviaqa-rc.tar.gz", archive) / "qa" / "web-train.json"
    records, drops = read(triviaqa, path)
    assert list(records) == ["tc_1", "tc_6"]
    texts = ["Harry Sinclair Lewis was", "born.", "The prize", "went to SINCLAIR LEWIS."]
    assert [part.text for part in records["tc_1"].paragraphs] == texts
    assert [part.title for part in records["tc_1"].paragraphs][1:3] == ["Sinclair Lewis", "Nobel"]
    expected = [(0, 0, "Harry Sinclair Lewis"), (0, 6, "Sinclair Lewis"), (3, 8, "SINCLAIR LEWIS")]
    assert spans(records["tc_1"]) == expected
    assert records["tc_1"].texts == ("harry sinclair lewis", "sinclair lewis")
    assert records["tc_6"].answerable is None
    assert drops.counts == {
        "no evidence": 1,
        "not UTF-8": 1,
        "foreign file name": 1,
        "empty document": 1,
        "malformed": 1,
    }


def test_triviaqa_wants_an_answer_from_each_page_of_the_web(tmp_path):
    """By the names that its script gives them; a page that is missing costs no other."""
    data = [
        trivia("tc_1", "46/46_46.txt", "46/46_46.txt", "46/missing.txt"),
        trivia("tc_2", "../secret"),
        trivia("tc_3", EntityPages=[]),
        "tc_4",
    ]
    for name, text in EVIDENCE.items():
        write(tmp_path / name, text)
    path = write(tmp_path / "qa" / "web-dev.json", {"Domain": "Web", "Data": data})
    records, drops = read(triviaqa, path)
    assert list(records) == ["tc_1--Lewis.txt", "tc_1--46/46_46.txt"]
    first, second = records.values()
    assert [part.text for part in first.paragraphs] == ["Harry Sinclair Lewis was", "born."]
    assert [part.text for part in second.paragraphs] == ["The prize", "went to SINCLAIR LEWIS."]
    assert drops.counts == {
        "no evidence": 1,
        "foreign file name": 1,
        "empty document": 1,
        "malformed": 1,
    }
    path = write(tmp_path / "qa" / "web-dev.json", {"Domain": "Wikipedia", "Data": data[:1]})
    assert read(triviaqa, path)[1].counts == {"no evidence": 1}


def test_triviaqa_refuses_what_is_no_archive(tmp_path):
    with pytest.raises(UserError, match="qa.tar.gz: cannot be read after 0 files"):
        read(triviaqa, write(tmp_path / "qa.tar.gz", b"") / "qa" / "web-dev.json")
    with pytest.raises(UserError, match="cannot be read after line 0: .*No such file"):
        read(triviaqa, pack(tmp_path / "trivia.tar", EVIDENCE) / "qa" / "web-dev.json")


# HotpotQA and 2WikiMultihopQA


def hop(id_: str, answer: str, **more) -> dict:
    return {
        "_id": id_,
        "question": f"{id_}?",
        "answer": answer,
        "supporting_facts": [["A", 0], ["B", 1]],
        "context": [
            ["C", ["Paris."]],
            ["A", ["In Paris.", " Yes."]],
            ["D", []],
            ["B", ["x", "y"]],
        ],
        "type": "bridge",
    } | more


def test_hotpotqa(tmp_path):
    items = [
        hop("found", "Paris"),  # in A, which supports it; in C too
        hop("yes", "yes"),
        hop("lost", "Rome"),
        hop("fact", "Paris", supporting_facts=[["E", 0]]),
        hop("elsewhere", "Paris", supporting_facts=[["B", 0]]),
        hop("null", "Paris", context=[["A", ["In Paris.", None]], ["B", ["x"]]]),
        {k: v for k, v in hop("test", "").items() if k not in ("answer", "supporting_facts")},
    ]
    path = write(tmp_path / "dev.json", items)
    records, drops = read(several_hops, path)
    assert list(records) == ["found", "yes", "elsewhere", "test"]
    assert [part.text for part in records["found"].paragraphs] == [
        "Paris.",
        "In Paris. Yes.",
        "x y",
    ]
    assert spans(records["found"]) == [(1, 3, "Paris")]
    assert records["found"].long_answers == (1, 2)
    assert spans(records["elsewhere"]) == [(0, 0, "Paris"), (1, 3, "Paris")]
    assert (records["yes"].yes_no, records["yes"].answers) == ("yes", ())
    assert records["test"].answerable is None
    assert drops.counts == {
        "answer not found": 1,
        "supporting paragraph missing": 1,
        "no context": 1,
    }
    assert "lost" in read(several_hops, path, keep_unfound=True)[0]
    with pytest.raises(UserError, match="allowed: HotpotQA's JSON, a list"):
        read(several_hops, write(tmp_path / "other.json", {}))


def test_wiki2_looks_up_its_paragraphs(tmp_path):
    passages = [{"title": title, "text": f"{title} is in Paris."} for title in "ABCDEFGH"]
    corpus = write(tmp_path / "corpus.json", passages)
    items = [{k: v for k, v in hop(id_, "Paris").items() if k != "context"} for id_ in "12"]
    items.append(items[0] | {"_id": "3", "supporting_facts": [["Z", 0]]})
    path = write(tmp_path / "dev.json", items)
    records, drops = read(several_hops, path, corpus=corpus, distractors=3)
    assert list(records) == ["1", "2"]
    for record in records.values():
        titles = [part.title for part in record.paragraphs]
        assert len(set(titles)) == len(titles) == 5
        assert {titles[i] for i in record.long_answers} == {"A", "B"}
        assert [answer.paragraph for answer in record.answers] == list(record.long_answers)
    orders = [[part.title for part in record.paragraphs] for record in records.values()]
    assert orders[0] != orders[1]
    assert drops.counts == {"supporting paragraph missing": 1}
    assert read(several_hops, path, corpus=corpus, distractors=3)[0] == records
    (few,) = {
        len(r.paragraphs)
        for r in read(several_hops, path, corpus=corpus, distractors=0)[0].values()
    }
    assert few == 2
    assert read(several_hops, path)[1].counts == {"no context": 3}
    with pytest.raises(UserError, match="allowed: a JSON list of {title, text}"):
        read(several_hops, path, corpus=path)


# Natural Questions

HTML = (
    "<P> In 1901 , Röntgen . </P> <Table> <Tr> Row one </Tr> <Tr> Row two </Tr> </Table> <P> </P>"
)
WORDS = HTML.split(" ")


def nq_span(start: int, end: int, full: bool = False) -> dict:
    span = {"start_token": start, "end_token": end}
    if full:
        ends = [len(" ".join(WORDS[: i + 1]).encode()) for i in range(len(WORDS))]
        starts = [end - len(word.encode()) for end, word in zip(ends, WORDS, strict=True)]
        told = (starts[start], ends[end - 1]) if start >= 0 else (-1, -1)
        span |= dict(zip(("start_byte", "end_byte"), told, strict=True))
    return span


def nq(id_: int, *labels: tuple[tuple[int, int], list[tuple[int, int]], str], full=False) -> dict:
    """A question, each label of it a long answer, short answers and yes or no."""
    candidates = [((0, 7), True), ((7, 17), True), ((8, 12), False), ((12, 16), False)]
    item = {
        "example_id": id_,
        "question_text": "who?",
        "document_url": "https://en.wikipedia.org//w/index.php?title=R%C3%B6ntgen_W&amp;oldid=8",
        "long_answer_candidates": [
            nq_span(*span, full) | {"top_level": top}
            for span, top in [*candidates, ((17, 19), True)]
        ],
        "annotations": [
            {
                "long_answer": nq_span(*long, full) | {"candidate_index": 0},
                "short_answers": [nq_span(*span, full) for span in short],
                "yes_no_answer": yes_no,
            }
            for long, short, yes_no in labels
        ],
    }
    if not full:
        return item | {"document_text": HTML}
    tokens = [
        {"token": word, "html_token": word[0] == "<"}
        | {k: v for k, v in nq_span(i, i + 1, full).items() if "byte" in k}
        for i, word in enumerate(WORDS)
    ]
    return item | {"document_tokens": tokens, "document_title": "Röntgen W", "document_html": HTML}


NULL = ((-1, -1), [], "NONE")
PARAGRAPH = ((0, 7), [(4, 5), (1, 3)], "NONE")
ROW = ((12, 16), [(13, 15)], "NONE")


@pytest.mark.parametrize("full", [False, True])
def test_natural_questions(tmp_path, full):
    items = [
        nq(1, PARAGRAPH, full=full),
        nq(2, NULL, full=full),
        nq(3, ROW, full=full),
        nq(4, ((0, 7), [], "YES"), full=full),
        nq(5, PARAGRAPH, ROW, NULL, NULL, NULL, full=full),
        nq(6, PARAGRAPH, ((0, 7), [], "NONE"), NULL, NULL, NULL, full=full),
        nq(7, PARAGRAPH, NULL, NULL, NULL, NULL, full=full),
        {k: v for k, v in nq(8, full=full).items() if k != "annotations"},
    ]
    write(tmp_path / "nq-dev-00.jsonl.gz", items[:4])
    write(tmp_path / "nq-dev-01.jsonl.gz", items[4:])
    records, drops = read(natural_questions, tmp_path)
    assert not drops.counts
    assert list(records) == list("12345678")
    one = records["1"]
    # the last candidate has no word
    assert [part.text for part in one.paragraphs] == ["In 1901 , Röntgen .", "Row one Row two"]
    assert {part.title for part in one.paragraphs} == {"Röntgen W"}
    assert [part.span for part in one.paragraphs] == [(0, 7), (7, 17)]
    assert one.paragraphs[1].tokens == (9, 10, 13, 14)
    assert spans(one) == [(0, 10, "Röntgen"), (0, 0, "In 1901")]
    assert one.long_answers == (0,)
    assert records["2"].answerable is False
    assert spans(records["3"]) == [(1, 8, "Row two")]
    assert records["3"].long_answers == (1,)
    assert (records["4"].yes_no, records["4"].long_answers) == ("yes", (0,))
    assert records["5"].long_answers == (0, 1)
    assert len(records["5"].answers) == 3
    assert (records["6"].long_answers, records["6"].answers) == ((0,), ())
    assert (records["7"].answerable, records["7"].answers) == (False, ())
    assert records["8"].answerable is None


def test_natural_questions_drops_wrong_spans(tmp_path):
    full = nq(4, PARAGRAPH, full=True)
    full["annotations"][0]["short_answers"][0]["end_byte"] += 1
    items = [
        nq(1, ((0, 7), [(4, 40)], "NONE")),
        nq(2, ((0, 7), [(5, 8)], "NONE")),
        nq(3, ((7, 17), [(12, 13)], "NONE")),
        full,
        nq(5) | {"long_answer_candidates": []},
        nq(6) | {"document_text": None},
    ]
    records, drops = read(natural_questions, write(tmp_path / "nq.jsonl", items))
    assert not records
    assert drops.counts == {
        "answer not in its context": 2,
        "answer not in a candidate": 1,
        "answer without a word": 1,
        "empty document": 1,
        "no document_text": 1,
    }
    assert "tokens 4 to 40 of 19" in str(drops)
    assert "tokens 4 to 5 are bytes" in str(drops)


# Whatever is in a file


def damaged(value: object) -> Iterable[object]:
    """Every way to lose or to change one field within."""
    if isinstance(value, dict):
        places = list(value)
    elif isinstance(value, list):
        places = range(len(value))
    else:
        return
    for place in places:
        for other in (None, 7, "x", [], {}, [None], [[]]):
            copied = copy.copy(value)
            copied[place] = other
            yield copied
        if isinstance(value, dict):
            yield {k: v for k, v in value.items() if k != place}
        for inner in damaged(value[place]):
            copied = copy.copy(value)
            copied[place] = inner
            yield copied


@pytest.mark.parametrize(
    ("reader", "item"),
    [(qed, QED), *((natural_questions, nq(1, PARAGRAPH, full=full)) for full in (False, True))],
)
def test_no_damaged_line_stops_a_reader(tmp_path, reader, item):
    items = list(damaged(item))
    path = write(tmp_path / "all.jsonl", [*items, item | {"example_id": 0}])
    records, drops = read(reader, path)
    assert "0" in records
    assert len(records) + drops.counts.total() == len(items) + 1
    assert drops.counts.total() > 20


@pytest.mark.parametrize(
    ("reader", "content"),
    [
        (squad, articles(GOOD)),
        (several_hops, [hop("1", "Paris")]),
        (triviaqa, {"Data": [trivia("tc_1")]}),
        (searchqa, SEARCHQA),
    ],
)
def test_no_damage_stops_a_reader(tmp_path, reader, content):
    for name, data in EVIDENCE.items():
        write(tmp_path / name, data)
    path = tmp_path / "qa" / "file.json"
    for changed in damaged(content):
        write(path, json.dumps(changed).encode())
        with suppress(UserError):
            records, drops = read(reader, path.parent if reader is searchqa else path)
            assert len(records) <= 1
