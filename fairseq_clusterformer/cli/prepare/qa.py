"""Question answering data for fairseq: long documents, answers as spans of tokens.

DEST becomes a folder as ``fairseq_clusterformer/data/qa.py`` describes it: questions, documents
(all paragraphs, each led by ``<s>``), spans, the characters of every token and the texts, for
train, valid and test; ``prepared.json`` tells what was asked for, what is in each split, and what
was dropped and why. DEST appears when it is complete: run the same command again after an
interruption, and it goes on with the first file that is not finished (until then, DEST.parts holds
those that are). Once DEST is there, the command does nothing.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, prepare_folder, whole_number
from fairseq_clusterformer.corpora.question_answering.build import Vocabulary, prepare
from fairseq_clusterformer.corpora.question_answering.corpora import hotpotqa, qed, squad, wiki2
from fairseq_clusterformer.corpora.question_answering.natural_questions import natural_questions
from fairseq_clusterformer.corpora.question_answering.open_domain import (
    quasar_t,
    searchqa,
    triviaqa,
)
from fairseq_clusterformer.errors import UserError

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class _Corpus:
    """A corpus as its command offers it.

    Args:
        reader: of one of its files.
        files: patterns of the names of train, valid and test in --source.
        distant: it tells answers as texts only, which may not be found.
        options: of its reader, by the names of the command's options.
    """

    reader: Callable
    files: tuple[str, ...]
    distant: bool = False
    options: tuple[str, ...] = ()


CORPORA = {
    "squad1": _Corpus(squad, ("train-v1.1*.json*", "dev-v1.1*.json*"), options=("paragraphs",)),
    "squad2": _Corpus(squad, ("train-v2.0*.json*", "dev-v2.0*.json*"), options=("paragraphs",)),
    "quasar-t": _Corpus(
        quasar_t,
        tuple(f"questions/{split}_questions.json*" for split in ("train", "dev", "test")),
        distant=True,
        options=("contexts",),
    ),
    "searchqa": _Corpus(searchqa, ("train*", "val*", "test*"), distant=True),
    "triviaqa-wikipedia": _Corpus(
        triviaqa, ("qa/wikipedia-train.json", "qa/wikipedia-dev.json"), distant=True
    ),
    "triviaqa-web": _Corpus(triviaqa, ("qa/web-train.json", "qa/web-dev.json"), distant=True),
    "natural-questions": _Corpus(natural_questions, ("*train*.jsonl*", "*dev*.jsonl*")),
    "qed": _Corpus(qed, ("qed-train*.jsonlines*", "qed-dev*.jsonlines*"), options=("paragraphs",)),
    "hotpotqa": _Corpus(
        hotpotqa, ("hotpot_train_v1*.json*", "hotpot_dev_distractor_v1*.json*"), distant=True
    ),
    "2wiki": _Corpus(
        wiki2, ("train.json*", "dev.json*"), distant=True, options=("corpus", "distractors")
    ),
}


def _parser() -> Parser:
    parser = Parser(prog="prepare_qa.py", description=__doc__)
    add = parser.add_argument
    add("name", metavar="NAME", choices=CORPORA, help=f"the corpus: {', '.join(CORPORA)}")
    add("dest", metavar="DEST", type=Path, help="the folder to make")
    add(
        "--source",
        metavar="DIR",
        type=Path,
        help="a folder with the corpus's files under their own names, as they are or as .gz, .bz2 "
        "or .xz (TriviaQA: or its .tar.gz)",
    )
    for split in SPLITS:
        add(
            f"--{split}",
            metavar="PATH",
            type=Path,
            nargs="+",
            help=f"the files of {split}, other than those found in --source",
        )
    add(
        "--gpt2-bpe",
        metavar="DIR",
        type=Path,
        help="GPT-2's subwords, as RoBERTa's: a folder with encoder.json and vocab.bpe",
    )
    add(
        "--sentencepiece-model",
        metavar="FILE",
        type=Path,
        help="the subwords of a sentencepiece model",
    )
    add(
        "--sentencepiece",
        metavar="VOCAB",
        type=whole_number,
        help="that many pieces, from a model trained on train",
    )
    add(
        "--dict",
        metavar="FILE",
        type=Path,
        help="the dictionary of a pretrained model (RoBERTa's dict.txt; default: all subwords)",
    )
    add("--titles", action="store_true", help="put each paragraph's title before its text")
    add("--workers", metavar="N", type=whole_number, default=1, help="processes (default: 1)")
    add(
        "--paragraphs",
        metavar="N",
        type=whole_number,
        help="of squad1, squad2 and qed: paragraphs of a document, its own and others of its "
        "article (qed: of other questions) (default: 1)",
    )
    add("--contexts", choices=("short", "long"), help="of quasar-t (default: short)")
    add(
        "--corpus",
        metavar="FILE",
        type=Path,
        help="of 2wiki: a JSON list of {title, text}, for questions without paragraphs",
    )
    add(
        "--distractors",
        metavar="N",
        type=whole_number,
        help="of 2wiki: other paragraphs drawn from --corpus for each question (default: 8)",
    )
    return parser


def _vocabulary(options: dict) -> Vocabulary:
    names = ("gpt2_bpe", "sentencepiece_model", "sentencepiece")
    gpt2, model, train = given = [options.pop(name) for name in names]
    dictionary = options.pop("dict")
    if sum(value is not None for value in given) != 1:
        raise UserError(
            "subwords: allowed is one of --gpt2-bpe, --sentencepiece-model and --sentencepiece"
        )
    if train and dictionary:
        raise UserError("--dict: is allowed with --gpt2-bpe or --sentencepiece-model only")
    if dictionary and not dictionary.is_file():
        raise UserError(f"--dict {dictionary}: no such file")
    return Vocabulary(gpt2 or model, train, dictionary)


def find_files(source: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern in `source` or in folders of it, or in an archive there.

    Raises:
        UserError: if `source` is no folder.
    """
    if not source.is_dir():
        raise UserError(f"--source {source}: no such folder")
    if found := sorted(source.glob(pattern)) or sorted(source.glob(f"*/{pattern}")):
        return found
    if pattern.startswith("qa/"):  # TriviaQA's reader looks into the archive
        return [path / pattern for path in sorted(source.glob("triviaqa-rc*.tar*"))[:1]]
    return []


def prepare_corpus(*, name: str, dest: Path, source: Path | None, **options) -> dict | None:
    """Prepare a corpus; see ``prepare_qa.py --help``.

    Returns:
        the content of ``prepared.json``, or None if `dest` has been prepared before.

    Raises:
        UserError: if an option or a file is not as it must be.
    """
    corpus = CORPORA[name]
    vocabulary = _vocabulary(options)
    given = {split: options.pop(split) for split in SPLITS}
    splits = {}
    for split, pattern in zip_longest(SPLITS, corpus.files):
        paths = given[split] or (find_files(source, pattern) if source and pattern else [])
        if paths:
            splits[split] = [path.absolute() for path in paths]
    if not splits:
        raise UserError(
            f"--source {source}: nothing found; allowed is a folder with "
            f"{', '.join(corpus.files)}; or name files with --train, --valid or --test"
        )
    if vocabulary.train and "train" not in splits:
        raise UserError("--sentencepiece: allowed with a train split only; see --train")
    titles, workers = options.pop("titles"), options.pop("workers")
    chosen = {key: value for key, value in options.items() if value is not None}
    if foreign := sorted(chosen.keys() - set(corpus.options)):
        raise UserError(f"--{foreign[0]}: is no option of {name}")
    for split, paths in splits.items():
        for path in paths:
            if not path.exists() and not any(part.is_file() for part in path.parents):
                raise UserError(f"--{split} {path}: no such file")
    readers = {}
    for split in splits:
        unfound = {"keep_unfound": split != "train"} if corpus.distant else {}
        readers[split] = functools.partial(corpus.reader, **chosen, **unfound)
    return prepare(
        dest,
        corpus=name,
        splits=splits,
        readers=readers,
        vocabulary=vocabulary,
        options={k: _named(v) if isinstance(v, Path) else v for k, v in chosen.items()},
        titles=titles,
        workers=workers,
    )


def _named(path: Path) -> str:
    size = f", {path.stat().st_size:,} bytes" if path.is_file() else ""
    return path.name + size


def main(arguments: Sequence[str]) -> int:
    """Run ``prepare_qa.py``; a user's mistake is one line on stderr and status 1."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    return prepare_folder({"prepare": prepare_corpus, **options})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
