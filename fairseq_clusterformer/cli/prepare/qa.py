"""Prepare questions with long documents for fairseq; an answer is a span of tokens.

DEST gets the questions, the documents (all paragraphs, each led by ``<s>``), the spans, the
sentences, the characters of every token and the texts of train, valid and test.
``prepared.json`` lists the options, what is in each split, and what was dropped and why. After an
interruption it goes on with the first unfinished file; DEST.partial holds the finished ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

from fairseq_clusterformer.cli import common
from fairseq_clusterformer.cli.common import NUMBER, PATH, Parser, add_dest, prepare_folder
from fairseq_clusterformer.cli.prepare.subwords import add_subwords, take_vocabulary
from fairseq_clusterformer.corpora import SPLITS
from fairseq_clusterformer.corpora.question_answering.babi import babi
from fairseq_clusterformer.corpora.question_answering.build import prepare
from fairseq_clusterformer.corpora.question_answering.corpora import qed, several_hops, squad
from fairseq_clusterformer.corpora.question_answering.natural_questions import natural_questions
from fairseq_clusterformer.corpora.question_answering.open_domain import (
    quasar_t,
    searchqa,
    triviaqa,
)
from fairseq_clusterformer.corpora.question_answering.own import draw_documents, own_questions
from fairseq_clusterformer.corpora.question_answering.wikihop import wikihop
from fairseq_clusterformer.corpora.splits import split_of
from fairseq_clusterformer.errors import UserError, bad_option

_OWN = """Prepare your own questions, in the folder DEST.

SOURCE is a file, or a folder with files whose names contain train, valid (or dev) and test. A file
holds SQuAD's JSON (version 1 or 2), a JSON list of questions, or (.jsonl) a question per line:

  {"id": "1", "question": "Who ...?", "context": "...", "title": "...", "answers": ["Ada"]}

A longer document has "paragraphs": ["...", {"title": "...", "text": "..."}] instead of "context".
"answers" may say where they stand: {"text": "...", "answer_start": 17}, with the "paragraph"
counted from 0. Otherwise they are searched in the document. An empty list means that the document
has no answer. "id" and "title" may be missing. .gz, .bz2 and .xz are unpacked.

For etc_reader, "sentences": [[paragraph, start, end], ...] are the sentences, in characters (else
they are found by their punctuation). "supporting": [0, 2] are the numbers of those that one needs
for the answer. "candidates": ["Ada", ...] are texts of which the answer is one.

With --cloze the files hold plain text, of which questions are made: a sentence with "what" in the
place of a name or a number that stands elsewhere in the passage.

Without files of valid and test, whole documents are drawn from SOURCE for both: no document is in
two splits. If one of them is given, only valid is drawn.
"""


@dataclass(frozen=True)
class _Corpus:
    """A corpus that the command knows.

    Args:
        reader: of one of its files.
        files: patterns of the names of train, valid and test in --source.
        options: of its reader, by the names of the command's options.
        distant: its answers are texts only, which may not be found.
        few_words: its language has so few that each is a piece of the sentencepiece model.
    """

    reader: Callable
    files: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    distant: bool = True
    few_words: bool = False


def _with_spans(reader: Callable, files: str, *options: str) -> _Corpus:
    return _Corpus(reader, tuple(files.split()), options, distant=False)


CORPORA = {
    "squad1": _with_spans(squad, "train-v1.1*.json* dev-v1.1*.json*", "paragraphs"),
    "squad2": _with_spans(squad, "train-v2.0*.json* dev-v2.0*.json*", "paragraphs"),
    "quasar-t": _Corpus(
        quasar_t,
        tuple(f"questions/{split}_questions.json*" for split in ("train", "dev", "test")),
        ("contexts",),
    ),
    "searchqa": _Corpus(searchqa, ("train*", "val*", "test*")),
    "triviaqa-wikipedia": _Corpus(triviaqa, ("qa/wikipedia-train.json", "qa/wikipedia-dev.json")),
    "triviaqa-web": _Corpus(triviaqa, ("qa/web-train.json", "qa/web-dev.json")),
    "natural-questions": _with_spans(natural_questions, "*train*.jsonl* *dev*.jsonl*"),
    "qed": _with_spans(qed, "qed-train*.jsonlines* qed-dev*.jsonlines*", "paragraphs"),
    "hotpotqa": _Corpus(
        several_hops, ("hotpot_train_v1*.json*", "hotpot_dev_distractor_v1*.json*")
    ),
    "2wiki": _Corpus(several_hops, ("train.json*", "dev.json*"), ("corpus", "distractors")),
    "babi": _Corpus(babi, ("qa*_train.txt", "qa*_test.txt"), few_words=True),
    "wikihop": _Corpus(wikihop, ("train.json*", "dev.json*")),
}
_PARAGRAPHS = "paragraphs of a document: the question's own and others of its article"
_OPTIONS = {
    "paragraphs": (_PARAGRAPHS + " (qed: of other questions)", NUMBER),
    "contexts": ("the passages (default: short)", {"choices": ("short", "long")}),
    "corpus": (
        "a JSON list of {title, text}, for questions without paragraphs",
        PATH | {"dest": "pool"},
    ),
    "distractors": ("paragraphs drawn from --corpus per question (default: 8)", NUMBER),
}


def _parser() -> Parser:
    parser = Parser(prog="clusterformer prepare qa", description=__doc__)
    corpora = parser.corpora()
    own = corpora.add_parser("text", description=_OWN, help="your own questions")
    common.add(own, "source", "a file or a folder; see above")
    add_dest(own)
    _add_options(own, ("paragraphs",), "SOURCE")
    about = "make questions from plain text: mask a name or number that stands twice in a passage"
    common.add(own, "--cloze", about, action="store_true")
    about = "with --cloze: the line that ends a document (default: each file is a document)"
    common.add(own, "--document-separator", about, metavar="LINE")
    for name, corpus in CORPORA.items():
        known = corpora.add_parser(name, description=__doc__, help=", ".join(corpus.files))
        add_dest(known)
        packed = "or its .tar.gz" if name.startswith("triviaqa") else "packed or not"
        common.add(known, "--source", f"a folder with {', '.join(corpus.files)}, {packed}")
        _add_options(known, corpus.options, "--source")
    return parser


def _add_options(parser: Parser, own: Sequence[str], source: str) -> None:
    add = partial(common.add, parser)
    for split in SPLITS:
        about = f"the files of {split}, instead of those found in {source}"
        add(f"--{split}", about, **PATH, nargs="+")
    for split in SPLITS[1:]:
        about = f"draw documents with this share of train's questions for {split}"
        if source == "SOURCE":
            add(f"--{split}-fraction", about, default=0.1)
        else:
            add(f"--{split}-fraction", about + "; valid of --source becomes test")
    add("--seed", "of the drawing")
    add_subwords(parser)
    add("--titles", "put each paragraph's title before its text", action="store_true")
    add("--workers", "processes")
    add("--force", "replace DEST, which must hold nothing but what this command wrote")
    for name in own:
        about, how = _OPTIONS[name]
        add(f"--{name}", about, **how)


def _files(corpus: _Corpus, source: Path | None) -> dict[str, list[Path]]:
    """Return the files of each split in SOURCE or --source, or in an archive there.

    Raises:
        UserError: if --source is no folder.
    """
    if corpus.files and source and not source.is_dir():
        raise bad_option("--source", source, "a folder", "no such folder")
    if corpus.files:
        places = zip_longest(SPLITS, corpus.files if source else ())
        return {split: _find(source, pattern) for split, pattern in places if pattern}
    if not source.is_dir():
        return {"train": [source]}
    files = (path for path in source.iterdir() if path.is_file())
    paths = sorted(path for path in files if not path.name.startswith("."))
    return {split: [path for path in paths if split_of(path) == split] for split in SPLITS}


def _find(source: Path, pattern: str) -> list[Path]:
    if found := sorted(source.glob(pattern)) or sorted(source.glob(f"*/{pattern}")):
        return found
    if pattern.startswith("qa/"):  # TriviaQA's reader looks into the archive
        return [path / pattern for path in sorted(source.glob("triviaqa-rc*.tar*"))[:1]]
    return []


def _splits(
    corpus: _Corpus,
    source: Path | None,
    given: dict[str, list[Path] | None],
    shares: dict[str, float | None],
) -> tuple[dict[str, list[Path]], dict[str, float]]:
    """Return the files of each split, and the shares of train that are drawn for others.

    Raises:
        UserError: if there are none, or one is missing.
    """
    splits = _files(corpus, source)
    if corpus.files and shares["valid"] and splits.get("valid"):
        splits["test"] = splits.pop("valid")
    if not corpus.files and not (splits["train"] or given["train"]):
        allowed = "a file, or files whose names contain train, valid and test; or --train"
        raise bad_option("SOURCE", source, allowed, "no train")
    splits |= {split: paths for split, paths in given.items() if paths}
    splits = {s: [path.absolute() for path in splits[s]] for s in SPLITS if splits.get(s)}
    if not splits:
        allowed = f"a folder with {', '.join(corpus.files)}; or --train, --valid or --test"
        problem = "nothing found" if source else ""
        raise bad_option("--source", source or "missing", f"{allowed} with files", problem)
    for split, paths in splits.items():
        for path in paths:
            if not path.exists() and not any(part.is_file() for part in path.parents):
                raise bad_option(f"--{split}", path, "files of the corpus", "no such file")
    if not corpus.files and len(splits) > 1:
        shares = shares | {"test": None}
    return splits, {
        split: share for split, share in shares.items() if share and split not in splits
    }


def prepare_corpus(
    *,
    corpus: str,
    dest: Path,
    source: Path | None,
    seed: int,
    titles: bool,
    workers: int,
    force: bool,
    **options,
) -> dict | None:
    """Prepare a corpus; see ``clusterformer prepare qa --help``.

    Returns:
        the content of ``prepared.json``, or None if `dest` has been prepared before.

    Raises:
        UserError: if an option or a file is wrong.
    """
    known = CORPORA.get(corpus) or _Corpus(own_questions)
    made = {}
    if options.pop("cloze", False):
        if options.pop("paragraphs") is not None:
            raise bad_option("--paragraphs", "given", "without --cloze, whose passages are alone")
        # takes too long for --help
        from fairseq_clusterformer.corpora.question_answering.cloze import cloze_questions

        known, made = _Corpus(cloze_questions, distant=False), {"cloze": True}
    elif options.get("document_separator") is not None:
        raise bad_option("--document-separator", options["document_separator"], "with --cloze")
    vocabulary = take_vocabulary(options)
    if vocabulary.train:
        vocabulary = replace(vocabulary, whole_words=known.few_words)
    given = {split: options.pop(split) for split in SPLITS}
    shares = {split: options.pop(f"{split}_fraction") for split in SPLITS[1:]}
    splits, shares = _splits(known, source, given, shares)
    if "train" not in splits and (shares or vocabulary.train):
        needs = "a share of train" if shares else "a sentencepiece model to train"
        raise UserError(
            f"{needs}, but no train; allowed: --train with files, or without --valid-fraction and "
            "--test-fraction and with --gpt2-bpe or --sentencepiece-model"
        )
    chosen = {key: value for key, value in options.items() if value is not None}
    if "pool" in chosen:  # "corpus" is the name of the corpus
        chosen["corpus"] = chosen.pop("pool")
    reader = partial(known.reader, **chosen)
    readers = dict.fromkeys(splits, reader)
    if shares:
        readers |= draw_documents(reader, splits["train"], shares, seed)
        splits = {s: splits.get(s, splits["train"]) for s in SPLITS if s in readers}
    if known.distant:
        readers = {s: partial(read, keep_unfound=s != "train") for s, read in readers.items()}
    named = {k: _named(v) if isinstance(v, Path) else v for k, v in chosen.items()}
    drawn = {f"{split} fraction": share for split, share in shares.items()}
    return prepare(
        dest,
        corpus=corpus,
        splits=splits,
        readers=readers,
        vocabulary=vocabulary,
        options=named | made | drawn | ({"seed": seed} if shares else {}),
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
