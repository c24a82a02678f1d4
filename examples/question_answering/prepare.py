"""Prepare corpora of questions that the papers' tables need for fairseq.

  python examples/question_answering/prepare.py searchqa data-bin/searchqa --source DIR

DEST is what `clusterformer prepare qa` makes, which prepares SQuAD, bAbI and your own questions.
"""

import html
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.cli.prepare.qa import prepare_known
from fairseq_clusterformer.corpora.question_answering import records
from fairseq_clusterformer.corpora.question_answering.build import QuestionCorpus
from fairseq_clusterformer.corpora.question_answering.readers import question_record
from fairseq_clusterformer.corpora.question_answering.records import Record, Unusable, foreign, get

NAME = "python examples/question_answering/prepare.py"
#: in simplified Natural Questions, <P>, </Table>, <Th_colspan="2"> are among the words
_MARKUP = re.compile(r"</?[A-Z][A-Za-z0-9]*(_.*)?>")


def quasar_t(path: Path, drops: records.Drops, *, contexts: str = "short") -> Iterator[Record]:
    """Yield the records of a file ``questions/SPLIT_questions.json.gz``, in the order of their
    passages, ``contexts/short/SPLIT_contexts.json.gz`` (or ``long``) next to that folder."""
    name = path.name.replace("_questions", "_contexts")
    passages = path.parent.parent / "contexts" / contexts / name
    if "_questions" not in path.name or not passages.is_file():
        raise foreign(path, f"questions/..._questions.json(.gz), and its passages: {passages}")
    questions, used = {}, set()
    for place, item in records.json_lines(path, drops):
        with drops.at(place):
            questions[get(item, "uid")] = get(item, "question"), get(item, "answer")

    def to_record(item: Mapping) -> Record:
        id_ = get(item, "uid")
        if id_ not in questions:
            raise Unusable("passages without a question", id_)
        question, answer = questions[id_]
        used.add(id_)
        texts = (text for _score, text in get(item, "contexts", list))
        found = [records.Paragraph("", text) for text in texts if text.strip()]
        return records.distant_record(id_, question, found, [answer])

    yield from records.convert(records.json_lines(passages, drops), to_record, drops)
    for id_ in questions.keys() - used:
        drops.add(f"{passages}: {id_}", "question without passages")


def searchqa(path: Path, drops: records.Drops) -> Iterator[Record]:
    """Yield the records of a split: one JSON file an item, in a folder."""

    def to_record(file: Path) -> Record:
        item = records.parse_json(file.read_bytes())
        id_ = str(get(item, "id", (int, str)))
        results = (each for each in get(item, "search_results", list) if isinstance(each, Mapping))
        results = (each for each in results if str(each.get("snippet") or "").strip())
        shown = ((str(each.get("title") or ""), each["snippet"]) for each in results)
        snippets = [records.Paragraph(*each) for each in shown]
        return records.distant_record(id_, get(item, "question"), snippets, [get(item, "answer")])

    if not (files := sorted(file for file in path.rglob("*.json") if file.is_file())):
        raise foreign(path, "a folder of SearchQA's .json files")
    return records.convert(((str(file), file) for file in files), to_record, drops)


def natural_questions(path: Path, drops: records.Drops) -> Iterator[Record]:
    """Yield the records of a .jsonl(.gz), simplified or in full, or of all of a folder. The
    paragraphs are the long answer candidates on top level, in words without markup; one within
    another (a row of a table) counts as the one around it. A question is answerable if two
    annotators (in the training data, the only one) gave a long answer, or a short one."""
    files = [path] if not path.is_dir() else sorted(path.glob("*.jsonl*"))
    lines = (line for file in files for line in records.json_lines(file, drops))
    return records.convert(lines, _nq_record, drops)


def _nq_record(item: Mapping) -> Record:
    if "document_text" in item:
        tokens = get(item, "document_text").split(" ")
        markup = [bool(_MARKUP.fullmatch(token)) for token in tokens]
    else:
        found = get(item, "document_tokens", list)
        tokens = [get(each, "token") for each in found]
        markup = [get(each, "html_token", bool) for each in found]
    if "document_title" in item:
        title = get(item, "document_title")
    else:
        query = parse_qs(urlsplit(html.unescape(get(item, "document_url"))).query)
        title = query.get("title", [""])[0].replace("_", " ")

    def span_of(given: Mapping) -> tuple[int, int]:  # tokens [start, end)
        start, end = get(given, "start_token", int), get(given, "end_token", int)
        if not 0 <= start < end <= len(tokens):
            problem = f"tokens {start} to {end} of {len(tokens)}"
            raise Unusable("answer not in its context", problem)
        return start, end

    def around(start: int, end: int) -> int:  # the paragraph of tokens
        for index, paragraph in enumerate(paragraphs):
            if paragraph.span[0] <= start and end <= paragraph.span[1]:
                return index
        raise Unusable("answer not in a candidate", f"tokens {start} to {end}")

    def answer(start: int, end: int) -> records.GoldAnswer:
        paragraph = paragraphs[index := around(start, end)]
        own = [k for k, token in enumerate(paragraph.tokens) if start <= token < end]
        if not own:
            raise Unusable("answer without a word", f"tokens {start} to {end}")
        words = paragraph.text.split(" ")
        text = " ".join(words[own[0] : own[-1] + 1])
        first = sum(len(word) + 1 for word in words[: own[0]])
        return records.GoldAnswer(index, first, first + len(text), text)

    paragraphs, long, short, yes_no = [], [], [], []
    for candidate in get(item, "long_answer_candidates", list):
        if get(candidate, "top_level", bool):
            start, end = span_of(candidate)
            numbers = (i for i in range(start, end) if tokens[i] and not markup[i])
            # a word with a blank in it would be taken for two
            numbers = tuple(i for i in numbers if " " not in tokens[i])
            text = " ".join(tokens[i] for i in numbers)
            if text.strip():
                paragraphs.append(records.Paragraph(title, text, (start, end), numbers))
    if not paragraphs:
        raise Unusable("empty document")
    annotations = get(item, "annotations", list) if "annotations" in item else []
    for annotation in annotations:
        if get(get(annotation, "long_answer", dict), "start_token", int) >= 0:
            long.append(around(*span_of(annotation["long_answer"])))
        if answers := [answer(*span_of(x)) for x in get(annotation, "short_answers", list)]:
            short.append(answers)
        if (word := get(annotation, "yes_no_answer").lower()) != "none":
            yes_no.append(word)

    from fairseq_clusterformer.metrics.natural_questions import is_answer  # not for --help

    has_long = is_answer(len(long), len(annotations))
    has_short = is_answer(len(short) + len(yes_no), len(annotations))
    return Record(
        str(get(item, "example_id", (int, str))),
        get(item, "question_text"),
        tuple(paragraphs),
        tuple(dict.fromkeys(chain.from_iterable(short))) if has_short else (),
        answerable=(has_long or has_short) if annotations else None,
        yes_no=max(yes_no, key=yes_no.count) if has_short and yes_no else None,
        long_answers=tuple(dict.fromkeys(long)) if has_long else (),
    )


def qed(path: Path, drops: records.Drops) -> Iterator[Record]:
    """Yield the records of QED's jsonlines."""

    def to_record(item: Mapping) -> Record:
        spans = chain.from_iterable(get(item, "original_nq_answers", list))
        answers = [(get(span, "string"), get(span, "start", int)) for span in spans]
        answers = [{"text": text, "answer_start": start} for text, start in answers]
        if not answers:
            raise Unusable("no answer")
        names = {"title": "title_text", "context": "paragraph_text", "question": "question_text"}
        found = {name: get(item, theirs) for name, theirs in names.items()}
        found["id"] = get(item, "example_id", (int, str))
        return question_record(found | {"answers": answers}, drops)

    return records.convert(records.json_lines(path, drops), to_record, drops)


#: a paragraph's title, its text, and the characters [start, end) of its sentences
Part = tuple[str, str, list[tuple[int, int]]]


def several_hops(
    path: Path, drops: records.Drops, *, pool: Path | None = None, distractors=8, titled=False
) -> Iterator[Record]:
    """Yield the records of HotpotQA or 2WikiMultihopQA, a JSON list of questions. The answer's
    text is searched where the supporting facts are first. Questions without a ``context`` find
    their supporting paragraphs in `pool`, a JSON list of ``{title, text}``, among `distractors`
    drawn by the question's id. If `titled`, each paragraph's title stands in front of its text, as
    a sentence that may be the answer (Ainslie et al. 2020, appendix B)."""
    items = records.json_list(path, "HotpotQA's JSON, a list of questions")
    try:
        listed = records.json_file(pool) if pool else ()
        passages = {each["title"]: each["text"] for each in listed}
    except (TypeError, KeyError):
        raise foreign(pool, "a JSON list of {title, text}") from None

    def to_record(item: Mapping) -> Record:
        id_ = get(item, "_id")
        facts = item.get("supporting_facts") or []  # a test set has neither these nor answers
        for fact in facts:
            if not isinstance(fact, list) or len(fact) != 2 or not isinstance(fact[1], int):
                detail = f"{str(fact)[:80]}; allowed: [title, number]"
                raise Unusable("no supporting fact", detail)
        titles = list(dict.fromkeys(str(title) for title, _ in facts))
        if "context" in item:
            parts = list(_contexts(get(item, "context", list)))
        elif pool:
            parts = _look_up(id_, titles, passages, distractors)
        else:
            raise Unusable("no context", "look it up in a corpus")
        if missing := set(titles) - {title for title, *_ in parts}:
            raise Unusable("supporting paragraph missing", f"question {id_}: {sorted(missing)}")
        # sentences of a corpus are numbered otherwise, and a few questions lack one
        known = bool(facts) and "context" in item
        paragraphs, sentences, supporting = [], [], []
        for number, (title, text, spans) in enumerate(parts):
            own = [fact for name, fact in facts if str(name) == title]
            known &= all(0 <= fact < len(spans) for fact in own)
            supporting += [len(sentences) + titled + fact for fact in own]
            before = len(title) + 1 if titled else 0
            sentences += [[number, 0, len(title)]] * titled
            sentences += [[number, before + start, before + end] for start, end in spans]
            paragraphs.append({"title": title, "text": f"{title}\n{text}" if titled else text})
        found = {"id": id_, "question": get(item, "question"), "paragraphs": paragraphs}
        found |= {"sentences": sentences} | ({"supporting": supporting} if known else {})
        if "answer" in item:
            found["answers"] = [get(item, "answer")]
        record = question_record(found, drops)
        near = [record.sentences[number] for number in record.supporting or ()]
        if titled:
            own = {sentence.paragraph for sentence in near}
            near += [x for x in record.sentences if x.paragraph in own and not x.start]
        long = tuple(number for number, (title, *_) in enumerate(parts) if title in titles)
        answers = tuple(a for a in record.answers if a.paragraph in long) or record.answers
        answers, long = records.in_sentences(answers, near), long if "answer" in item else ()
        return replace(record, answers=answers, long_answers=long, titled=titled)

    return records.convert(items, to_record, drops)


def _contexts(context: list) -> Iterator[Part]:
    """The paragraphs that are not empty."""
    for part in context:
        sentences = part[1] if isinstance(part, list) and len(part) == 2 else None
        if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
            raise Unusable("no context", f"{str(part)[:80]}; allowed: [title, [sentence, ...]]")
        text, spans = "", []
        for sentence in sentences:
            if text and not text[-1].isspace() and not sentence[:1].isspace():
                text += " "
            spans.append((len(text), len(text) + len(sentence)))
            text += sentence
        if text.strip():
            yield str(part[0]), text, spans


def _look_up(id_: str, titles: list[str], pool: Mapping[str, str], distractors: int) -> list[Part]:
    draw = random.Random(id_)
    chosen = draw.sample(list(pool), min(len(pool), distractors + len(titles)))
    others = [title for title in chosen if title not in titles][:distractors]
    known = [title for title in titles if title in pool] + others
    draw.shuffle(known)
    spans = {t: [each[1:] for each in records.sentences_of([pool[t]])] for t in known}
    return [(title, pool[title], spans[title]) for title in known]


def wikihop(path: Path, drops: records.Drops) -> Iterator[Record]:
    """Yield the records of a JSON list of queries, such as "country sms braunschweig", candidates
    and paragraphs (Welbl et al. 2018). Candidates are found by search, as in the paper on ETC."""

    def to_record(item: Mapping) -> Record:
        texts = [text for text in get(item, "supports", list) if text.strip()]
        found = {"id": get(item, "id"), "question": get(item, "query").replace("_", " ")}
        found |= {"paragraphs": texts, "candidates": get(item, "candidates", list)}
        if "answer" in item:
            found["answers"] = [get(item, "answer")]
        return replace(question_record(found, drops), answers=(), yes_no=None)

    items = records.json_list(path, "WikiHop's JSON, a list of queries")
    return records.convert(items, to_record, drops)


_QUASAR = " ".join(f"questions/{part}_questions.json*" for part in ("train", "dev", "test"))
_HOTPOT = "hotpot_train_v1*.json* hotpot_dev_distractor_v1*.json*"
_CONTEXTS = {"contexts": ("the passages (default: short)", {"choices": ("short", "long")})}
_TITLE_TEXT = "a JSON list of {title, text}, for questions without paragraphs"
_POOL = {"corpus PATH": (_TITLE_TEXT, {"dest": "pool"})}
_POOL |= {"distractors N": "paragraphs drawn from --corpus per question (default: 8)"}
CORPORA = {
    "quasar-t": QuestionCorpus(quasar_t, _QUASAR, _CONTEXTS),
    "searchqa": QuestionCorpus(searchqa, "train* val* test*"),
    "natural-questions": QuestionCorpus(natural_questions, "*train*.jsonl* *dev*.jsonl*"),
    "qed": QuestionCorpus(qed, "qed-train*.jsonlines* qed-dev*.jsonlines*"),
    "hotpotqa": QuestionCorpus(several_hops, _HOTPOT, titled=True),
    "2wiki": QuestionCorpus(several_hops, "train.json* dev.json*", _POOL, titled=True),
    "wikihop": QuestionCorpus(wikihop, "train.json* dev.json*"),
}


def main(arguments: Sequence[str]) -> int:
    return prepare_known(NAME, __doc__, CORPORA, arguments)


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
