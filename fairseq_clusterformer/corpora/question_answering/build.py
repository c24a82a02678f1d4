"""From the files of a corpus to the folder that ``fairseq_clusterformer.data.qa`` describes."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from fairseq_clusterformer.data.characters import READ_FORM, composed
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import copy_part, make_folder, make_part

from ..files import checksums, key_of, wrong
from ..parallel import parallel
from ..vocabulary import Vocabulary
from .readers import babi, own_questions
from .records import Drops, Reader, Record, Unusable

#: an option of a reader, and its help
PARAGRAPHS = {"paragraphs N": "paragraphs of a document: the question's own and others near it"}
_BATCH = 5  # records that a worker takes at a time; one may be a book


@dataclass(frozen=True)
class QuestionCorpus:
    """A corpus that a command knows: which reader reads which files."""

    reader: Callable[..., Iterator[Record]]  # of one of its files
    files: str = ""  # patterns of train, valid and test in --source, between blanks
    #: of its reader: each as the command's parser takes it, and its help or, with choices, both
    options: Mapping[str, str | tuple[str, dict]] = field(default_factory=dict)
    few_words: bool = False  # so few that each is a piece of the sentencepiece model
    titled: bool = False  # with --titles, the reader makes sentences of them


CORPORA = {
    "squad1": QuestionCorpus(own_questions, "train-v1.1*.json* dev-v1.1*.json*", PARAGRAPHS),
    "squad2": QuestionCorpus(own_questions, "train-v2.0*.json* dev-v2.0*.json*", PARAGRAPHS),
    "babi": QuestionCorpus(babi, "qa*_train.txt qa*_test.txt", few_words=True),
}


def prepare(
    dest: Path,
    *,
    corpus: str,
    splits: dict[str, list[Path]],
    readers: dict[str, Reader],
    vocabulary: Vocabulary,
    options: dict,
    titles: bool = False,
    workers: int = 1,
    force: bool = False,
) -> dict | None:
    """Prepare the files of `splits`, each with its reader, in the folder `dest`, as `make_folder`
    does; `options` are for ``prepared.json``. Raises UserError for a split without a question."""

    def recipe() -> dict:
        files = {split: checksums(paths) for split, paths in splits.items()}
        form = {"titles": titles, "unicode": READ_FORM, "options": options}
        return {"corpus": corpus, "files": files} | vocabulary.recipe() | form

    def records(split: str, drops: Drops) -> Iterator[Record]:
        return chain.from_iterable(readers[split](path, drops) for path in splits[split])

    def build_model(work: Path, out: Path) -> dict:
        text, words = work / "train.txt", set()
        if vocabulary.train:
            seen, drops = set(), Drops()
            found = records("train", drops)
            texts = (t for r in found for t in (r.question, *(part.text for part in r.paragraphs)))
            with open(text, "w", encoding="utf-8") as file:
                for line in chain.from_iterable(map(str.splitlines, texts)):
                    if (key := key_of(line)) not in seen:
                        seen.add(key)
                        file.write(line + "\n")
            if not seen:
                problem = "train has no question to learn subwords from; allowed: one"
                raise UserError(problem + drops.summary())
        if vocabulary.whole_words:
            words.update(re.findall(r"\w+", composed(text.read_text("utf-8"), READ_FORM)))
        vocabulary.write(out, text, words=sorted(words), kind="reader")
        return {}

    def build_split(split: str, model: Path, _work: Path, out: Path) -> dict:
        from fairseq_clusterformer.data.qa import QAWriter

        from .encode import Encoder

        drops, ids, counts = Drops(keep_unfound=split != "train"), set(), Counter()
        encoder = Encoder(model, titles)
        found = parallel(encoder, records(split, drops), workers, split, batch=_BATCH)
        with QAWriter(out, split, vocab_size=len(encoder.dictionary)) as writer:
            for item in found:
                if isinstance(item, Unusable):
                    drops.add(split, item.reason, item.detail)
                    continue
                # answers are filed by it
                if (id_ := item[1]["id"]) in ids and split != "train":
                    problem = f"the id {id_!r} is of more than one question"
                    raise wrong(split, problem, "an id of its own for each question, or none")
                ids.add(id_)
                writer.write(*item)
                example, length = item[0], len(item[0].document)
                counts.update(questions=1, answers=len(example.answers))
                counts.update(paragraphs=len(example.paragraph_starts), tokens=length)
                counts["longest"] = max(counts["longest"], length)
        if not counts["questions"]:
            raise UserError(f"{corpus}: no question is left in {split}{drops.summary()}")
        if drops.counts or drops.moved:
            print(f"{split}: {drops}")
        counts["dropped"] = drops.counts.total()
        return {"counts": counts, "dropped": drops.examples}

    def build(work: Path, out: Path) -> dict:
        model, _ = make_part(work, "model", build_model)
        copy_part(model, out)
        record = {"splits": {}, "dropped": {}}
        for split in splits:
            part, made = make_part(work, split, partial(build_split, split, model))
            copy_part(part, out)
            record["splits"][split], record["dropped"][split] = made["counts"], made["dropped"]
        return record

    return make_folder(dest, recipe, build, force)


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
        raise wrong(f"documents of {paths[0]}", len(sizes), f"{allowed} split{unusable.summary()}")
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
