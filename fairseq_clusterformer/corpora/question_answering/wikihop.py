"""WikiHop (Welbl et al. 2018): which of some candidates is the answer."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from fairseq_clusterformer.corpora.question_answering.distant_supervision import mentions_of
from fairseq_clusterformer.corpora.question_answering.records import (
    Drops,
    Paragraph,
    Record,
    Unusable,
    convert,
    foreign,
    get,
    json_file,
)


def wikihop(path: Path, drops: Drops, *, keep_unfound: bool = False) -> Iterator[Record]:
    """Yield the records of a JSON list of queries, candidates and supporting paragraphs.

    A query is a relation and what stands in it, such as "country sms braunschweig". Where
    candidates stand in the paragraphs is found by search, as in the paper on ETC.

    Args:
        keep_unfound: keep questions with a candidate that stands nowhere.
    """
    content = json_file(path)
    if not isinstance(content, list):
        raise foreign(path, "WikiHop's JSON, a list of queries")

    def to_record(item: Mapping) -> Record:
        id_ = get(item, "id")
        paragraphs = tuple(Paragraph("", t) for t in get(item, "supports", list) if t.strip())
        candidates = tuple(dict.fromkeys(get(item, "candidates", list)))
        mentions = mentions_of(id_, candidates, paragraphs, keep_unfound=keep_unfound)
        known = "answer" in item
        if known and get(item, "answer") not in candidates:
            raise Unusable("answer is no candidate", f"{item['answer']!r} of question {id_}")
        return Record(
            id=id_,
            question=get(item, "query").replace("_", " "),
            paragraphs=paragraphs,
            texts=(item["answer"],) if known else (),
            answerable=True if known else None,
            candidates=candidates,
            mentions=mentions,
        )

    items = ((f"{path}: item {i}", item) for i, item in enumerate(content))
    return convert(items, to_record, drops)
