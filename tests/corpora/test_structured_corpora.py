"""Corpora that say what supports an answer, or among which candidates it is."""

import json
from pathlib import Path

import pytest

from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    Mention,
    Paragraph,
    Record,
)
from fairseq_clusterformer.corpora.question_answering.squad import babi, own_questions
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.errors import UserError

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
    (record,), _ = own(tmp_path, supporting=[1])
    assert shown(record) == ["Ada sang.", "Bob ran.", "Eve."]
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
    assert drops.summary().startswith(f"left out: {reason.partition(': ')[0]}")
    assert f": {tmp_path / 'train.jsonl'}: line 1: {reason.partition(': ')[2]}" in drops.summary()


def test_sentences_of_any_corpus_are_found_by_lines_and_punctuation(tmp_path):
    text = 'Ada sang. Bob ran at 3.5 m/s!\n \nA heading\nEve said: "Go." She left.'
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(OWN | {"paragraphs": [text, "Tom. "]}) + "\n")
    folder = tmp_path / "data"
    words = ["prepare", "qa", "text", path, folder, "--valid", path]
    assert main(list(map(str, words))) == 0
    data = QAData(folder, "train")
    outline, document = data.outline(0), data.document(0)
    found = [document.sentence_text(number) for number in range(len(outline.sentences))]
    assert found == [
        *("Ada sang.", "Bob ran at 3.5 m/s!", "A heading"),
        *('Eve said: "Go."', "She left.", "Tom."),
    ]
    assert outline.supporting is None
    outline.check(data[0].paragraph_starts, len(data[0].document))


def test_the_folder_has_the_tokens_of_all_that(tmp_path):
    """Whole words are pieces of bAbI, so that a sentence of 5 words has 6 tokens."""
    (tmp_path / "qa1_some_train.txt").write_text(STORY)
    folder = tmp_path / "folder"
    assert main(["prepare", "qa", "babi", str(folder), "--source", str(tmp_path)]) == 0
    data = QAData(folder, "train")
    assert data.outline(2).sentences.tolist() == [[1, 7], [7, 13], [13, 20]]
    assert data.outline(2).supporting.tolist() == [2]
    assert data[2].answers.tolist() == [[18, 19]]
    assert data.outline(1).names == ()
