"""Learn vectors of words from plain text, for --word-vectors of classifiers and readers.

  python examples/xlqa/vectors.py texts/ more.txt.xz vectors.txt
  python examples/xlqa/vectors.py wiki/ vectors.txt --document-separator '<|endofdoc|>' --workers 4

OUT gets a line for each word, frequent words first: the word and its numbers, as GloVe's files
have it. A word is a run of letters and digits, or one other character. gensim's word2vec does the
learning: pip install ".[vectors]" in the clone.
"""

import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, number
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.texts import Documents, documents, find_texts
from fairseq_clusterformer.data.characters import composed, words_of
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output, whole_file
from fairseq_clusterformer.ranges import Range

NAME = "python examples/xlqa/vectors.py"
_AT_ONCE = 1000  # words of a document that gensim reads as one sentence; it takes 10,000


def write_words(documents: Documents, path: Path) -> dict[str, int]:
    """Write documents as lines of words; return how many ``documents`` and ``words`` there are."""
    counts = {"documents": 0, "words": 0}
    with open(path, "w", encoding="utf-8") as file:
        for _, lines in documents:
            words = (word for line in lines for word in words_of(composed(line.decode())))
            before = counts["words"]
            while part := list(islice(words, _AT_ONCE)):
                file.write(" ".join(part) + "\n")
                counts["words"] += len(part)
            counts["documents"] += counts["words"] > before
    return counts


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    add, width = parser.add, number(Range(1, 10_000, whole=True))
    about = "folders, searched recursively except for hidden files, or files; .xz, .gz and .bz2 "
    add("sources SOURCE", f"{about}are unpacked", nargs="+")
    add("out OUT", "the file to write")
    add("--width N", "numbers of a vector", default=300, type=width)
    add("--window N", "words on either side that a word is to predict", default=5, type=width)
    add("--epochs N", "passes over the text", default=5)
    add("--min-count N", "rarer words have no vector", default=5)
    add("--document-separator LINE", "that ends a document (default: each file is a document)")
    add("--seed N", "of the drawing; with one worker vectors are always the same", default=1)
    add("--workers N", "threads", default=1)
    add("--force", "replace OUT")
    args, start = parser.parse_args(arguments), time.monotonic()
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        allowed = 'pip install ".[vectors]" in the clone'
        raise UserError(f"{NAME} needs gensim ({error}); allowed: {allowed}") from None
    how = {"inputs": args.sources, "force": args.force}
    check_output("OUT", args.out, **how)  # before sources are searched
    texts = [path for source in args.sources for path in find_texts(source)[0]]
    with whole_file("OUT", args.out, **how | {"inputs": [*args.sources, *texts]}) as new:
        words = new.with_name("scratch")
        counts = write_words(documents(texts, args.document_separator), words)
        own = {name: getattr(args, name) for name in ("window", "epochs", "min_count", "seed")}
        own |= {"workers": args.workers, "vector_size": args.width}
        try:
            vectors = Word2Vec(corpus_file=str(words), sg=1, **own).wv
        except RuntimeError:  # "you must first build vocabulary"
            problem = f"no word is as frequent among {counts['words']:,}"
            raise bad_option("--min-count", args.min_count, "a smaller number", problem) from None
        vectors.save_word2vec_format(str(new), write_header=False)
    for what, count in {**counts, "vectors": len(vectors)}.items():
        print(f"{count:>13,} {what}")
    print(f"wrote {args.out} in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
