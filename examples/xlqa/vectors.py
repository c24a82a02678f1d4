"""Learn vectors of words from plain text, for --word-vectors of classifiers and readers.

  python examples/xlqa/vectors.py texts/ more.txt.xz vectors.txt
  python examples/xlqa/vectors.py wiki/ vectors.txt --document-separator '<|endofdoc|>' --workers 4

OUT gets a line for each word, frequent words first: the word and its numbers, as GloVe's files
have it. A word is a run of letters and digits, or one other character. gensim does the learning:
pip install ".[vectors]" in the clone.
"""

import hashlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, number
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.language_modelling.text import TextReader, find_texts
from fairseq_clusterformer.corpora.lines import naming_all
from fairseq_clusterformer.data.unicode import composed
from fairseq_clusterformer.data.words import words_of
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output, difference, digest, whole_file, written
from fairseq_clusterformer.ranges import Range

NAME = "python examples/xlqa/vectors.py"
# gensim looks at all words of a window, and reads 10,000 words at once
_WINDOW = number(Range(1, 10_000, whole=True))
METHODS = ("word2vec", "fasttext")
_AT_ONCE = 1000  # words of a document that gensim reads as one sentence; it takes 10,000


def learn_vectors(
    sources: Sequence[Path], out: Path, *, workers: int, force: bool, **recipe
) -> dict[str, int] | None:
    """Learn vectors of the words in some text, and write them; always the same if `workers` is 1.
    The arguments are the options of the command; all are needed. Returns how many
    ``documents`` and running ``words`` were read, and ``vectors`` written; None if the same was
    done before. Raises UserError without gensim, or if no word is frequent enough."""
    model_of = _gensim(recipe["method"])
    check_output("OUT", out, inputs=sources, force=force)  # before sources are searched
    made = written(out) if out.is_file() else None
    texts = [path for source in sources for path in find_texts(source, recipe["pattern"])[0]]
    if made:  # it may lie among them
        texts = [path for path in texts if not path.samefile(out)]
    inputs = [*sources, *texts]
    check_output("OUT", out, inputs=inputs, force=force)
    contents = "".join(map(digest, texts)).encode()
    recipe["sources"] = hashlib.sha256(contents).hexdigest()
    if made and not force:
        if made["recipe"] == recipe:
            return None
        problem = f"was made otherwise ({difference(made['recipe'] or {}, recipe)})"
        raise bad_option("OUT", out, "another file, or --force to replace this one", problem)
    reader = TextReader(recipe["document_separator"])
    with whole_file("OUT", out, inputs=inputs, force=force, recipe=recipe) as partial:
        words = partial.with_name("scratch")
        with naming_all(texts):
            counts = _write_words(reader.documents(texts), words, recipe["lower_case"])
        reader.check_separator("SOURCE")
        names = ("window", "negative", "epochs", "min_count", "seed")  # gensim's too
        how = {name: recipe[name] for name in names}
        how |= {"vector_size": recipe["width"], "sg": int(not recipe["cbow"]), "workers": workers}
        try:
            model = model_of(corpus_file=str(words), **how)
        except RuntimeError:  # "you must first build vocabulary"
            problem = f"no word is as frequent among {counts['words']:,}"
            least = how["min_count"]
            raise bad_option("--min-count", least, "a smaller number", problem) from None
        known = model.wv.index_to_key[: recipe["max_words"]]
        with open(partial, "w", encoding="utf-8") as file:
            for word in known:
                numbers = " ".join(f"{number:.5g}" for number in model.wv[word].tolist())
                file.write(f"{word} {numbers}\n")
    return counts | {"vectors": len(known)}


def _gensim(method: str):
    try:
        from gensim.models import FastText, Word2Vec
    except ImportError as error:
        allowed = 'pip install ".[vectors]" in the clone'
        raise UserError(f"{NAME} needs gensim ({error}); allowed: {allowed}") from None
    return dict(zip(METHODS, (Word2Vec, FastText), strict=True))[method]


def _write_words(
    documents: Iterable[Iterator[bytes]], path: Path, lower_case: bool
) -> dict[str, int]:
    """Write documents as lines of words with blanks between, none of them of two documents."""
    counts = {"documents": 0, "words": 0}
    with open(path, "w", encoding="utf-8") as file:
        for lines in documents:
            texts = (composed(line.decode()) for line in lines)
            if lower_case:
                texts = map(str.lower, texts)
            words = (word for text in texts for word in words_of(text))
            before = counts["words"]
            while part := list(islice(words, _AT_ONCE)):
                file.write(" ".join(part) + "\n")
                counts["words"] += len(part)
            counts["documents"] += counts["words"] > before
    return counts


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add
    about = "folders, searched recursively except for hidden files, or files; .xz, .gz and .bz2 "
    add("sources SOURCE", f"{about}are unpacked", nargs="+")
    add("out OUT", "the file to write")
    add("--method", "what learns the vectors", choices=METHODS, default="word2vec")
    add("--width N", "numbers of a vector", default=300, type=_WINDOW)
    add("--window N", "words on either side that a word is to predict", default=5, type=_WINDOW)
    add("--cbow", "predict a word from its window: faster, and worse for rare words")
    add("--negative N", "words drawn against each right one", default=5, type=_WINDOW)
    add("--epochs N", "passes over the text", default=5)
    add("--min-count N", "rarer words have no vector", default=5)
    add("--max-words N", "write only as many, the most frequent ones")
    add("--lower-case", "of all words; GloVe's 6B files are so")
    about = "the line that ends a document (default: each file is a document)"
    add("--document-separator LINE", about)
    about = "take files of such names only, such as '*.txt'; may be repeated"
    add("--pattern GLOB", about, action="append")
    about = "of the drawing; with one worker the vectors are the same each time"
    add("--seed N", about, default=1)
    add("--workers N", "threads", default=1)
    add("--force", "replace OUT")
    options, start = vars(parser.parse_args(arguments)), time.monotonic()
    counts = learn_vectors(**options)
    if counts is None:
        print(f"{options['out']} is already done")
        return 0
    print(*(f"{number:>13,} {what}\n" for what, number in counts.items()), sep="", end="")
    print(f"wrote {options['out']} in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
