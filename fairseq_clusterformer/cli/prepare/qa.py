"""Prepare questions with long documents for fairseq; an answer is a span of tokens.

DEST gets the questions, the documents (all paragraphs, each led by ``<s>``), the spans, the
sentences, the characters of every token and the texts of train, valid and test.
``prepared.json`` lists the options, what is in each split, and what was dropped and why. After an
interruption it goes on with the first unfinished split; DEST.partial holds the finished ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairseq_clusterformer.corpora import SPLITS
from fairseq_clusterformer.corpora.files import checksums, found_in, split_of, visible
from fairseq_clusterformer.corpora.question_answering import build, readers
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.moved import check_corpus

from .. import common
from ..common import Parser, add_dest, prepare_folder

Known = Mapping[str, build.QuestionCorpus]  # by their names

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


def _add_options(parser: Parser, own: Mapping[str, str | tuple], source: str) -> None:
    common.add_files(parser, source)
    about = "draw documents with this share of train's questions for {}"
    about += "" if source == "SOURCE" else "; valid of --source becomes test"
    for split in SPLITS[1:]:
        default = 0.1 if source == "SOURCE" else None
        parser.add(f"--{split}-fraction F", about.format(split), default=default)
    parser.add("--seed N", "of the drawing", default=1)
    common.add_subwords(parser)
    parser.add("--titles", "put each paragraph's title before its text")
    parser.add("--workers N", "processes", default=1)
    parser.add("--force", "replace DEST, which must hold nothing but what this command wrote")
    for name, of_reader in own.items():
        about, how = (of_reader, {}) if isinstance(of_reader, str) else of_reader
        parser.add(f"--{name}", about, **how)


def _splits(
    corpus: build.QuestionCorpus, source: Path | None, options: dict
) -> tuple[common.Files, dict[str, float]]:
    """Take out the files of each split, and the shares of train that are drawn for others."""
    shares = {split: options.pop(f"{split}_fraction") for split in SPLITS[1:]}
    if patterns := corpus.files.split():
        found = {}
        for split, pattern in zip(SPLITS, patterns if source else (), strict=False):
            found[split] = found_in(source, pattern)
        if shares["valid"] and found.get("valid"):
            found["test"] = found.pop("valid")
        splits = common.files_of_splits(options, found, source, patterns)
    else:
        found = {"train": [source]}
        if source.is_dir():
            files = visible(source.iterdir())
            found = {split: [p for p in files if split_of(p) == split] for split in SPLITS}
        names = ["files whose names contain train, valid or test"]
        splits = common.files_of_splits(options, found, source, names, "SOURCE")
        # without train, there is nothing to draw from: to evaluate on
        shares |= {"test": None} if len(splits) > 1 else {}
        shares = shares if "train" in splits else {}
    return splits, {s: share for s, share in shares.items() if share and s not in splits}


def _prepare(known: Known, corpus: str, source: Path | None, **options) -> dict | None:
    how = {name: options.pop(name) for name in ("dest", "titles", "workers", "force")}
    seed = options.pop("seed")
    used = known.get(corpus) or build.QuestionCorpus(readers.own_questions)
    vocabulary = common.take_vocabulary(options)
    if cloze := options.pop("cloze", False):
        if options.pop("paragraphs") is not None:
            raise bad_option("--paragraphs", "given", "without --cloze, whose passages are alone")
        used = build.QuestionCorpus(readers.cloze_questions)
    elif options.get("document_separator") is not None:
        raise bad_option("--document-separator", options["document_separator"], "with --cloze")
    if vocabulary.train:
        vocabulary = replace(vocabulary, whole_words=used.few_words)
    splits, shares = _splits(used, source, options)
    common.check_train(splits, vocabulary, shares)
    chosen = {key: value for key, value in options.items() if value is not None}
    if how["titles"] and used.titled:
        chosen["titled"] = True
    read = dict.fromkeys(splits, partial(used.reader, **chosen))
    if shares:
        read |= build.draw_documents(read["train"], splits["train"], shares, seed)
        splits = {s: splits.get(s, splits["train"]) for s in SPLITS if s in read}
        chosen |= {f"{split} fraction": share for split, share in shares.items()} | {"seed": seed}
    if "pool" in chosen:
        chosen["corpus"] = checksums([chosen.pop("pool")])
    chosen |= {"cloze": True} if cloze else {}
    how |= {"vocabulary": vocabulary, "options": chosen}
    return build.prepare(corpus=corpus, splits=splits, readers=read, **how)


def prepare_known(
    prog: str, about: str, known: Known, arguments: Sequence[str], own: bool = False
) -> int:
    """Run a command that prepares corpora of a table, and a user's own; return its status."""
    parser = Parser(prog=prog, description=about)
    corpora = parser.corpora()
    if own:
        text = corpora.add_parser("text", description=_OWN, help="your own questions")
        text.add("source SOURCE", "a file or a folder; see above")
        add_dest(text)
        _add_options(text, build.PARAGRAPHS, "SOURCE")
        mask = "make questions from plain text: mask a name or number that stands twice in a "
        text.add("--cloze", mask + "passage")
        line = "with --cloze: the line that ends a document (default: each file is a document)"
        text.add("--document-separator LINE", line)
    for name, corpus in known.items():
        files = ", ".join(corpus.files.split())
        one = corpora.add_parser(name, description=__doc__, help=files)
        add_dest(one)
        one.add("--source DIR", f"a folder with {files}, packed or not")
        _add_options(one, corpus.options, "--source")
    options = vars(parser.parse_args(arguments))
    return prepare_folder({"prepare": partial(_prepare, known), **options})


def main(arguments: Sequence[str]) -> int:
    check_corpus("qa", arguments)
    return prepare_known("clusterformer prepare qa", __doc__, build.CORPORA, arguments, own=True)
