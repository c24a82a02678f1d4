"""Readers of questions: every answer at its place, its structure with it, every loss told."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from fairseq_clusterformer.corpora.question_answering.build import draw_documents
from fairseq_clusterformer.corpora.question_answering.readers import babi, own_questions
from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    Mention,
    Paragraph,
    Record,
    find_answers,
)
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.errors import UserError
from tests.corpora.commands import run
from tests.corpora.records import damaged, read, spans, write

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


@pytest.mark.parametrize("name", ["dev.json", "dev.json.bz2"])
def test_squad(tmp_path, name):
    where = question("where", ("Poznań", CONTEXT.index("Poznań")), is_impossible=False)
    data = b"\xef\xbb\xbf" + json.dumps(articles(GOOD, NONE, where)).encode()
    records, drops = read(own_questions, write(tmp_path / name, data))
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
        records, drops = read(own_questions, path, paragraphs=wanted)
        assert not drops.counts
        assert len(records) == 10
        assert records == read(own_questions, path, paragraphs=wanted)[0]
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
def test_an_answer_is_taken_where_its_text_stands(tmp_path, context, answer, start, found, place):
    path = write(tmp_path / "own.json", [question("a", (answer, start)) | {"context": context}])
    records, drops = read(own_questions, path)
    assert spans(records["a"]) == [(0, place, found)]
    assert (drops.moved, drops.counts.total()) == (start != place, 0)
    assert ("took 1 answers where the text stands" in str(drops)) is (start != place)


@pytest.mark.parametrize(
    ("wrong", "reason", "detail"),
    [
        (question("a", ("cafe", 6)), "answer not in its context", "'cafe' is 'café' at [6, 10)"),
        (question("a", ("café", -4)), "answer not in its context", "is '' at [-4, 0)"),
        (question("a"), "answers and is_impossible disagree", "with 0 answers"),
        (question("a", ("café", 6), is_impossible=True), "answers and is_impossible disagree", ""),
        (question("a", ("café", True)), "no answer_start", "true; allowed: int"),
        (question("a", ("café", 6), question="  "), "empty question", ""),
        (question("a", ("café", 6), question="\ud83c"), "not valid Unicode", r"'\ud83c' is half"),
        ("a", "no answers", "null; allowed: list"),
        (GOOD, "id seen before", "cake"),
    ],
)
def test_squad_drops_one_question(tmp_path, wrong, reason, detail):
    text = json.dumps(articles(GOOD, wrong, NONE)).encode()
    records, drops = read(own_questions, write(tmp_path / "dev.json", text))
    assert (list(records), drops.counts) == (["cake", "none"], {reason: 1})
    (example,) = drops.examples[reason]
    id_ = wrong["id"] if isinstance(wrong, dict) else None
    assert example.startswith(f"{tmp_path}/dev.json: article 0, paragraph 0, id {id_}: ")
    assert detail in example
    assert f"dropped 1: {reason}" in str(drops)


@pytest.mark.parametrize("damage", ["text", {"context": " "}, {"context": 1}])
def test_a_damaged_paragraph_of_squad_costs_no_other(tmp_path, damage):
    content = articles(GOOD)
    (good,) = content["data"][0]["paragraphs"]
    good_too = {"context": CONTEXT, "qas": [NONE]}
    content["data"][0]["paragraphs"] = [damage, good, damage, good_too, damage]
    path = write(tmp_path / "dev.json", content)
    records, drops = read(own_questions, path, paragraphs=5)
    assert list(records) == ["cake", "none"]
    assert {len(record.paragraphs) for record in records.values()} == {2}
    assert drops.counts == {"empty document" if damage == {"context": " "} else "no context": 3}


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
    answers = find_answers([answer], ["none", text])
    assert [place.text for place in answers] == found
    assert all(place.paragraph == 1 for place in answers)
    assert all(text[place.start : place.end] == place.text for place in answers)


def test_no_damage_stops_the_reader(tmp_path):
    for changed in damaged(articles(GOOD)):
        path = write(tmp_path / "file.json", json.dumps(changed).encode())
        with suppress(UserError):
            assert len(read(own_questions, path)[0]) <= 1


# bAbI, and structure

STORY = """1 Mary moved to the hall.
2 John went to the garden.
3 Where is Mary? \thall\t1
4 Mary went back to the garden.
5 Is John in the garden?\tyes\t2
6 Where is Mary? \tgarden\t4
1 Sandra got the milk.
2 How many objects is Sandra carrying? \tone\t1
"""


def shown(record: Record) -> list[str]:
    """The text of each sentence."""
    text = [part.text for part in record.paragraphs]
    return [text[part.paragraph][part.start : part.end] for part in record.sentences]


def test_babi_written_out(tmp_path):
    path = tmp_path / "qa1_some_train.txt"
    path.write_text(STORY)
    drops = Drops()
    first, second, third = babi(path, drops)
    told = ["Mary moved to the hall.", "John went to the garden.", "Mary went back to the garden."]
    assert shown(first) == told[:2]
    assert first.paragraphs == (Paragraph("", " ".join(told[:2])),)
    assert (first.question, first.texts, first.supporting) == ("Where is Mary?", ("hall",), (0,))
    assert [answer.start for answer in first.answers] == [18]
    assert (second.yes_no, second.answers, second.supporting) == ("yes", (), (1,))
    # the garden where John is does not support the answer
    assert shown(third) == told
    assert [answer.start for answer in third.answers] == [len(" ".join(told)) - 7]
    assert third.document == second.document == "qa1_some_train story 1"
    (place,) = drops.examples["answer not found"]
    assert place.startswith(
        f"{path}: line 8: 'one' is in no paragraph of question qa1_some_train-4"
    )
    kept = list(babi(path, Drops(keep_unfound=True)))
    assert (kept[3].texts, kept[3].answers) == (("one",), ())


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("1 Mice are here.\n2 Tom is one of the mice.\n3 What is Tom?\tmice\t1\n", [0]),
        ("1 Mice are here.\n2 Tom is a cat.\n3 What is Tom?\tcat\t1\n", [24]),  # elsewhere
        ("1 A.\n2 Who?\tA\t3\n", "line 2: supporting line 3"),
        ("1 A.\n2 Who?\tA\tx\n", "line 2: supporting line x"),
    ],
)
def test_where_an_answer_of_babi_stands(tmp_path, text, starts):
    (path := tmp_path / "qa.txt").write_text(text)
    drops = Drops()
    found = [[answer.start for answer in record.answers] for record in babi(path, drops)]
    assert found == ([starts] if isinstance(starts, list) else [])
    assert isinstance(starts, list) or f"{path}: {starts}" in str(drops)
    path.write_text("Mary moved.\n")
    with pytest.raises(UserError, match=r"qa.txt: is something else; allowed: lines of bAbI"):
        list(babi(path, Drops()))


OWN = {"question": "Who?", "paragraphs": ["Ada sang. Bob ran.", "Eve."], "answers": ["Bob"]}


def own(tmp_path: Path, **changes) -> tuple[list[Record], Drops]:
    path, drops = tmp_path / "train.jsonl", Drops()
    path.write_text(json.dumps(OWN | changes) + "\n")
    return list(own_questions(path, drops)), drops


def test_the_structure_of_own_questions(tmp_path):
    text = 'Ada sang. Bob ran at 3.5 m/s!\n \nA heading\nEve said: "Go." She left.'
    (record,), _ = own(tmp_path, supporting=[1], paragraphs=[text, "Tom."])
    found = [
        "Ada sang.",
        "Bob ran at 3.5 m/s!",
        "A heading",
        'Eve said: "Go."',
        "She left.",
        "Tom.",
    ]
    assert shown(record) == found
    assert (record.supporting, record.candidates) == ((1,), ())
    (record,), _ = own(tmp_path, sentences=[[0, 0, 18], [1, 0, 4]], supporting=[0])
    assert shown(record) == ["Ada sang. Bob ran.", "Eve."]
    (record,), _ = own(tmp_path, candidates=["Ada", "Bob"])
    assert record.mentions == (Mention(0, 0, 0, 3), Mention(1, 0, 10, 13))
    assert record.sentences is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"question": None}, "no question: "),
        ({"answers": ["Zoe"]}, "answer not found: "),
        ({"answers": [{"text": "Zoe", "answer_start": 0}]}, "answer not in its context: "),
        ({"answers": [{"text": "Ada", "answer_start": 0, "paragraph": 7}]}, "answer not in its "),
        ({"answers": {"text": ["Ada"], "answer_start": []}}, "malformed: text and answer_start"),
        ({"sentences": [[0, 0, 20]]}, "misplaced sentence: sentence 0 is characters"),
        ({"sentences": [[0, 0, 9], [0, 8, 17]]}, "misplaced sentence: sentence 1 is char"),
        ({"sentences": [[0, 0]]}, "no sentence: "),
        ({"sentences": [[1, 0, 4], [0, 0, 9]]}, "misplaced sentence: "),
        ({"supporting": [3]}, "no such sentence: "),
        ({"supporting": ["1"]}, "no such sentence: "),
        ({"candidates": ["Ada"]}, "answer is no candidate: "),
        ({"candidates": []}, "no candidates: "),
    ],
)
def test_own_questions_of_a_bad_structure_are_named(tmp_path, changes, reason):
    records, drops = own(tmp_path, **changes)
    assert records == []
    assert drops.summary().startswith(f"; left out: {reason.partition(': ')[0]}")
    assert f": {tmp_path / 'train.jsonl'}: line 1: {reason.partition(': ')[2]}" in drops.summary()


def test_the_folder_has_the_tokens_of_all_that(tmp_path):
    """Whole words are pieces of bAbI, so that a sentence of 5 words has 6 tokens."""
    (tmp_path / "qa1_some_train.txt").write_text(STORY)
    folder = tmp_path / "folder"
    assert run("prepare qa babi", folder, "--source", tmp_path) == 0
    data = QAData(folder, "train")
    assert data[2].outline.sentences.tolist() == [[1, 7], [7, 13], [13, 20]]
    assert data[2].outline.supporting.tolist() == [2]
    assert data[2].answers.tolist() == [[18, 19]]
    assert data[1].outline.names == ()


def test_a_document_is_drawn_if_it_brings_a_split_closer_to_its_share(tmp_path):
    """Of 20 questions, one document has 5, the others one each."""
    items = [OWN | {"question": f"{i}?", "paragraphs": [f"Bob {min(i, 15)}"]} for i in range(20)]
    path = write(tmp_path / "own.jsonl", items)
    for seed in range(9):
        drawn = draw_documents(own_questions, [path], {"valid": 0.1}, seed)
        assert [len(read(drawn[split], path)[0]) for split in ("train", "valid")] == [18, 2]
