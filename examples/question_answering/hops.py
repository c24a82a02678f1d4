"""HotpotQA, 2WikiMultihopQA and WikiHop: answers by way of several paragraphs.

The first two give the answer's text, which is searched where the supporting facts are first, and
the sentences that support it.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_clusterformer.corpora.question_answering.distant_supervision import (
    in_sentences,
)
from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    Paragraph,
    Record,
    Sentence,
    Unusable,
    convert,
    foreign,
    get,
    json_file,
    json_list,
    sentences_of,
)
from fairseq_clusterformer.corpora.question_answering.squad import question_record


def several_hops(
    path: Path,
    drops: Drops,
    *,
    pool: Path | None = None,
    distractors: int = 8,
    titled: bool = False,
) -> Iterator[Record]:
    """Yield the records of HotpotQA or 2WikiMultihopQA, a JSON list of questions.

    Args:
        pool: a JSON list of ``{title, text}``, where questions without a ``context`` find
            their supporting paragraphs.
        distractors: others of the pool among these, in an order drawn by the question's id.
        titled: each paragraph's title stands in front of its text, as a sentence that may be the
            answer (Ainslie et al. 2020, appendix B).
    """
    items = json_list(path, "HotpotQA's JSON, a list of questions")
    passages = None
    if pool:
        try:
            passages = {passage["title"]: passage["text"] for passage in json_file(pool)}
        except (TypeError, KeyError):
            raise foreign(pool, "a JSON list of {title, text}") from None

    def to_record(item: Mapping) -> Record:
        id_ = get(item, "_id")
        facts = item.get("supporting_facts") or []  # a test set has neither these nor answers
        for fact in facts:
            if not isinstance(fact, list) or len(fact) != 2 or not isinstance(fact[1], int):
                detail = f"{str(fact)[:80]}; allowed: [title, number]"
                raise Unusable("no supporting fact", detail)
        titles = [str(title) for title, _ in facts]
        supporting = None  # of a corpus: its sentences are numbered otherwise
        if "context" in item:
            paragraphs, sentences = _contexts(get(item, "context", list))
            supporting = _supporting(facts, paragraphs, sentences) if facts else None
        elif passages is not None:
            paragraphs = _look_up(id_, list(dict.fromkeys(titles)), passages, distractors)
            sentences = list(sentences_of(paragraphs))
        else:
            raise Unusable("no context", "look it up in a corpus")
        long = tuple(i for i, part in enumerate(paragraphs) if part.title in titles)
        if set(titles) - {part.title for part in paragraphs}:
            raise Unusable("supporting paragraph missing", f"question {id_}: {titles}")
        if titled:
            if supporting is not None:  # behind the titles
                supporting = tuple(n + sentences[n].paragraph + 1 for n in supporting)
            paragraphs, sentences = _titled(paragraphs, sentences)
        texts = [{"title": part.title, "text": part.text} for part in paragraphs]
        found = {"id": id_, "question": get(item, "question"), "paragraphs": texts}
        if "answer" in item:
            found["answers"] = [get(item, "answer")]
        record = question_record(found, drops)
        facts = [sentences[number] for number in supporting or ()]
        own = {fact.paragraph for fact in facts} if titled else ()
        facts += [one for one in sentences if one.paragraph in own and not one.start]
        answers = tuple(a for a in record.answers if a.paragraph in long) or record.answers
        return replace(
            record,
            answers=in_sentences(answers, facts),
            long_answers=long if "answer" in item else (),
            sentences=tuple(sentences),
            supporting=supporting,
            titled=titled,
        )

    return convert(items, to_record, drops)


def _supporting(
    facts: list, paragraphs: Sequence[Paragraph], sentences: Sequence[Sentence]
) -> tuple[int, ...] | None:
    """The sentences that support an answer; None if one is missing, as in a few questions."""
    found = set()
    for title, fact in facts:
        for number, part in enumerate(paragraphs):
            if part.title == str(title):
                own = [i for i, sentence in enumerate(sentences) if sentence.paragraph == number]
                if not 0 <= fact < len(own):
                    return None
                found.add(own[fact])
    return tuple(sorted(found))


def _contexts(context: list) -> tuple[list[Paragraph], list[Sentence]]:
    """The paragraphs that are not empty, and where each of their sentences stands."""
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


def _titled(
    paragraphs: Iterable[Paragraph], sentences: Sequence[Sentence]
) -> tuple[list[Paragraph], list[Sentence]]:
    """Paragraphs whose texts begin with their titles, and these among the sentences."""
    found, places = [], []
    for number, part in enumerate(paragraphs):
        before = len(part.title) + 1
        found.append(replace(part, text=f"{part.title}\n{part.text}"))
        places.append(Sentence(number, 0, len(part.title)))
        own = (sentence for sentence in sentences if sentence.paragraph == number)
        places += [Sentence(number, s.start + before, s.end + before) for s in own]
    return found, places


def _look_up(
    id_: str, titles: list[str], pool: Mapping[str, str], distractors: int
) -> list[Paragraph]:
    draw = random.Random(id_)
    if missing := [title for title in titles if title not in pool]:
        raise Unusable("supporting paragraph missing", f"question {id_}: {missing}")
    chosen = draw.sample(list(pool), min(len(pool), distractors + len(titles)))
    titles += [title for title in chosen if title not in titles][:distractors]
    draw.shuffle(titles)
    return [Paragraph(title, pool[title]) for title in titles]


def wikihop(path: Path, drops: Drops) -> Iterator[Record]:
    """Yield the records of a JSON list of queries, such as "country sms braunschweig", candidates
    and paragraphs (Welbl et al. 2018). Candidates are found by search, as in the paper on ETC."""

    def to_record(item: Mapping) -> Record:
        texts = [text for text in get(item, "supports", list) if text.strip()]
        found = {"id": get(item, "id"), "question": get(item, "query").replace("_", " ")}
        found |= {"paragraphs": texts, "candidates": get(item, "candidates", list)}
        if "answer" in item:
            found["answers"] = [get(item, "answer")]
        return replace(question_record(found, drops), answers=(), yes_no=None)

    return convert(json_list(path, "WikiHop's JSON, a list of queries"), to_record, drops)
