"""Corpora of question answering, each a reader from a file as its authors offer it to records.

Every reader takes a path and a `Drops`, reads .gz, .bz2 and .xz too, and yields `Record`s.
SQuAD and QED tell where an answer stands. HotpotQA and 2WikiMultihopQA tell its text: it is
searched in the supporting paragraphs, if not there in all. More are in ``qa_open_domain`` and
``qa_natural_questions``.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from qa_records import (
    Answer,
    Drops,
    Items,
    Paragraph,
    Record,
    Unusable,
    convert,
    foreign,
    get,
    json_file,
    json_lines,
)
from qa_search import distant_record

# SQuAD


def squad(path: Path, drops: Drops) -> Iterator[Record]:
    """Yield the records of SQuAD 1.1 or 2.0, or another corpus in its format, one JSON file."""
    content = json_file(path)
    if not isinstance(content, Mapping) or not isinstance(content.get("data"), list):
        raise foreign(path, "SQuAD's JSON, an object with a list of articles as data")
    return convert(_squad_questions(path, content["data"], drops), _squad_record, drops)


def _squad_questions(path: Path, articles: list, drops: Drops) -> Items:
    for i, article in enumerate(articles):
        place = f"{path}: article {i}"
        try:
            for j, paragraph in enumerate(get(article, "paragraphs", list)):
                place = f"{path}: article {i}, paragraph {j}"
                for question in get(paragraph, "qas", list):
                    id_ = question.get("id") if isinstance(question, Mapping) else None
                    yield f"{place}, id {id_}", (article, paragraph, question)
        except Unusable as error:
            drops.add(place, error.reason, error.detail)


def _squad_record(item: tuple[Mapping, Mapping, Mapping]) -> Record:
    article, paragraph, question = item
    context = Paragraph(str(article.get("title", "")), get(paragraph, "context"))
    impossible = question.get("is_impossible")
    answers = [
        Answer(0, start := get(answer, "answer_start", int), start + len(text), text)
        for answer in get(question, "answers", list)
        for text in [get(answer, "text")]
    ]
    if bool(answers) is bool(impossible):
        detail = f"is_impossible is {impossible}, with {len(answers)} answers"
        raise Unusable("answers and is_impossible disagree", detail)
    return Record(
        id=str(get(question, "id", (str, int))),
        question=get(question, "question"),
        paragraphs=(context,),
        answers=tuple(dict.fromkeys(answers)),
        texts=tuple(dict.fromkeys(answer.text for answer in answers)),
        answerable=not impossible,
    )


# QED: questions of Natural Questions, each with the paragraph that answers it


def qed(path: Path, drops: Drops) -> Iterator[Record]:
    """Yield the records of QED's jsonlines."""
    return convert(json_lines(path, drops), _qed_record, drops)


def _qed_record(item: Mapping) -> Record:
    answers = [
        Answer(0, get(span, "start", int), get(span, "end", int), get(span, "string"))
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


def hotpotqa(path: Path, drops: Drops, *, keep_unfound: bool = False) -> Iterator[Record]:
    """Yield the records of HotpotQA, a JSON list of questions with their paragraphs."""
    return wiki2(path, drops, keep_unfound=keep_unfound)


def wiki2(
    path: Path,
    drops: Drops,
    *,
    corpus: Path | None = None,
    distractors: int = 8,
    keep_unfound: bool = False,
) -> Iterator[Record]:
    """Yield the records of 2WikiMultihopQA, a JSON list like HotpotQA's.

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
        facts = [str(fact[0]) for fact in item.get("supporting_facts") or ()]
        if "context" in item:
            paragraphs = _contexts(get(item, "context", list))
        elif pool is not None:
            paragraphs = _look_up(id_, dict.fromkeys(facts), pool, distractors)
        else:
            raise Unusable("no context", "look it up in a corpus")
        places = [i for i, part in enumerate(paragraphs) if part.title in facts]
        supporting = tuple(places)
        if set(facts) - {part.title for part in paragraphs}:
            raise Unusable("supporting paragraph missing", f"question {id_}: {facts}")
        question = get(item, "question")
        if "answer" not in item:
            return Record(id_, question, tuple(paragraphs), answerable=None)
        answer = get(item, "answer")
        if answer in ("yes", "no"):
            texts = (answer,)
            return Record(id_, question, tuple(paragraphs), (), texts, True, answer, supporting)
        return distant_record(
            id_, question, paragraphs, [answer], keep_unfound=keep_unfound, supporting=supporting
        )

    items = ((f"{path}: item {i}", item) for i, item in enumerate(content))
    return convert(items, to_record, drops)


def _contexts(context: list) -> list[Paragraph]:
    """Return the paragraphs that are not empty, their sentences separated by white space."""
    paragraphs = []
    for part in context:
        if not isinstance(part, list) or len(part) != 2 or not isinstance(part[1], list):
            raise Unusable("no context", f"{str(part)[:80]}; allowed: [title, [sentence, ...]]")
        text = ""
        for sentence in map(str, part[1]):
            blank = text and not text[-1].isspace() and not sentence[:1].isspace()
            text += (" " if blank else "") + sentence
        if text.strip():
            paragraphs.append(Paragraph(str(part[0]), text))
    return paragraphs


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
