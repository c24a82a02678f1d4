"""SQuAD, bAbI, a user's own questions, and splits that are drawn by document."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..files import key_of, raw_lines, wrong
from .records import (
    Drops,
    Items,
    Paragraph,
    Reader,
    Record,
    Sentence,
    Unusable,
    convert,
    distant_record,
    foreign,
    get,
    gold_answer,
    in_sentences,
    json_file,
    json_lines,
    json_list,
    mentions_of,
    sentences_of,
)

FORMATS = "SQuAD's JSON, a JSON list of questions, or .jsonl with a question per line"
_LINES = (".jsonl", ".jsonlines", ".ndjson")


def own_questions(path: Path, drops: Drops, *, paragraphs: int = 1) -> Iterator[Record]:
    """Yield the records of a file of one of the `FORMATS`. Of SQuAD's JSON, so many `paragraphs`
    in a row make a document, of which the first is drawn for each question by its id."""
    if any(suffix in _LINES for suffix in path.suffixes):
        items = json_lines(path, drops)
    else:
        content = json_file(path)
        if isinstance(content, Mapping) and isinstance(content.get("data"), list):
            items = _squad(path, content["data"], paragraphs, drops)
        else:
            items = json_list(path, FORMATS, content)
    numbered = (
        (place, {"id": f"{path.name}:{i}", **item} if isinstance(item, Mapping) else item)
        for i, (place, item) in enumerate(items)
    )
    return convert(numbered, partial(question_record, drops=drops), drops)


def _squad(path: Path, articles: list, paragraphs: int, drops: Drops) -> Items:
    """SQuAD's questions as a user's own."""
    for i, article in enumerate(articles):
        contexts, asked = [], []
        with drops.at(f"{path}: article {i}"):
            parts, title = get(article, "paragraphs", list), str(article.get("title", ""))
            for j, part in enumerate(parts):
                with drops.at(place := f"{path}: article {i}, paragraph {j}"):
                    if not get(part, "context").strip():
                        raise Unusable("empty document")
                    contexts.append({"title": title, "text": part["context"]})
                    own = len(contexts) - 1
                    asked += [(place, own, question) for question in get(part, "qas", list)]
        for place, own, question in asked:
            id_ = question.get("id") if isinstance(question, Mapping) else None
            with drops.at(place := f"{place}, id {id_}"):
                answers, impossible = get(question, "answers", list), question.get("is_impossible")
                if bool(answers) is bool(impossible):
                    detail = f"is_impossible is {impossible}, with {len(answers)} answers"
                    raise Unusable("answers and is_impossible disagree", detail)
                # of so many paragraphs in a row, which the question's own is among
                first = random.Random(str(id_)).randint(max(0, own - paragraphs + 1), own)
                first = max(0, min(first, len(contexts) - paragraphs))
                document = {"paragraphs": contexts[first : first + paragraphs]}
                document |= {"paragraph": own - first, "document": title or f"article {i}"}
                yield place, {**question, **document}


def question_record(item: Mapping, drops: Drops) -> Record:
    """The record of an object as ``clusterformer prepare qa text --help`` describes it. Its
    "paragraph" is that of answers that do not say theirs; "document" names the document."""
    id_, question = str(get(item, "id", (str, int))), get(item, "question")
    title = str(item.get("title") or "")
    parts = get(item, "paragraphs", list) if "paragraphs" in item else [get(item, "context")]
    paragraphs = tuple(
        Paragraph(title, part)
        if isinstance(part, str)
        else Paragraph(str(part.get("title") or title), get(part, "text"))
        for part in parts
    )
    passages = [paragraph.text for paragraph in paragraphs]
    more: dict = {"document": str(item.get("document", ""))}
    if "sentences" in item:
        spans = get(item, "sentences", list)
        for span in spans:
            if not isinstance(span, list) or [type(number) for number in span] != [int] * 3:
                detail = f"{str(span)[:80]}; allowed: [paragraph, start, end]"
                raise Unusable("no sentence", detail)
        more["sentences"] = tuple(Sentence(*span) for span in spans)
    if "supporting" in item:
        more.setdefault("sentences", tuple(sentences_of(passages)))
        supporting = get(item, "supporting", list)
        if not all(type(number) is int for number in supporting):
            raise Unusable("no such sentence", f"supporting is {supporting}; allowed: numbers")
        more["supporting"] = tuple(sorted({*supporting}))
    if "candidates" in item:
        more["candidates"] = tuple(dict.fromkeys(get(item, "candidates", list)))
        more["mentions"] = mentions_of(id_, more["candidates"], passages)
    if "answers" not in item:
        return Record(id_, question, paragraphs, answerable=None, **more)
    answers = list(_answers(item))
    texts = tuple(dict.fromkeys(text for text, _, _ in answers))
    if "candidates" in more and texts and not {*texts} & {*more["candidates"]}:
        raise Unusable("answer is no candidate", f"{texts[0]!r} of question {id_}")
    more |= {"texts": texts, "answerable": bool(answers)}
    starts = [start for _, _, start in answers]
    if texts in (("yes",), ("no",)) and starts[0] is None:
        return Record(id_, question, paragraphs, yes_no=texts[0], **more)
    if None in starts:
        return replace(distant_record(id_, question, paragraphs, texts), **more)
    gold = [gold_answer(paragraphs, n, start, text, drops) for text, n, start in answers]
    if any(not 0 <= answer.paragraph < len(paragraphs) for answer in gold):
        raise Unusable("answer not in its context", f"{len(paragraphs)} paragraphs, {gold[0]}")
    long = sorted({answer.paragraph for answer in gold}) if len(paragraphs) > 1 else ()
    gold = tuple(dict.fromkeys(gold))
    return Record(id_, question, paragraphs, gold, long_answers=tuple(long), **more)


def _answers(item: Mapping) -> Iterator[tuple[str, int, int | None]]:
    """Each answer's text, paragraph, and place there."""
    entries = get(item, "answers", (list, dict))
    if isinstance(entries, dict):  # two lists, as Hugging Face has them
        columns = get(entries, "text", list), get(entries, "answer_start", list)
        if len({*map(len, columns)}) > 1:
            raise Unusable("malformed", "text and answer_start have different lengths")
        entries = [{"text": text, "answer_start": at} for text, at in zip(*columns, strict=True)]
    for entry in entries:
        entry = {"text": entry} if isinstance(entry, str) else entry
        start = get(entry, "answer_start", int) if "answer_start" in entry else None
        source = entry if "paragraph" in entry else {"paragraph": item.get("paragraph", 0)}
        yield get(entry, "text"), get(source, "paragraph", int), start


def babi(path: Path, drops: Drops) -> Iterator[Record]:
    """Yield the records of a task's file (Weston et al. 2015): each question with what its story
    said before it. An answer other than yes and no is searched in the sentences that support it,
    then in the whole story."""

    def to_record(item: Mapping) -> Record:
        text, sentences, numbers = "", [], {}
        for number, sentence in item["told"].items():
            text += " " if text else ""
            numbers[number] = len(sentences)
            sentences.append([0, len(text), len(text) + len(sentence)])
            text += sentence
        if missing := [number for number in item["facts"] if number not in numbers]:
            raise Unusable("no such line", f"supporting line {missing[0]}")
        supporting = [numbers[number] for number in item["facts"]]
        found = {"context": text, "sentences": sentences, "supporting": supporting}
        record = question_record({**item, **found}, drops)
        facts = [record.sentences[number] for number in record.supporting]
        return replace(record, answers=in_sentences(record.answers, facts))

    return convert(_babi_lines(path), to_record, drops)


def _babi_lines(path: Path) -> Items:
    """A line is a number and a sentence, or a number, a question, its answer and the numbers of
    the supporting lines, between tabs; number 1 begins a story."""
    name, story, told, questions = path.name.partition(".")[0], 0, {}, 0
    for line_number, line in enumerate(raw_lines(path), 1):
        number, _, text = line.decode().rstrip().partition(" ")
        if not (number.isdecimal() and text):
            raise foreign(path, "lines of bAbI, a number and a sentence")
        text, *rest = map(str.strip, text.split("\t"))
        if number == "1":
            story, told = story + 1, {}
        if not rest:
            told[number] = text
            continue
        questions += 1
        item = {"id": f"{name}-{questions}", "document": f"{name} story {story}"}
        item |= {"question": text, "answers": [rest[0]], "told": dict(told)}
        item["facts"] = rest[1].split() if rest[1:] else []
        yield f"{path}: line {line_number:,}", item


def draw_documents(
    reader: Reader, paths: Sequence[Path], shares: Mapping[str, float], seed: int
) -> dict[str, Reader]:
    """Return a reader of the same files for train and for each split of `shares` (of all
    questions). Documents are drawn, as long as each brings a split closer to its share; by its
    title and its text, none is in two splits. Raises UserError if there are too few."""
    unusable = Drops()
    sizes, document_of = _documents(r for path in paths for r in reader(path, unusable))
    if len(sizes) <= len(shares):
        allowed = f"more than {len(shares)}, to draw {' and '.join(shares)} from, or files of each"
        allowed += f" split; {unusable.summary()}" if unusable.counts else " split"
        raise wrong(f"documents of {paths[0]}", len(sizes), allowed)
    order, drawn, total = sorted(sizes), {}, sum(sizes.values())
    random.Random(seed).shuffle(order)
    for others, (split, share) in zip(range(len(shares), 0, -1), shares.items(), strict=True):
        wanted, taken = share * total, []
        for document in order[:-others]:  # the other splits get one at least
            if sizes[document] < 2 * wanted:
                taken.append(document)
                wanted -= sizes[document]
        drawn |= dict.fromkeys(taken or [min(order, key=sizes.get)], split)
        order = [document for document in order if document not in drawn]

    def read(path: Path, drops: Drops, *, split: str) -> Iterator[Record]:
        # what is left out is reported once, with train
        own = drops if split == "train" else Drops(keep_unfound=True)
        return (r for r in reader(path, own) if drawn.get(document_of(r), "train") == split)

    return {split: partial(read, split=split) for split in ("train", *shares)}


def _documents(records: Iterable[Record]) -> tuple[Counter[str], Callable[[Record], str]]:
    """The questions of each document, by title or equal texts, and what names a record's."""
    questions, sizes, other_name, first_of_text = Counter(), Counter(), {}, {}

    def name_and_text(record: Record) -> tuple[str, str]:
        titles = {paragraph.title for paragraph in record.paragraphs}
        only = titles.pop() if len(titles) == 1 else ""
        text = "\n".join(paragraph.text for paragraph in record.paragraphs)
        return record.document or only or text, text

    def root(name: str) -> str:
        while (other := other_name.get(name, name)) != name:
            name = other
        return name

    for record in records:
        name, text = name_and_text(record)
        questions[name] += 1
        other_name[root(name)] = root(first_of_text.setdefault(key_of(text), name))
    for name, number in questions.items():
        sizes[root(name)] += number
    return sizes, lambda record: root(name_and_text(record)[0])
