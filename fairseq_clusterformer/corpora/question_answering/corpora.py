"""Corpora of question answering: a reader for each, from its authors' files to records.

Every reader takes a path and a `Drops`, unpacks .gz, .bz2 and .xz, and yields `Record`s. SQuAD and
QED say where in one paragraph an answer stands; other paragraphs can be put around it to make a
long document. HotpotQA and 2WikiMultihopQA give the answer's text, which is searched in the
supporting paragraphs first, then in all, and the sentences that support it. More corpora are in
`babi`, `natural_questions`, `open_domain` and `wikihop`.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairseq_clusterformer.corpora.question_answering.distant_supervision import (
    distant_record,
    in_sentences,
)
from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    GoldAnswer,
    Items,
    Paragraph,
    Record,
    Sentence,
    Unusable,
    convert,
    foreign,
    get,
    gold_answer,
    json_file,
    json_lines,
    sentences_of,
)

# SQuAD


def squad(path: Path, drops: Drops, *, paragraphs: int = 1) -> Iterator[Record]:
    """Yield the records of SQuAD 1.1 or 2.0, or another corpus in its format, one JSON file.

    Args:
        paragraphs: how many paragraphs of the article make a document. They follow each other
            and include the question's own; the first one is drawn for each question by its id.
    """
    content = json_file(path)
    if not isinstance(content, Mapping) or not isinstance(content.get("data"), list):
        raise foreign(path, "SQuAD's JSON, an object with a list of articles as data")
    return squad_records(path, content["data"], drops, paragraphs)


def squad_records(path: Path, articles: list, drops: Drops, paragraphs: int) -> Iterator[Record]:
    """Yield the records of SQuAD's list of articles; see `squad`."""
    questions = _squad_questions(path, articles, drops)
    return convert(questions, partial(_squad_record, paragraphs=paragraphs, drops=drops), drops)


def _squad_questions(path: Path, articles: list, drops: Drops) -> Items:
    for i, article in enumerate(articles):
        contexts, asked = [], []
        with drops.at(f"{path}: article {i}"):
            paragraphs, title = get(article, "paragraphs", list), str(article.get("title", ""))
            for j, paragraph in enumerate(paragraphs):
                with drops.at(place := f"{path}: article {i}, paragraph {j}"):
                    if not get(paragraph, "context").strip():
                        raise Unusable("empty document")
                    contexts.append(Paragraph(title, paragraph["context"]))
                    own = len(contexts) - 1
                    asked += [(place, own, question) for question in get(paragraph, "qas", list)]
        for place, own, question in asked:
            id_ = question.get("id") if isinstance(question, Mapping) else None
            yield f"{place}, id {id_}", (contexts, own, question, title or f"article {i}")


def _squad_record(
    item: tuple[Sequence[Paragraph], int, Mapping, str], *, paragraphs: int, drops: Drops
) -> Record:
    contexts, own, question, document = item
    impossible = question.get("is_impossible")
    id_ = str(get(question, "id", (str, int)))
    first, own = _around(id_, own, len(contexts), paragraphs)
    contexts = contexts[first : first + paragraphs]
    answers = [
        gold_answer(contexts, own, get(answer, "answer_start", int), get(answer, "text"), drops)
        for answer in get(question, "answers", list)
    ]
    if bool(answers) is bool(impossible):
        detail = f"is_impossible is {impossible}, with {len(answers)} answers"
        raise Unusable("answers and is_impossible disagree", detail)
    return Record(
        id=id_,
        question=get(question, "question"),
        paragraphs=tuple(contexts),
        answers=tuple(dict.fromkeys(answers)),
        texts=tuple(dict.fromkeys(answer.text for answer in answers)),
        answerable=not impossible,
        long_answers=(own,) if answers and len(contexts) > 1 else (),
        document=document,
    )


def _around(id_: str, own: int, there: int, wanted: int) -> tuple[int, int]:
    """Return the first of `wanted` paragraphs in a row, and the place of the question's own."""
    first = random.Random(id_).randint(max(0, own - wanted + 1), own)
    first = max(0, min(first, there - wanted))
    return first, own - first


# QED: questions of Natural Questions, each with the paragraph that answers it


def qed(path: Path, drops: Drops, *, paragraphs: int = 1) -> Iterator[Record]:
    """Yield the records of QED's jsonlines.

    Args:
        paragraphs: of a document: the question's own, and those of other questions, in an order
            drawn for each question by its id.
    """
    records = convert(json_lines(path, drops), _qed_record, drops)
    return records if paragraphs == 1 else _among_others(list(records), paragraphs)


def _among_others(records: list[Record], wanted: int) -> Iterator[Record]:
    """Yield records of one paragraph each, with as many others' paragraphs as are wanted."""
    pool = list(dict.fromkeys(record.paragraphs[0] for record in records))
    for record in records:
        draw = random.Random(record.id)
        (own,) = record.paragraphs
        chosen = draw.sample(pool, min(wanted, len(pool)))
        chosen = [own, *(other for other in chosen if other != own)][:wanted]
        draw.shuffle(chosen)
        place = chosen.index(own)
        yield replace(
            record,
            paragraphs=tuple(chosen),
            answers=tuple(replace(answer, paragraph=place) for answer in record.answers),
            long_answers=(place,),
        )


def _qed_record(item: Mapping) -> Record:
    answers = [
        GoldAnswer(0, get(span, "start", int), get(span, "end", int), get(span, "string"))
        for annotator in get(item, "original_nq_answers", list)
        for span in annotator
    ]
    if not answers:
        raise Unusable("no answer")
    return Record(
        id=str(get(item, "example_id", (int, str))),
        question=get(item, "question_text"),
        paragraphs=(Paragraph(get(item, "title_text"), get(item, "paragraph_text")),),
        answers=tuple(dict.fromkeys(answers)),
        texts=tuple(dict.fromkeys(answer.text for answer in answers)),
    )


# Several hops: answers by way of several paragraphs


def several_hops(
    path: Path,
    drops: Drops,
    *,
    corpus: Path | None = None,
    distractors: int = 8,
    keep_unfound: bool = False,
) -> Iterator[Record]:
    """Yield the records of HotpotQA or 2WikiMultihopQA, a JSON list of questions.

    Args:
        corpus: a JSON list of ``{title, text}``, where questions without a ``context`` find
            their supporting paragraphs.
        distractors: how many others of the corpus are put among these, in an order drawn for
            each question by its id, always the same.
    """
    content = json_file(path)
    if not isinstance(content, list):
        raise foreign(path, "HotpotQA's JSON, a list of questions")
    pool = _read_corpus(corpus) if corpus else None

    def to_record(item: Mapping) -> Record:
        id_ = get(item, "_id")
        # A test set has neither supporting facts nor answers.
        facts = [_fact(fact) for fact in item.get("supporting_facts") or ()]
        titles = [title for title, _ in facts]
        if "context" in item:
            paragraphs, sentences = _contexts(get(item, "context", list))
        elif pool is not None:
            paragraphs = _look_up(id_, dict.fromkeys(titles), pool, distractors)
            sentences = list(sentences_of(paragraphs))
        else:
            raise Unusable("no context", "look it up in a corpus")
        long = tuple(i for i, part in enumerate(paragraphs) if part.title in titles)
        if set(titles) - {part.title for part in paragraphs}:
            raise Unusable("supporting paragraph missing", f"question {id_}: {titles}")
        question, known = get(item, "question"), "answer" in item
        supporting = None  # of a corpus: its sentences are numbered otherwise
        if facts and "context" in item:
            supporting = _supporting(facts, paragraphs, sentences)
        structure = {"sentences": tuple(sentences), "supporting": supporting}
        if not known:
            return Record(id_, question, tuple(paragraphs), answerable=None, **structure)
        answer = get(item, "answer")
        if answer in ("yes", "no"):
            return Record(
                id_, question, tuple(paragraphs), (), (answer,), True, answer, long, **structure
            )
        record = distant_record(
            id_, question, paragraphs, [answer], keep_unfound=keep_unfound, supporting=long
        )
        facts = [sentences[number] for number in supporting or ()]
        return replace(record, answers=in_sentences(record.answers, facts), **structure)

    items = ((f"{path}: item {i}", item) for i, item in enumerate(content))
    return convert(items, to_record, drops)


def _fact(fact: list) -> tuple[str, int]:
    """Return the title of a supporting paragraph and the number of its sentence."""
    if not isinstance(fact, list) or len(fact) != 2 or not isinstance(fact[1], int):
        raise Unusable("no supporting fact", f"{str(fact)[:80]}; allowed: [title, number]")
    return str(fact[0]), fact[1]


def _supporting(
    facts: Iterable[tuple[str, int]],
    paragraphs: Sequence[Paragraph],
    sentences: Sequence[Sentence],
) -> tuple[int, ...] | None:
    """Return the indices of the sentences that support an answer; None if a paragraph has no
    such sentence, as in a few questions."""
    own = [
        [i for i, sentence in enumerate(sentences) if sentence.paragraph == number]
        for number in range(len(paragraphs))
    ]
    found = set()
    for title, fact in facts:
        for number, part in enumerate(paragraphs):
            if part.title == title:
                if not 0 <= fact < len(own[number]):
                    return None
                found.add(own[number][fact])
    return tuple(sorted(found))


def _contexts(context: list) -> tuple[list[Paragraph], list[Sentence]]:
    """Return the paragraphs that are not empty, their sentences separated by white space, and
    where each sentence stands."""
    paragraphs, places = [], []
    for part in context:
        sentences = part[1] if isinstance(part, list) and len(part) == 2 else None
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise Unusable("no context", f"{str(part)[:80]}; allowed: [title, [sentence, ...]]")
        text, spans = "", []
        for sentence in sentences:
            blank = text and not text[-1].isspace() and not sentence[:1].isspace()
            text += " " if blank else ""
            spans.append((len(text), len(text) + len(sentence)))
            text += sentence
        if text.strip():
            places += [Sentence(len(paragraphs), *span) for span in spans]
            paragraphs.append(Paragraph(str(part[0]), text))
    return paragraphs, places


def _read_corpus(path: Path) -> dict[str, str]:
    content = json_file(path)
    try:
        return {passage["title"]: passage["text"] for passage in content}
    except (TypeError, KeyError):
        raise foreign(path, "a JSON list of {title, text}") from None


def _look_up(
    id_: str, titles: Iterable[str], pool: Mapping[str, str], distractors: int
) -> list[Paragraph]:
    draw = random.Random(id_)
    titles = list(titles)
    if missing := [title for title in titles if title not in pool]:
        raise Unusable("supporting paragraph missing", f"question {id_}: {missing}")
    chosen = draw.sample(list(pool), min(len(pool), distractors + len(titles)))
    titles += [title for title in chosen if title not in titles][:distractors]
    draw.shuffle(titles)
    return [Paragraph(title, pool[title]) for title in titles]
