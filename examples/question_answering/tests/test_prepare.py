"""Corpora of questions in their own formats: every answer at its place, every loss counted."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from fairseq_clusterformer.corpora.question_answering.records import Mention
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.use.evaluate import _facts
from question_answering import prepare
from tests.corpora.records import damaged, read, spans, write
from tests.corpora.test_question_corpora import shown


def prepared(folder: Path, corpus: str, item: dict, *words: str) -> QAData:
    path = write(folder / "train.json", json.dumps([item]).encode())
    assert prepare.main([corpus, str(folder / "data"), "--train", str(path), *words]) == 0
    return QAData(folder / "data", "train")


TOLD, NAME = "To Wilhelm Röntgen , of Germany .", "Wilhelm Röntgen"
QED = {"example_id": -329, "title_text": "Physics", "question_text": "who got it"}
QED |= {"paragraph_text": TOLD, "original_nq_answers": [[{"start": 3, "end": 18, "string": NAME}]]}
QED["original_nq_answers"] += [[{"start": 3, "end": 31, "string": f"{NAME} , of Germany"}]]


def test_qed(tmp_path):
    records, drops = read(prepare.qed, write(tmp_path / "qed.jsonl", [QED]))
    (record,) = records.values()
    assert (record.id, record.question) == ("-329", "who got it")
    assert record.paragraphs[0].title == "Physics"
    assert spans(record) == [(0, 3, NAME), (0, 3, f"{NAME} , of Germany")]
    assert not drops.counts


def test_quasar_t(tmp_path):
    answers = enumerate(["gouda", "brie", "feta", "lost"])
    questions = [{"uid": f"s3q{i}", "question": f"{i} ?", "answer": a} for i, a in answers]
    texts = {2: "Feta , from Greece .", 0: "In gouda , Gouda is made .", 1: "No cheese .", 9: "x"}
    contexts = [  # in another order
        {"uid": f"s3q{i}", "contexts": [[0.9, "x y"], [0.5, ""], [0.1, text]]}
        for i, text in texts.items()
    ]
    write(tmp_path / "contexts" / "short" / "dev_contexts.json.gz", contexts)
    path = write(tmp_path / "questions" / "dev_questions.json.gz", questions)
    records, drops = read(prepare.quasar_t, path)
    assert list(records) == ["s3q2", "s3q0"]
    assert spans(records["s3q0"]) == [(1, 3, "gouda"), (1, 11, "Gouda")]
    assert [part.text for part in records["s3q2"].paragraphs] == ["x y", "Feta , from Greece ."]
    lost = ("answer not found", "question without passages", "passages without a question")
    assert drops.counts == dict.fromkeys(lost, 1)
    with pytest.raises(UserError, match="contexts/long/dev_contexts.json.gz"):
        read(prepare.quasar_t, path, contexts="long")
    with pytest.raises(UserError, match=r"allowed: questions/..._questions.json"):
        read(prepare.quasar_t, write(tmp_path / "questions" / "dev.json", {}))


SEARCHQA = {"id": 30000, "question": "Of Samos or Davos, Pythagoras' island", "answer": "Samos"}
SEARCHQA["search_results"] = [
    {"title": "Pythagoras", "snippet": "He was born on \n   Samos...", "x": None},
    *({"title": "nothing", "snippet": None}, {"title": None, "snippet": "SAMOS"}),
]


def test_searchqa(tmp_path):
    others = (SEARCHQA | {"id": 2, "answer": "Davos"}, SEARCHQA | {"id": 3, "search_results": []})
    rows = [json.dumps(SEARCHQA), "{", *map(json.dumps, others)]
    items = {f"train/03000{i}-1.json": row.encode() for i, row in enumerate(rows)}
    items["train/readme.txt"] = b""
    with pytest.raises(UserError, match="allowed: a folder of SearchQA's"):
        read(prepare.searchqa, tmp_path)
    for member, data in items.items():
        write(tmp_path / member, data)
    records, drops = read(prepare.searchqa, tmp_path)
    assert list(records) == ["30000"]
    assert spans(records["30000"]) == [(0, 19, "Samos"), (1, 0, "SAMOS")]
    assert [part.title for part in records["30000"].paragraphs] == ["Pythagoras", ""]
    assert drops.counts == {"broken JSON": 1, "answer not found": 1, "empty document": 1}
    assert "030001-1.json" in drops.examples["broken JSON"][0]


CONTEXT = [["A", ["One is 1.", " ", "Two is 2."]], ["Empty", [" "]], ["B", ["Three is 2."]]]


def hop(**changes) -> dict:
    """Of HotpotQA; its answer stands in each paragraph."""
    given = {"_id": "q", "question": "?", "answer": "2", "context": CONTEXT}
    return given | {"supporting_facts": [["A", 2], ["B", 0]]} | changes


def hops(folder: Path, *items: dict, **options):
    return read(prepare.several_hops, write(folder / "dev.json", [*items]), **options)


def test_hotpotqa(tmp_path):
    """A blank sentence keeps its number; a paragraph of blanks is no paragraph."""
    items = [
        hop(),
        hop(_id="C too", context=[["C", ["It is 2."]], *CONTEXT]),  # which supports nothing
        hop(_id="yes", answer="yes"),
        hop(_id="elsewhere", answer="1", supporting_facts=[["B", 0]]),
        hop(_id="no sentence", supporting_facts=[["A", 3]]),
        {k: v for k, v in hop(_id="test").items() if k not in ("answer", "supporting_facts")},
        hop(_id="lost", answer="Rome"),
        hop(_id="missing", supporting_facts=[["E", 0]]),
        hop(_id="null", context=[["A", ["In Paris.", None]]]),
        hop(_id="untitled", supporting_facts=[["A"]]),
        hop(_id="text", supporting_facts=[["A", "0"]]),
    ]
    records, drops = hops(tmp_path, *items)
    assert list(records) == ["q", "C too", "yes", "elsewhere", "no sentence", "test"]
    first, other = records["q"], records["C too"]
    assert shown(first) == ["One is 1.", " ", "Two is 2.", "Three is 2."]
    assert [part.text for part in first.paragraphs] == ["One is 1. Two is 2.", "Three is 2."]
    assert spans(first) == [(0, 17, "2"), (1, 9, "2")]
    assert (first.supporting, first.long_answers) == ((2, 3), (0, 1))
    assert (spans(other), other.long_answers) == ([(1, 17, "2"), (2, 9, "2")], (1, 2))
    assert (records["yes"].yes_no, records["yes"].answers) == ("yes", ())
    assert spans(records["elsewhere"]) == [(0, 7, "1")]
    assert records["no sentence"].supporting is None
    assert records["test"].answerable is records["test"].supporting is None
    lost = {"answer not found": 1, "supporting paragraph missing": 1, "no context": 1}
    assert drops.counts == lost | {"no supporting fact": 2}
    assert "item 10: ['A', '0']; allowed: [title, number]" in str(drops)
    with pytest.raises(UserError, match="allowed: HotpotQA's JSON, a list"):
        read(prepare.several_hops, write(tmp_path / "other.json", {}))
    context = [["A", ["Two is 2.", "Or 2."]], ["B", ["2 it is."]]]
    for fact, place in ((1, 13), (0, 7)):  # the answer stands in a sentence that supports it
        records, _ = hops(tmp_path, hop(context=context, supporting_facts=[["A", fact]]))
        assert spans(records["q"]) == [(0, place, "2")]


def test_titles_of_hotpotqa_are_sentences_and_may_be_answers(tmp_path):
    """In front of their texts; another's is none. An empty sentence is in its place."""
    context = [["St. Mary", ["St. Mary is one. ", "", "It is old.", ""]], ["B", ["B saw it."]]]
    item = hop(context=context, supporting_facts=[["St. Mary", 2]], answer="St. Mary")
    records, _ = hops(tmp_path, item, titled=True)
    told = ["St. Mary", "St. Mary is one. ", "", "It is old.", "", "B", "B saw it."]
    record = records["q"]
    assert shown(record) == told
    assert spans(record) == [(0, 0, "St. Mary")]
    assert (record.supporting, record.titled) == ((3,), True)
    data = prepared(tmp_path, "hotpotqa", item, "--titles")
    outline, document = data[0].outline, data.document(0)
    assert document.titles == {0: 0, 1: 5}
    outline.check(data[0].paragraph_starts, len(data[0].document))
    texts = map(document.sentence_text, range(7))
    assert [text.strip() for text in texts] == [text.strip() for text in told]
    ((first, last),) = data[0].answers.tolist()
    assert document.answer(first, last).text == "St. Mary"
    assert int(data[0].characters[0, 1]) == 0  # and no title twice
    assert _facts(data, 0, [1, 3, 6]) == [("St. Mary", 0), ("St. Mary", 2), ("B", 0)]


def test_wiki2_looks_up_its_paragraphs(tmp_path):
    passages = [{"title": title, "text": f"{title} is in Paris."} for title in "ABCDEFGH"]
    corpus = write(tmp_path / "corpus.json", passages)
    asked = {k: v for k, v in hop(answer="Paris").items() if k != "context"}
    items = [asked | {"_id": id_} for id_ in "12"]
    items.append(asked | {"_id": "3", "supporting_facts": [["Z", 0]]})
    records, drops = hops(tmp_path, *items, pool=corpus, distractors=3)
    assert list(records) == ["1", "2"]
    for record in records.values():
        titles = [part.title for part in record.paragraphs]
        assert len(set(titles)) == len(titles) == 5
        assert {titles[i] for i in record.long_answers} == {"A", "B"}
        assert [answer.paragraph for answer in record.answers] == list(record.long_answers)
        assert record.supporting is None
    orders = [[part.title for part in record.paragraphs] for record in records.values()]
    assert orders[0] != orders[1]
    assert drops.counts == {"supporting paragraph missing": 1}
    assert hops(tmp_path, *items, pool=corpus, distractors=3)[0] == records
    few, _ = hops(tmp_path, *items, pool=corpus, distractors=0)
    assert {len(record.paragraphs) for record in few.values()} == {2}
    assert hops(tmp_path, *items)[1].counts == {"no context": 3}
    with pytest.raises(UserError, match="allowed: a JSON list of {title, text}"):
        hops(tmp_path, *items, pool=tmp_path / "dev.json")


QUERY = {"id": "WH_0", "query": "capital_of some land", "answer": "paris"}
QUERY["candidates"] = ["paris", "new york", "york", "rome"]  # one stands nowhere
QUERY["supports"] = ["Paris is old.", " ", "New York and Paris."]


def test_wikihop(tmp_path):
    path = write(tmp_path / "dev.json", [QUERY, QUERY | {"id": "1", "answer": "x"}])
    records, drops = read(prepare.wikihop, path)
    (record,) = records.values()
    assert (record.question, record.texts) == ("capital of some land", ("paris",))
    mentions = (0, 0, 0, 5), (0, 1, 13, 18), (1, 1, 0, 8), (2, 1, 4, 8)
    assert record.mentions == tuple(Mention(*each) for each in mentions)
    assert drops.counts == {"answer is no candidate": 1}


HTML = (
    "<P> In 1901 , Röntgen . </P> <Table> <Tr> Row one </Tr> <Tr> Row two </Tr> </Table> <P> </P>"
)


def nq_span(start: int, end: int) -> dict:
    return {"start_token": start, "end_token": end}


def nq(id_: int, *labels: tuple[tuple[int, int], list[tuple[int, int]], str], full=False) -> dict:
    """A question, each label of it a long answer, short answers and yes or no."""
    url = "https://en.wikipedia.org//w/index.php?title=R%C3%B6ntgen_W&amp;oldid=8"
    candidates = [((0, 7), 1), ((7, 17), 1), ((8, 12), 0), ((12, 16), 0), ((17, 19), 1)]
    item = {"example_id": id_, "question_text": "who?", "document_url": url, "annotations": []}
    top_level = [nq_span(*span) | {"top_level": bool(top)} for span, top in candidates]
    item["long_answer_candidates"] = top_level
    for long, short, yes_no in labels:
        label = {"long_answer": nq_span(*long) | {"candidate_index": 0}}
        label |= {"short_answers": [nq_span(*span) for span in short]}
        item["annotations"].append(label | {"yes_no_answer": yes_no})
    if not full:
        return item | {"document_text": HTML}
    tokens = [{"token": word, "html_token": word[0] == "<"} for word in HTML.split(" ")]
    return item | {"document_tokens": tokens, "document_title": "Röntgen W"}


NULL = ((-1, -1), [], "NONE")
PARAGRAPH = ((0, 7), [(4, 5), (1, 3)], "NONE")
ROW = ((12, 16), [(13, 15)], "NONE")


@pytest.mark.parametrize("full", [False, True])
def test_natural_questions(tmp_path, full):
    labels = [(PARAGRAPH,), (NULL,), (ROW,), (((0, 7), [], "YES"),)]
    labels += [(PARAGRAPH, ROW, *[NULL] * 3), (PARAGRAPH, ((0, 7), [], "NONE"), *[NULL] * 3)]
    labels += [(PARAGRAPH, *[NULL] * 4)]
    items = [nq(number, *of, full=full) for number, of in enumerate(labels, 1)]
    items.append({k: v for k, v in nq(8, full=full).items() if k != "annotations"})
    write(tmp_path / "nq-dev-00.jsonl.gz", items[:4])
    write(tmp_path / "nq-dev-01.jsonl.gz", items[4:])
    records, drops = read(prepare.natural_questions, tmp_path)
    assert not drops.counts
    assert list(records) == list("12345678")
    one = records["1"]
    # the last candidate has no word
    assert [part.text for part in one.paragraphs] == ["In 1901 , Röntgen .", "Row one Row two"]
    assert {part.title for part in one.paragraphs} == {"Röntgen W"}
    assert [part.span for part in one.paragraphs] == [(0, 7), (7, 17)]
    assert one.paragraphs[1].tokens == (9, 10, 13, 14)
    assert spans(one) == [(0, 10, "Röntgen"), (0, 0, "In 1901")]
    assert spans(records["3"]) == [(1, 8, "Row two")]
    assert records["4"].yes_no == "yes"
    found = [(r.answerable, r.long_answers, len(r.answers)) for r in records.values()]
    assert found[:4] == [(True, (0,), 2), (False, (), 0), (True, (1,), 1), (True, (0,), 0)]
    assert found[4:6] == [(True, (0, 1), 3), (True, (0,), 0)]
    assert found[6:] == [(False, (), 0), (None, (), 0)]


def test_natural_questions_drops_wrong_spans(tmp_path):
    places = {(4, 40): (0, 7), (5, 8): (0, 7), (12, 13): (7, 17)}
    items = [nq(i, (long, [short], "NONE")) for i, (short, long) in enumerate(places.items())]
    items += [nq(5) | {"long_answer_candidates": []}, nq(6) | {"document_text": None}]
    records, drops = read(prepare.natural_questions, write(tmp_path / "nq.jsonl", items))
    assert not records
    lost = ("answer not in a candidate", "answer without a word", "empty document")
    lost = (*lost, "no document_text", "answer not in its context")
    assert drops.counts == dict.fromkeys(lost, 1)
    assert "tokens 4 to 40 of 19" in str(drops)


def test_no_damage_stops_a_reader(tmp_path):
    for reader, name, content in (
        (prepare.qed, "all.jsonl", QED),
        (prepare.natural_questions, "all.jsonl", nq(1, PARAGRAPH)),
        (prepare.natural_questions, "all.jsonl", nq(1, PARAGRAPH, full=True)),
        (prepare.several_hops, "file.json", [hop()]),
        (prepare.wikihop, "file.json", [QUERY]),
        (prepare.searchqa, "qa/file.json", SEARCHQA),
    ):
        for changed in damaged(content):
            path = write(tmp_path / name, json.dumps(changed).encode() + b"\n")
            with suppress(UserError):
                records, _ = read(reader, path.parent if reader is prepare.searchqa else path)
                assert len(records) <= 1
