"""Open-domain question answering: Quasar-T, SearchQA and TriviaQA, from their files to records.

Each question comes with passages that a search found. `distant_supervision` finds the answers.
"""

from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from fairseq_clusterformer.corpora.lines import members
from fairseq_clusterformer.corpora.question_answering.distant_supervision import distant_record
from fairseq_clusterformer.corpora.question_answering.records import (
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
    parse_json,
)


def quasar_t(path: Path, drops: Drops, *, contexts: str = "short") -> Iterator[Record]:
    """Yield the records of a file ``questions/SPLIT_questions.json.gz``, in the order of their
    passages, ``contexts/short/SPLIT_contexts.json.gz`` (or ``long``) next to that folder."""
    name = path.name.replace("_questions", "_contexts")
    passages = path.parent.parent / "contexts" / contexts / name
    if "_questions" not in path.name or not passages.is_file():
        raise foreign(path, f"questions/..._questions.json(.gz), and its passages: {passages}")
    questions = {}
    for place, item in json_lines(path, drops):
        with drops.at(place):
            questions[get(item, "uid")] = get(item, "question"), get(item, "answer")

    def to_record(item: Mapping) -> Record:
        id_ = get(item, "uid")
        if id_ not in questions:
            raise Unusable("passages without a question", id_)
        question, answer = questions[id_]
        used.add(id_)
        texts = [text for _score, text in get(item, "contexts", list)]
        passages = [Paragraph("", text) for text in texts if text.strip()]
        return distant_record(id_, question, passages, [answer])

    used = set()
    yield from convert(json_lines(passages, drops), to_record, drops)
    for id_ in questions.keys() - used:
        drops.add(f"{passages}: {id_}", "question without passages")


def searchqa(path: Path, drops: Drops) -> Iterator[Record]:
    """Yield the records of a split: one JSON file an item, in a folder, .tar(.gz) or .zip."""

    def to_record(data: bytes) -> Record:
        item = parse_json(data)
        snippets = [
            Paragraph(str(result.get("title") or ""), result["snippet"])
            for result in get(item, "search_results", list)
            if isinstance(result, Mapping) and str(result.get("snippet") or "").strip()
        ]
        id_ = str(get(item, "id", (int, str)))
        question, answer = get(item, "question"), get(item, "answer")
        return distant_record(id_, question, snippets, [answer])

    def items() -> Items:
        found = False
        for name, data in members(path, lambda name: name.endswith(".json")):
            found = True
            yield f"{path}: {name}", data
        if not found:
            raise foreign(path, "a folder, .tar, .tar.gz or .zip of SearchQA's .json files")

    return convert(items(), to_record, drops)


def triviaqa(path: Path, drops: Drops) -> Iterator[Record]:
    """Yield the records of a file ``qa/*.json``, with ``evidence/`` next to the folder ``qa``.
    Both may be in an archive, as in ``triviaqa-rc.tar.gz/qa/wikipedia-train.json``. All documents
    of a question follow each other; in the domain Web, whose script wants an answer from each,
    each is a record, with the id ``QUESTION--FILE``. Each line is a paragraph."""
    archive = next((part for part in path.parents if part.is_file()), None)
    with TemporaryDirectory() if archive else nullcontext(path.parent.parent) as folder:
        folder, name = Path(folder), f"{path.parent.name}/{path.name}"
        if archive:
            _unpack_some(archive, {name}, folder)
        content = json_file(folder / name)
        if not isinstance(content, Mapping) or not isinstance(content.get("Data"), list):
            raise foreign(path, "TriviaQA's JSON, an object with a list of questions as Data")
        if archive:
            _unpack_some(archive, _wanted(content["Data"]), folder)
        yield from _triviaqa(path, folder, content, drops)


def _unpack_some(archive: Path, names: set[str], folder: Path) -> None:
    def short(name: str) -> str:
        name = str(PurePosixPath(name))
        return name if name in names else name.partition("/")[2]

    for name, data in members(archive, lambda name: short(name) in names):
        target = folder / short(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _evidence(item: Mapping) -> Iterator[tuple[str, str]]:
    """Yield the file and the title of each document of a question."""
    for field, folder in (("EntityPages", "wikipedia"), ("SearchResults", "web")):
        for page in item.get(field) or ():
            name = get(page, "Filename")
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise Unusable("foreign file name", name)
            yield f"evidence/{folder}/{name}", str(page.get("Title") or "")


def _triviaqa(path: Path, folder: Path, content: Mapping, drops: Drops) -> Iterator[Record]:
    apart = content.get("Domain") == "Web"

    def to_record(item_and_number: tuple[Mapping, int]) -> Record:
        item, number = item_and_number
        pages = list(dict(_evidence(item)).items())
        pages = pages[number : number + 1] if apart else pages
        paragraphs = [
            Paragraph(title, line.strip())
            for name, title in pages
            for line in _evidence_text(folder, name).splitlines()
            if line.strip()
        ]
        id_, question = get(item, "QuestionId"), get(item, "Question")
        if apart:
            id_ += "".join(f"--{name.split('/', 2)[2]}" for name, _ in pages)
        if "Answer" not in item:
            return Record(id_, question, tuple(paragraphs), answerable=None)
        answer = get(item, "Answer", dict)
        human = answer.get("HumanAnswers") or []
        names = [get(answer, "Value"), *get(answer, "Aliases", list), *human]
        texts = [*get(answer, "NormalizedAliases", list), *human]
        return distant_record(id_, question, paragraphs, names, texts=texts)

    items = (
        (f"{path}: Data {i}", (item, number))
        for i, item in enumerate(content["Data"])
        for number in range(max(1, len(_wanted([item]))) if apart else 1)
    )
    return convert(items, to_record, drops)


def _wanted(items: list) -> set[str]:
    """Return the names of all evidence; what is wrong with an item is reported later."""
    names = set()
    for item in items:
        with suppress(Unusable, TypeError, AttributeError):
            names |= {name for name, _ in _evidence(item)}
    return names


def _evidence_text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Unusable("not UTF-8", name) from None
    except OSError:
        raise Unusable("no evidence", f"{name} is missing") from None
