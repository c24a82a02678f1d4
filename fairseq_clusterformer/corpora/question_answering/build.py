"""From the files of a corpus to the folder that ``fairseq_clusterformer.data.qa`` describes.

The model of subwords and each file become a folder in ``DEST.partial/parts``. An interrupted run
goes on with those that are complete.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from fairseq_clusterformer.data.unicode import READ_FORM, composed
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import copy_part, make_folder, make_part

from ..download import checksums
from ..lines import wrong
from ..splits import SeenTexts
from ..vocabulary import Vocabulary, copy_model
from .babi import babi
from .records import Drops, Reader, Record
from .squad import squad

#: an option of a reader, and its help
PARAGRAPHS = {"paragraphs N": "paragraphs of a document: the question's own and others near it"}


@dataclass(frozen=True)
class QuestionCorpus:
    """A corpus that a command knows: which reader reads which files."""

    reader: Callable[..., Iterator[Record]]  # of one of its files
    files: str = ""  # patterns of train, valid and test in --source, between blanks
    #: of its reader: each as the command's parser takes it, and its help or, with choices, both
    options: Mapping[str, str | tuple[str, dict]] = field(default_factory=dict)
    few_words: bool = False  # so few that each is a piece of the sentencepiece model
    archive: str = ""  # a pattern of the archive that the files may be in
    titled: bool = False  # with --titles, the reader makes sentences of them

    @property
    def patterns(self) -> list[str]:
        return self.files.split()

    def find(self, source: Path, pattern: str) -> list[Path]:
        """Return the files of a pattern in `source`, a folder in it, or the corpus's archive."""
        if found := sorted(source.glob(pattern)) or sorted(source.glob(f"*/{pattern}")):
            return found
        archives = sorted(source.glob(self.archive)) if self.archive else []
        return [path / pattern for path in archives[:1]]


CORPORA = {
    "squad1": QuestionCorpus(squad, "train-v1.1*.json* dev-v1.1*.json*", PARAGRAPHS),
    "squad2": QuestionCorpus(squad, "train-v2.0*.json* dev-v2.0*.json*", PARAGRAPHS),
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
    does. With `titles`, each paragraph's title stands before its text; `options` are of the
    corpus, for ``prepared.json``. Raises UserError for a file without a question of use."""

    def recipe() -> dict:
        return {
            "corpus": corpus,
            "files": {split: checksums(paths) for split, paths in splits.items()},
            **vocabulary.recipe(),
            "titles": titles,
            "unicode": READ_FORM,
            "options": options,
        }

    def build_model(work: Path, out: Path) -> dict:
        if vocabulary.train:
            records = chain.from_iterable(readers["train"](p, Drops()) for p in splits["train"])
            _train(records, vocabulary, work / "train.txt", out)
        copy_model(vocabulary, out, kind="reader", form=READ_FORM)
        return {}

    def build_part(split: str, path: Path, model: Path, _work: Path, out: Path) -> dict:
        from .encode import write_file

        how = {"read": readers[split], "model": model, "titles": titles, "workers": workers}
        counts, drops = write_file(path, out, split, **how)
        record = {"counts": counts, "dropped": drops.counts}
        return record | {"examples": drops.examples, "moved": drops.moved}

    def build(work: Path, out: Path) -> dict:
        model, _ = make_part(work, "model", build_model)
        copy_part(model, out)
        counts, dropped = {}, {}
        for split, paths in splits.items():
            made = {}
            for i, path in enumerate(paths):
                build_file = functools.partial(build_part, split, path, model)
                part, record = make_part(work, f"{split}-{i}", build_file)
                made[part] = record
            counts[split], drops = _join(made, out, split)
            if not counts[split]["questions"]:
                problem = f"{corpus}: no question is left in {split}"
                raise UserError(f"{problem}; {drops.summary()}" if drops.counts else problem)
            if split != "train" and len(paths) > 1:
                _check_ids(out, split)
            dropped[split] = drops.examples
            if drops.counts or drops.moved:
                print(f"{split}: {drops}")
        return {"splits": counts, "dropped": dropped}

    return make_folder(dest, recipe, build, force)


def _join(parts: dict[Path, dict], out: Path, split: str) -> tuple[dict[str, int], Drops]:
    from fairseq_clusterformer.data.qa import QAWriter
    from fairseq_clusterformer.data.stored import load_dictionary

    from .encode import COUNTS

    drops = Drops()
    with QAWriter(out, split, vocab_size=len(load_dictionary(out))) as writer:
        for folder, record in parts.items():
            writer.append(folder, split)
            drops.counts.update(record["dropped"])
            drops.moved += record.get("moved", 0)
            for reason, examples in record["examples"].items():
                drops.examples[reason] += examples
    of_parts = [record["counts"] for record in parts.values()]
    counts = {name: sum(count[name] for count in of_parts) for name in COUNTS}
    counts["longest"] = max(count["longest"] for count in of_parts)
    return counts | {"dropped": drops.counts.total()}, drops


def _check_ids(out: Path, split: str) -> None:
    """Refuse two questions of a split with the same id: answers are filed by it."""
    seen = SeenTexts()
    with open(out / f"{split}.jsonl", encoding="utf-8") as file:
        ids = (json.loads(line)["id"] for line in file)
        shared = list(dict.fromkeys(id_ for id_ in ids if not seen.add(id_)))
    if shared:
        problem = f"{len(shared):,} ids are of more than one question, {shared[0]!r} first"
        raise wrong(split, problem, "an id of its own for each question, or none")


def _train(records: Iterable[Record], vocabulary: Vocabulary, text: Path, out: Path) -> None:
    seen, words = SeenTexts(), set()
    texts = (t for r in records for t in (r.question, *(part.text for part in r.paragraphs)))
    with open(text, "w", encoding="utf-8") as file:
        for line in filter(seen.add, chain.from_iterable(map(str.splitlines, texts))):
            file.write(line + "\n")
            if vocabulary.whole_words:
                words.update(re.findall(r"\w+", composed(line, READ_FORM)))
    if not text.stat().st_size:
        raise UserError("train has no question to learn subwords from; allowed: one or more")
    vocabulary.train_model(text, out, words=sorted(words), form=READ_FORM)
