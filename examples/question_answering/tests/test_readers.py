"""Corpora of questions in their own formats: every answer at its place, every loss counted."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    Mention,
    Record,
    Sentence,
)
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.use.evaluate import _facts
from question_answering import prepare
from question_answering.hops import several_hops, wikihop
from question_answering.natural_questions import natural_questions, qed
from question_answering.open_domain import quasar_t, searchqa, triviaqa
from tests.corpora.commands import pack
from tests.corpora.records import damaged, read, spans, write
from tests.corpora.test_question_corpora import shown

# QED

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
    with pytest.raises(UserError, match="cannot be read"):
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


# HotpotQA and 2WikiMultihopQA


def bridge(id_: str, answer: str, **more) -> dict:
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
        bridge("found", "Paris"),  # in A, which supports it; in C too
        bridge("yes", "yes"),
        bridge("lost", "Rome"),
        bridge("fact", "Paris", supporting_facts=[["E", 0]]),
        bridge("elsewhere", "Paris", supporting_facts=[["B", 0]]),
        bridge("null", "Paris", context=[["A", ["In Paris.", None]], ["B", ["x"]]]),
        {k: v for k, v in bridge("test", "").items() if k not in ("answer", "supporting_facts")},
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
    items = [{k: v for k, v in bridge(id_, "Paris").items() if k != "context"} for id_ in "12"]
    items.append(items[0] | {"_id": "3", "supporting_facts": [["Z", 0]]})
    path = write(tmp_path / "dev.json", items)
    records, drops = read(several_hops, path, pool=corpus, distractors=3)
    assert list(records) == ["1", "2"]
    for record in records.values():
        titles = [part.title for part in record.paragraphs]
        assert len(set(titles)) == len(titles) == 5
        assert {titles[i] for i in record.long_answers} == {"A", "B"}
        assert [answer.paragraph for answer in record.answers] == list(record.long_answers)
    orders = [[part.title for part in record.paragraphs] for record in records.values()]
    assert orders[0] != orders[1]
    assert drops.counts == {"supporting paragraph missing": 1}
    assert read(several_hops, path, pool=corpus, distractors=3)[0] == records
    (few,) = {
        len(r.paragraphs) for r in read(several_hops, path, pool=corpus, distractors=0)[0].values()
    }
    assert few == 2
    assert read(several_hops, path)[1].counts == {"no context": 3}
    with pytest.raises(UserError, match="allowed: a JSON list of {title, text}"):
        read(several_hops, path, pool=path)


CONTEXT = [["A", ["One is 1.", " ", "Two is 2."]], ["Empty", [" "]], ["B", ["Three."]]]
FACTS = [["A", 2], ["B", 0]]


def hop(**changes) -> dict:
    facts = changes.pop("facts", FACTS)
    given = {"_id": "q", "question": "?", "answer": "2", "context": CONTEXT}
    return given | {"supporting_facts": facts} | changes


def hops(tmp_path: Path, *items: dict, **options) -> tuple[list[Record], Drops]:
    records, drops = read(several_hops, write(tmp_path / "dev.json", [*items]), **options)
    return list(records.values()), drops


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


@pytest.mark.parametrize(
    ("reader", "name", "content"),
    [
        (qed, "all.jsonl", [QED]),
        *((natural_questions, "all.jsonl", [nq(1, PARAGRAPH, full=full)]) for full in (0, 1)),
        (several_hops, "file.json", [bridge("1", "Paris")]),
        (triviaqa, "qa/file.json", {"Data": [trivia("tc_1")]}),
        (searchqa, "qa/file.json", SEARCHQA),
    ],
)
def test_no_damage_stops_a_reader(tmp_path, reader, name, content):
    for file, data in EVIDENCE.items():
        write(tmp_path / file, data)
    for changed in damaged(content):
        lines = changed if name.endswith("l") else [changed]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        path = write(tmp_path / name, text.encode())
        with suppress(UserError):
            records, _ = read(reader, path.parent if reader is searchqa else path)
            assert len(records) <= 1
