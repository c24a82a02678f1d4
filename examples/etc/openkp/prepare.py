"""Prepare web pages and their keyphrases for fairseq.

  python examples/etc/openkp/prepare.py data-bin/openkp --source DIR

DEST gets the pages in subwords, their words and nodes, and where the keyphrases stand. What was
dropped and why, such as pages of train without a keyphrase, stands in ``prepared.json``.

A line of a file is a JSON object with "url", "text", "VDOM" and "KeyPhrases", as in OpenKP's
files. "VDOM" is a list of nodes, whose texts together are the words of the text, or the same as
JSON in a string: {"text": "Star Trek", "feature": [44, 728, 78, 45, 1, ...]}. The first ten
features are x, width, y and height in pixels; block, inline, heading and leaf (1 or 0); the size
of the font; bold (1 or 0). The other ten say the same of the parent. "KeyPhrases" is a list of
lists of words.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from fairseq_clusterformer.cli import common
from fairseq_clusterformer.cli.common import Parser, add_dest, prepare_folder
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora import SPLITS
from fairseq_clusterformer.corpora.files import checksums
from fairseq_clusterformer.corpora.question_answering.records import Drops
from fairseq_clusterformer.data.characters import READ_FORM
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import make_folder

NAME = "python examples/etc/openkp/prepare.py"
#: patterns of the names of train, valid and test in --source
FILES = ("OpenKPTrain*.jsonl*", "OpenKPDev*.jsonl*", "OpenKPEval*.jsonl*")


def prepare(*, dest: Path, source: Path | None, force: bool, **how) -> dict | None:
    """Prepare pages in a folder; return what ``prepared.json`` says, or None: it was there."""
    pairs = zip(SPLITS, FILES, strict=True)
    found = {split: sorted(source.glob(pattern)) for split, pattern in pairs} if source else {}
    splits = common.files_of_splits(how, found, source, FILES)
    vocabulary = common.take_vocabulary(how)
    common.check_train(splits, vocabulary)
    files = {split: checksums(paths) for split, paths in splits.items()}
    recipe = {"corpus": "openkp", "files": files, **vocabulary.recipe(), "unicode": READ_FORM}

    def build(work: Path, out: Path) -> dict:
        from fairseq.data.indexed_dataset import best_fitting_int_dtype

        from fairseq_clusterformer.data.stored import RecordWriter, load_dictionary
        from fairseq_clusterformer.data.subwords import load_prepared
        from openkp.pages import encode, read_pages

        def pages(split: str, drops: Drops) -> Iterator[dict]:
            page, how = None, {"keep_unfound": split != "train"}
            for page in chain.from_iterable(read_pages(p, drops, **how) for p in splits[split]):
                yield page
            if page is None:
                raise UserError(f"openkp: no page is left in {split}{drops.summary()}")

        text = work / "train.txt"
        if vocabulary.train:
            with open(text, "w", encoding="utf-8") as file:
                for page in pages("train", Drops()):
                    words = page["text"].split(" ")
                    file.writelines(" ".join(words[i:j]) + "\n" for i, j in page["nodes"])
        vocabulary.write(out, text, kind="reader")
        dictionary, model = load_dictionary(out), load_prepared(out)
        to_index = [dictionary.index(symbol) for symbol in model.symbols]
        dtype = best_fitting_int_dtype(len(dictionary))
        record = {"splits": {}, "dropped": {}}
        for split in splits:
            counts, drops = Counter(), Drops()
            with RecordWriter(out, split, {"document": dtype}) as writer:
                for page in pages(split, drops):
                    tokens, page = encode(page, model=model, to_index=to_index)
                    writer.write((tokens,), page)
                    counts.update(pages=1, nodes=len(page["nodes"]), tokens=len(tokens))
                    counts.update(keyphrases=len(page["places"]))
            counts["dropped"] = drops.counts.total()
            record["splits"][split], record["dropped"][split] = dict(counts), drops.examples
            if drops.counts:
                print(f"{split}: {drops}")
        return record

    return make_folder(dest, recipe, build, force)


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    add_dest(parser)
    parser.add("--source DIR", f"a folder with {', '.join(FILES)}")
    common.add_files(parser, "--source")
    common.add_subwords(parser)
    parser.add("--force", "replace DEST, which must hold nothing but what this command wrote")
    return prepare_folder({"prepare": prepare, **vars(parser.parse_args(arguments))})


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as --user-dir does
    sys.exit(program(NAME, main, sys.argv[1:]))
