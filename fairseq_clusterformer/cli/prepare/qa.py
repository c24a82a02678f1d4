"""Prepare questions with long documents for fairseq; an answer is a span of tokens.

DEST gets the questions, the documents (all paragraphs, each led by ``<s>``), the spans, the
characters of every token and the texts of train, valid and test. ``prepared.json`` lists the
options, what is in each split, and what was dropped and why. DEST appears when it is complete: run
the same command again after an interruption, and it goes on with the first unfinished file (until
then, DEST.parts holds the finished ones). Once DEST is there, the command does nothing.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from fairseq_clusterformer.cli.common import (
    Parser,
    add_dest,
    fraction,
    prepare_folder,
    whole_number,
)
from fairseq_clusterformer.corpora.question_answering.build import Vocabulary, prepare
from fairseq_clusterformer.corpora.question_answering.corpora import hotpotqa, qed, squad, wiki2
from fairseq_clusterformer.corpora.question_answering.natural_questions import natural_questions
from fairseq_clusterformer.corpora.question_answering.open_domain import (
    quasar_t,
    searchqa,
    triviaqa,
)
from fairseq_clusterformer.corpora.question_answering.own import draw_splits, own_questions
from fairseq_clusterformer.errors import UserError, bad_option

SPLITS = ("train", "valid", "test")
_OWN = """Prepare your own questions, in the folder DEST.

SOURCE is a file, or a folder with files named train..., valid... (or dev...) and test.... A file
holds SQuAD's JSON (version 1 or 2), a JSON list of questions, or (.jsonl) a question per line:

  {"id": "1", "question": "Who ...?", "context": "...", "title": "...", "answers": ["Ada"]}

A longer document has "paragraphs": ["...", {"title": "...", "text": "..."}] instead of "context".
"answers" may say where they stand: {"text": "...", "answer_start": 17}, with the "paragraph"
counted from 0. Otherwise they are searched in the document. An empty list means that the document
has no answer. "id" and "title" may be missing. .gz, .bz2 and .xz are unpacked.

Without files of valid and test, whole documents are drawn from SOURCE for both: no document is in
two splits. If one of them is given, only valid is drawn.
"""


@dataclass(frozen=True)
class _KnownCorpus:
    """A corpus that the command knows.

    Args:
        reader: of one of its files.
        files: patterns of the names of train, valid and test in --source.
        distant: its answers are texts only, which may not be found.
        options: of its reader, by the names of the command's options.
    """

    reader: Callable
    files: tuple[str, ...]
    distant: bool = False
    options: tuple[str, ...] = ()


CORPORA = {
    "squad1": _KnownCorpus(
        squad, ("train-v1.1*.json*", "dev-v1.1*.json*"), options=("paragraphs",)
    ),
    "squad2": _KnownCorpus(
        squad, ("train-v2.0*.json*", "dev-v2.0*.json*"), options=("paragraphs",)
    ),
    "quasar-t": _KnownCorpus(
        quasar_t,
        tuple(f"questions/{split}_questions.json*" for split in ("train", "dev", "test")),
        distant=True,
        options=("contexts",),
    ),
    "searchqa": _KnownCorpus(searchqa, ("train*", "val*", "test*"), distant=True),
    "triviaqa-wikipedia": _KnownCorpus(
        triviaqa, ("qa/wikipedia-train.json", "qa/wikipedia-dev.json"), distant=True
    ),
    "triviaqa-web": _KnownCorpus(triviaqa, ("qa/web-train.json", "qa/web-dev.json"), distant=True),
    "natural-questions": _KnownCorpus(natural_questions, ("*train*.jsonl*", "*dev*.jsonl*")),
    "qed": _KnownCorpus(
        qed, ("qed-train*.jsonlines*", "qed-dev*.jsonlines*"), options=("paragraphs",)
    ),
    "hotpotqa": _KnownCorpus(
        hotpotqa, ("hotpot_train_v1*.json*", "hotpot_dev_distractor_v1*.json*"), distant=True
    ),
    "2wiki": _KnownCorpus(
        wiki2, ("train.json*", "dev.json*"), distant=True, options=("corpus", "distractors")
    ),
}


_PARAGRAPHS = "paragraphs of a document: the question's own and others of its "
_OPTIONS = {
    "paragraphs": ("N", whole_number, _PARAGRAPHS + "article (qed: of other questions)"),
    "contexts": ("KIND", None, "short or long passages (default: short)"),
    "corpus": ("FILE", Path, "a JSON list of {title, text}, for questions without paragraphs"),
    "distractors": ("N", whole_number, "paragraphs drawn from --corpus per question (default: 8)"),
}


def _parser() -> Parser:
    parser = Parser(prog="clusterformer prepare qa", description=__doc__)
    corpora = parser.corpora()
    own = corpora.add_parser("text", description=_OWN, help="your own questions")
    own.add_argument("source", metavar="SOURCE", type=Path, help="a file or a folder; see above")
    add_dest(own)
    _add_options(own.add_argument, ("paragraphs",), 0.1)
    for name, corpus in CORPORA.items():
        known = corpora.add_parser(name, description=__doc__, help=", ".join(corpus.files))
        add_dest(known)
        known.add_argument(
            "--source",
            metavar="DIR",
            type=Path,
            help=f"a folder with {', '.join(corpus.files)}"
            + (", or its .tar.gz" if name.startswith("triviaqa") else "; .gz, .bz2 or .xz too"),
        )
        _add_options(known.add_argument, corpus.options, None)
    return parser


def _add_options(add: Callable[..., object], own: Sequence[str], share: float | None) -> None:
    for split in SPLITS:
        source = "SOURCE" if share else "--source"
        help_ = f"the files of {split}, instead of those found in {source}"
        add(f"--{split}", metavar="PATH", type=Path, nargs="+", help=help_)
    for split in SPLITS[1:]:
        add(
            f"--{split}-fraction",
            metavar="F",
            type=fraction,
            default=share,
            help=f"draw documents with this share of train's questions for {split}"
            + (" (default: %(default)s)" if share else "; valid of --source becomes test"),
        )
    add("--seed", metavar="N", type=whole_number, default=1, help="of the drawing (default: 1)")
    subwords = "; one of the options of subwords is needed"
    add(
        "--gpt2-bpe",
        metavar="DIR",
        type=Path,
        help=f"GPT-2's subwords (RoBERTa's): a folder with encoder.json and vocab.bpe{subwords}",
    )
    add("--sentencepiece-model", metavar="FILE", type=Path, help=f"an existing model{subwords}")
    add(
        "--sentencepiece",
        metavar="VOCAB",
        type=whole_number,
        help=f"train a sentencepiece model with VOCAB pieces on train{subwords}",
    )
    add(
        "--dict",
        metavar="FILE",
        type=Path,
        help="the dictionary of a pretrained model (RoBERTa's dict.txt; default: all subwords)",
    )
    add("--titles", action="store_true", help="put each paragraph's title before its text")
    add("--workers", metavar="N", type=whole_number, default=1, help="processes (default: 1)")
    add("--force", action="store_true", help="replace DEST if it has been prepared before")
    for name in own:
        metavar, kind, help_ = _OPTIONS[name]
        choices = ("short", "long") if name == "contexts" else None
        add(f"--{name}", metavar=metavar, type=kind, choices=choices, help=help_)


def _vocabulary(options: dict) -> Vocabulary:
    names = ("gpt2_bpe", "sentencepiece_model", "sentencepiece")
    gpt2, model, train = given = [options.pop(name) for name in names]
    dictionary = options.pop("dict")
    allowed = "one of --gpt2-bpe, --sentencepiece-model and --sentencepiece"
    if (number := sum(value is not None for value in given)) != 1:
        raise UserError(f"{number} options of subwords are given; allowed: {allowed}")
    if train and dictionary:
        raise bad_option("--dict", dictionary, "with --gpt2-bpe or --sentencepiece-model only")
    if dictionary and not dictionary.is_file():
        raise bad_option("--dict", dictionary, "a dictionary of fairseq's", "no such file")
    return Vocabulary(gpt2 or model, train, dictionary)


def find_files(source: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern in `source` or in folders of it, or in an archive there.

    Raises:
        UserError: if `source` is no folder.
    """
    if not source.is_dir():
        raise bad_option("--source", source, "a folder", "no such folder")
    if found := sorted(source.glob(pattern)) or sorted(source.glob(f"*/{pattern}")):
        return found
    if pattern.startswith("qa/"):  # TriviaQA's reader looks into the archive
        return [path / pattern for path in sorted(source.glob("triviaqa-rc*.tar*"))[:1]]
    return []


def _own_files(source: Path) -> dict[str, list[Path]]:
    """Return the files of the splits of a user's own questions."""
    if not source.is_dir():
        return {"train": [source]}
    names = {"train": ["train*"], "valid": ["valid*", "dev*", "val.*"], "test": ["test*"]}
    found = {
        split: sorted({p for pattern in patterns for p in source.glob(pattern) if p.is_file()})
        for split, patterns in names.items()
    }
    if not found["train"]:
        raise bad_option("SOURCE", source, "a file, or files named train..., valid..., test...")
    return {split: paths for split, paths in found.items() if paths}


def prepare_corpus(
    *, corpus: str, dest: Path, source: Path | None, seed: int, force: bool, **options
) -> dict | None:
    """Prepare a corpus; see ``clusterformer prepare qa --help``.

    Returns:
        the content of ``prepared.json``, or None if `dest` has been prepared before.

    Raises:
        UserError: if an option or a file is wrong.
    """
    is_own = corpus == "text"
    known = _KnownCorpus(own_questions, (), distant=True) if is_own else CORPORA[corpus]
    vocabulary = _vocabulary(options)
    shares = {split: options.pop(f"{split}_fraction") for split in SPLITS[1:]}
    given = {split: options.pop(split) for split in SPLITS}
    if is_own:
        splits = _own_files(source)
    else:
        splits = {
            split: find_files(source, pattern)
            for split, pattern in zip_longest(SPLITS, known.files)
            if source and pattern
        }
        if shares["valid"] and splits.get("valid"):
            splits["test"] = splits.pop("valid")
    splits |= {split: paths for split, paths in given.items() if paths}
    splits = {
        split: [path.absolute() for path in paths] for split, paths in splits.items() if paths
    }
    if is_own and len(splits) > 1:
        shares["test"] = None
    shares = {split: share for split, share in shares.items() if share and split not in splits}
    if not splits:
        raise bad_option(
            "--source",
            source,
            f"a folder with {', '.join(known.files)}; or --train, --valid or --test with files",
            "nothing found",
        )
    if "train" not in splits and (shares or vocabulary.train):
        needs = "--sentencepiece" if vocabulary.train else "--valid-fraction or --test-fraction"
        raise UserError(f"{needs} is given without train; allowed: with files for --train")
    for split, paths in splits.items():
        for path in paths:
            if not path.exists() and not any(part.is_file() for part in path.parents):
                raise bad_option(f"--{split}", path, "files of the corpus", "no such file")
    titles, workers = options.pop("titles"), options.pop("workers")
    chosen = {key: value for key, value in options.items() if value is not None}
    reader = functools.partial(known.reader, **chosen)
    readers = dict.fromkeys(splits, reader)
    if shares:
        readers |= draw_splits(reader, splits["train"], shares, seed)
        splits |= {split: splits["train"] for split in shares}
    if known.distant:
        for split in splits:
            readers[split] = functools.partial(readers[split], keep_unfound=split != "train")
    drawn = {f"{split} fraction": share for split, share in shares.items()}
    drawn |= {"seed": seed} if shares else {}
    return prepare(
        dest,
        corpus=corpus,
        splits={split: splits[split] for split in SPLITS if split in splits},
        readers=readers,
        vocabulary=vocabulary,
        options={k: _named(v) if isinstance(v, Path) else v for k, v in chosen.items()} | drawn,
        titles=titles,
        workers=workers,
        force=force,
    )


def _named(path: Path) -> str:
    size = f", {path.stat().st_size:,} bytes" if path.is_file() else ""
    return path.name + size


def main(arguments: Sequence[str]) -> int:
    """Prepare a corpus; returns the exit status.

    Raises:
        UserError: if an option or a file is wrong.
    """
    return prepare_folder({"prepare": prepare_corpus, **vars(_parser().parse_args(arguments))})
