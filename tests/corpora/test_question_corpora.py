"""Questions in SQuAD's format: every answer at its place, every loss told."""

import json
from contextlib import suppress

import pytest

from fairseq_clusterformer.corpora.question_answering.distant_supervision import find_answers
from fairseq_clusterformer.corpora.question_answering.records import Paragraph
from fairseq_clusterformer.corpora.question_answering.squad import own_questions
from fairseq_clusterformer.errors import UserError
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
    assert list(records) == ["cake", "none"]
    assert drops.counts == {reason: 1}
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
    answers = find_answers([answer], [Paragraph("", "none"), Paragraph("", text)])
    assert [place.text for place in answers] == found
    assert all(place.paragraph == 1 for place in answers)
    assert all(text[place.start : place.end] == place.text for place in answers)


def test_no_damage_stops_the_reader(tmp_path):
    for changed in damaged(articles(GOOD)):
        path = write(tmp_path / "file.json", json.dumps(changed).encode())
        with suppress(UserError):
            assert len(read(own_questions, path)[0]) <= 1
