"""Readers of questions: SQuAD's, a user's own, bAbI's, and those that are made from plain text."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairseq_clusterformer.data.characters import compiled, sentences

from ..files import key_of, raw_lines
from ..texts import documents
from . import records
from .records import Drops, Items, Paragraph, Record, Sentence, Unusable, get

FORMATS = "SQuAD's JSON, a JSON list of questions, or .jsonl with a question per line"
_LINES = (".jsonl", ".jsonlines", ".ndjson")


def own_questions(path: Path, drops: Drops, *, paragraphs: int = 1) -> Iterator[Record]:
    """Yield the records of a file of one of the `FORMATS`. Of SQuAD's JSON, so many `paragraphs`
    in a row make a document, of which the first is drawn for each question by its id."""
    if any(suffix in _LINES for suffix in path.suffixes):
        items = records.json_lines(path, drops)
    else:
        content = records.json_file(path)
        if isinstance(content, Mapping) and isinstance(content.get("data"), list):
            items = _squad(path, content["data"], paragraphs, drops)
        else:
            items = records.json_list(path, FORMATS, content)
    numbered = (
        (place, {"id": f"{path.name}:{i}", **item} if isinstance(item, Mapping) else item)
        for i, (place, item) in enumerate(items)
    )
    return records.convert(numbered, partial(question_record, drops=drops), drops)


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
    parts = ({"text": part} if isinstance(part, str) else part for part in parts)
    named = ((str(part.get("title") or title), get(part, "text")) for part in parts)
    paragraphs = tuple(Paragraph(*part) for part in named)
    passages = [paragraph.text for paragraph in paragraphs]
    more: dict = {"document": str(item.get("document", ""))}
    if "sentences" in item:
        spans = get(item, "sentences", list)
        if bad := [s for s in spans if not isinstance(s, list) or [*map(type, s)] != [int] * 3]:
            detail = f"{str(bad[0])[:80]}; allowed: [paragraph, start, end]"
            raise Unusable("no sentence", detail)
        more["sentences"] = tuple(Sentence(*span) for span in spans)
    if "supporting" in item:
        more.setdefault("sentences", tuple(records.sentences_of(passages)))
        supporting = get(item, "supporting", list)
        if not all(type(number) is int for number in supporting):
            raise Unusable("no such sentence", f"supporting is {supporting}; allowed: numbers")
        more["supporting"] = tuple(sorted({*supporting}))
    if "candidates" in item:
        more["candidates"] = tuple(dict.fromkeys(get(item, "candidates", list)))
        more["mentions"] = records.mentions_of(id_, more["candidates"], passages)
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
        return replace(records.distant_record(id_, question, paragraphs, texts), **more)
    gold = [records.gold_answer(paragraphs, n, start, text, drops) for text, n, start in answers]
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
    """Yield the records of a task's file (Weston et al. 2015): each question with its story.
    An answer but yes and no is searched in the sentences that support it, then in all of them."""

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
        return replace(record, answers=records.in_sentences(record.answers, facts))

    return records.convert(_babi_lines(path), to_record, drops)


def _babi_lines(path: Path) -> Items:
    """A line is a number and a sentence, or a number, a question, its answer and the numbers of
    the supporting lines, between tabs; number 1 begins a story."""
    name, story, told, questions = path.name.partition(".")[0], 0, {}, 0
    for line_number, line in enumerate(raw_lines(path), 1):
        number, _, text = line.decode().rstrip().partition(" ")
        if not (number.isdecimal() and text):
            raise records.foreign(path, "lines of bAbI, a number and a sentence")
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


# Cloze questions, to train a reader before it has real ones: "what" is in the place of a name or a
# number that stands elsewhere in the passage too; the rest of the passage is the document

MASK = "what"
_SHORTEST, _LONGEST = 40, 200  # words of a passage: a line, or some that follow each other
_ASKED = range(6, 31)  # words of a question
_NAME = r"\p{Lu}[\p{L}\p{M}]+(?:[ -]\p{Lu}[\p{L}\p{M}]+){0,3}|\p{N}+(?:[.,]\p{N}+)*"
_NAME = rf"(?<![\p{{L}}\p{{N}}])(?:{_NAME})(?![\p{{L}}\p{{N}}])"


def cloze_questions(
    path: Path,
    drops: Drops,
    *,
    document_separator: str | None = None,
    per_passage: int = 4,
    seed: int = 1,
) -> Iterator[Record]:
    """Yield the records of a file of plain text, at most `per_passage` from a passage, always the
    same ones. Raises UserError for a separator that is not in the file, or another encoding."""

    def items() -> Items:
        for number, (_, lines) in enumerate(documents([path], document_separator)):
            title, text = "", (line.decode().strip() for line in lines)
            for place, passage in enumerate(passages(text)):
                title = title or _digest(passage)
                draw = random.Random(f"{seed} {passage}")
                for question, context, answer in questions(passage, draw)[:per_passage]:
                    names = compiled(_NAME).finditer(context)
                    places = (name.start() for name in names if name[0] == answer)
                    item = {"id": _digest(f"{question}\n{context}"), "question": question}
                    item["answers"] = [{"text": answer, "answer_start": start} for start in places]
                    item |= {"context": context, "document": title}
                    yield f"{path}: document {number}, passage {place}", item

    return records.convert(items(), partial(question_record, drops=drops), drops)


def passages(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, joined by blanks where they are short; what is too long is left out."""
    joined, count = [], 0
    for line in lines:
        words = len(line.split())
        if count + words > _LONGEST:
            joined, count = [], 0
        if words and words <= _LONGEST:
            joined.append(line)
            count += words
        if count >= _SHORTEST:
            yield " ".join(joined)
            joined, count = [], 0


def questions(passage: str, draw: random.Random) -> list[tuple[str, str, str]]:
    """Every question, document and answer of a passage, no answer twice, in drawn order."""
    parts = [passage[start:end] for start, end in sentences(passage)]
    places = defaultdict(list)  # of an answer: sentences, and where it begins there
    for number, part in enumerate(parts):
        for match in compiled(_NAME).finditer(part):
            # a word may have its capital from the sentence's beginning
            if match.start() or " " in match[0] or match[0][0].isdecimal():
                places[match[0]].append((number, match.start()))
    found = []
    for answer, where in places.items():
        times = Counter(number for number, _ in where)
        fit = {n for n in times if times[n] == 1 and len(parts[n].split()) in _ASKED}
        if len(times) > 1 and fit:
            number, start = draw.choice([place for place in where if place[0] in fit])
            question = parts[number][:start] + MASK + parts[number][start + len(answer) :]
            rest = " ".join(parts[:number] + parts[number + 1 :])
            found.append((question, rest, answer))
    draw.shuffle(found)
    return found


def _digest(text: str) -> str:
    return f"{key_of(text):016x}"
