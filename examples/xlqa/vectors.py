"""Learn vectors of words from plain text, for --word-vectors of classifiers and readers.

  python examples/xlqa/vectors.py texts/ more.txt.xz vectors.txt
  python examples/xlqa/vectors.py wiki/ vectors.txt --document-separator '<|endofdoc|>' --workers 4

OUT gets a line for each word, frequent words first: the word and its numbers, as GloVe's files
have it. A word is a run of letters and digits, or one other character. gensim does the learning:
pip install ".[vectors]" in the clone.
"""

import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, number
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.texts import Documents, documents, find_texts
from fairseq_clusterformer.data.unicode import composed
from fairseq_clusterformer.data.words import words_of
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output, whole_file
from fairseq_clusterformer.ranges import Range

NAME = "python examples/xlqa/vectors.py"
METHODS = {"word2vec": "Word2Vec", "fasttext": "FastText"}  # classes of gensim
_WINDOW = number(Range(1, 10_000, whole=True))  # gensim looks at all words of a window
_AT_ONCE = 1000  # words of a document that gensim reads as one sentence; it takes 10,000


def write_words(documents: Documents, path: Path, lower_case: bool) -> dict[str, int]:
    """Write documents as lines of words with blanks between, none of them of two documents; return
    how many ``documents`` and ``words`` there are."""
    counts = {"documents": 0, "words": 0}
    with open(path, "w", encoding="utf-8") as file:
        for _, lines in documents:
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
    add("--width N", "numbers of a vector", default=300, type=_WINDOW, dest="vector_size")
    add("--window N", "words on either side that a word is to predict", default=5, type=_WINDOW)
    add("--cbow", "predict a word from its window: faster, and worse for rare words")
    add("--negative N", "words drawn against each right one", default=5, type=_WINDOW)
    add("--epochs N", "passes over the text", default=5)
    add("--min-count N", "rarer words have no vector", default=5)
    add("--lower-case", "of all words; GloVe's 6B files are so")
    about = "the line that ends a document (default: each file is a document)"
    add("--document-separator LINE", about)
    about = "of the drawing; with one worker the vectors are the same each time"
    add("--seed N", about, default=1)
    add("--workers N", "threads", default=1)
    add("--force", "replace OUT")
    args, start = parser.parse_args(arguments), time.monotonic()
    try:
        import gensim.models
    except ImportError as error:
        allowed = 'pip install ".[vectors]" in the clone'
        raise UserError(f"{NAME} needs gensim ({error}); allowed: {allowed}") from None
    how = {"inputs": args.sources, "force": args.force}
    check_output("OUT", args.out, **how)  # before sources are searched
    texts = [path for source in args.sources for path in find_texts(source)[0]]
    with whole_file("OUT", args.out, **how | {"inputs": [*args.sources, *texts]}) as new:
        words = new.with_name("scratch")
        found = documents(texts, args.document_separator)
        counts = write_words(found, words, args.lower_case)
        names = ("vector_size", "window", "negative", "epochs", "min_count", "seed", "workers")
        own = {name: getattr(args, name) for name in names}
        learn = vars(gensim.models)[METHODS[args.method]]
        try:
            vectors = learn(corpus_file=str(words), sg=int(not args.cbow), **own).wv
        except RuntimeError:  # "you must first build vocabulary"
            problem = f"no word is as frequent among {counts['words']:,}"
            raise bad_option("--min-count", args.min_count, "a smaller number", problem) from None
        with open(new, "w", encoding="utf-8") as file:
            for word in vectors.index_to_key:
                numbers = (f"{each:.5g}" for each in vectors[word].tolist())
                file.write(" ".join([word, *numbers]) + "\n")
    for what, count in {**counts, "vectors": len(vectors)}.items():
        print(f"{count:>13,} {what}")
    print(f"wrote {args.out} in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
