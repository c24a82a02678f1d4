"""Corpora that say what supports an answer, or among which candidates it is."""

import json
from pathlib import Path

from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    Mention,
    Record,
    Sentence,
)
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.use.evaluate import _facts
from question_answering import prepare
from question_answering.hops import several_hops, wikihop
from tests.corpora.test_structured_corpora import shown

CONTEXT = [["A", ["One is 1.", " ", "Two is 2."]], ["Empty", [" "]], ["B", ["Three."]]]
FACTS = [["A", 2], ["B", 0]]


def hop(**changes) -> dict:
    facts = changes.pop("facts", FACTS)
    given = {"_id": "q", "question": "?", "answer": "2", "context": CONTEXT}
    return given | {"supporting_facts": facts} | changes


def hops(tmp_path: Path, *items: dict, **options) -> tuple[list[Record], Drops]:
    path, drops = tmp_path / "dev.json", Drops()
    path.write_text(json.dumps(items))
    return list(several_hops(path, drops, **options)), drops


def test_supporting_facts_of_hotpotqa(tmp_path):
    """A blank sentence keeps its number; a paragraph of blanks is no paragraph."""
    (record,), drops = hops(tmp_path, hop())
    assert not drops.counts
    assert shown(record) == ["One is 1.", " ", "Two is 2.", "Three."]
    assert record.supporting == (2, 3)
    assert record.long_answers == (0, 1)
    assert record.sentences[3] == Sentence(1, 0, 6)
    (record,), _ = hops(tmp_path, hop(answer="yes"))
    assert (record.supporting, record.yes_no) == ((2, 3), "yes")


def test_titles_of_hotpotqa_are_sentences_and_may_be_answers(tmp_path):
    """In front of their texts, from the file to the data; the other paragraph's title is none."""
    context = [["St. Mary", ["It is a church. ", "It is old."]], ["B", ["B saw it."]]]
    item = hop(context=context, facts=[["St. Mary", 1]], answer="St. Mary")
    (record,), _ = hops(tmp_path, item, titled=True)
    assert shown(record) == ["St. Mary", "It is a church. ", "It is old.", "B", "B saw it."]
    assert [(a.paragraph, a.start, a.text) for a in record.answers] == [(0, 0, "St. Mary")]
    assert (record.supporting, record.titled) == ((2,), True)
    words = ["hotpotqa", tmp_path / "data", "--titles"]
    assert prepare.main(list(map(str, [*words, "--train", tmp_path / "dev.json"]))) == 0
    data = QAData(tmp_path / "data", "train")
    document = data.document(0)
    assert document.titles == {0: 0, 1: 3}
    ((first, last),) = data[0].answers.tolist()
    assert document.answer(first, last).text == "St. Mary"
    assert int(data.characters(0)[0, 1]) == 0  # and no title twice
    assert _facts(data, 0, [1, 2, 4]) == [("St. Mary", 0), ("St. Mary", 1), ("B", 0)]


def test_an_empty_sentence_is_in_its_place(tmp_path):
    """Also before a sentence whose first token begins with the blank between them."""
    texts = ["One is 1.", "", "Two is 2.", ""]
    (tmp_path / "train.json").write_text(json.dumps([hop(context=[["A", texts], CONTEXT[2]])]))
    words = ["hotpotqa", tmp_path / "data", "--train", tmp_path / "train.json"]
    assert prepare.main(list(map(str, words))) == 0
    data = QAData(tmp_path / "data", "train")
    outline, document = data.outline(0), data.document(0)
    outline.check(data[0].paragraph_starts, len(data[0].document))
    told = [document.sentence_text(number) for number in range(5)]
    assert told == [*texts, "Three."]
    assert outline.supporting.tolist() == [2, 4]


def test_the_answer_of_hotpotqa_stands_in_a_supporting_sentence(tmp_path):
    context = [["A", ["Two is 2.", "Or 2."]], ["B", ["2 it is."]]]
    for fact, places in ((1, [(0, 13)]), (0, [(0, 7)])):
        (record,), _ = hops(tmp_path, hop(context=context, facts=[["A", fact]]))
        assert [(answer.paragraph, answer.start) for answer in record.answers] == places
    (record,), _ = hops(tmp_path, hop(context=context, answer="it is", facts=[["A", 0]]))
    assert [answer.paragraph for answer in record.answers] == [1]


def test_supporting_facts_that_are_no_sentence(tmp_path):
    (record,), _ = hops(tmp_path, hop(facts=[["A", 3]]))
    assert record.supporting is None
    for wrong in (["A"], ["A", "0"]):
        records, drops = hops(tmp_path, hop(facts=[wrong]))
        assert records == []
        assert f"{tmp_path}/dev.json: item 0: {wrong}; allowed: [title, number]" in str(drops)


def test_questions_and_a_corpus_from_the_command_line(tmp_path):
    item = hop(facts=[["A", 1], ["B", 0]])
    del item["context"]
    (tmp_path / "train.json").write_text(json.dumps([item]))
    pool = [{"title": "A", "text": "One is 1. Two is 2."}, {"title": "B", "text": "Three."}]
    (tmp_path / "corpus.json").write_text(json.dumps(pool))
    words = ["2wiki", tmp_path / "data", "--train", tmp_path / "train.json"]
    assert prepare.main(list(map(str, [*words, "--corpus", tmp_path / "corpus.json"]))) == 0
    data = QAData(tmp_path / "data", "train")
    document, outline = data.document(0), data.outline(0)
    told = [document.sentence_text(number) for number in range(len(outline.sentences))]
    assert sorted(told) == ["One is 1.", "Three.", "Two is 2."]
    assert outline.supporting is None


QUERY = {
    "id": "WH_0",
    "query": "capital_of some land",
    "answer": "paris",
    "candidates": ["paris", "new york", "york"],
    "supports": ["Paris is old.", "New York and Paris."],
}


def queries(tmp_path: Path, **changes) -> tuple[Path, Drops]:
    path = tmp_path / "train.json"
    path.write_text(json.dumps([QUERY | changes]))
    return path, Drops()


def test_wikihop_written_out(tmp_path):
    path, drops = queries(tmp_path)
    (record,) = wikihop(path, drops)
    assert (record.question, record.texts) == ("capital of some land", ("paris",))
    assert record.candidates == ("paris", "new york", "york")
    assert record.mentions == (
        Mention(0, 0, 0, 5),
        Mention(0, 1, 13, 18),
        Mention(1, 1, 0, 8),
        Mention(2, 1, 4, 8),
    )


def test_a_candidate_may_stand_nowhere(tmp_path):
    path, drops = queries(tmp_path, candidates=["paris", "rome"])
    (record,) = wikihop(path, drops)
    assert {mention.candidate for mention in record.mentions} == {0}
    path, drops = queries(tmp_path, answer="rome")
    assert list(wikihop(path, drops)) == []
    assert "answer is no candidate: " in drops.summary()


def test_the_folder_has_the_candidates(tmp_path):
    path, _ = queries(tmp_path)
    folder = tmp_path / "candidates"
    assert prepare.main(["wikihop", str(folder), "--train", str(path)]) == 0
    data = QAData(folder, "train")
    found, document = data.outline(0), data.document(0)
    assert ([len(name) > 0 for name in found.names], found.right) == ([True] * 3, 0)
    assert document.candidates == ["paris", "new york", "york"]
    texts = [document.answer(first, last).text for _, first, last in found.mentions.tolist()]
    assert texts == ["Paris", "Paris", "New York", "York"]
