"""Learn vectors of words from plain text, for --word-vectors of classifiers and readers.

  python examples/xlqa/vectors.py texts/ more.txt.xz vectors.txt --workers 4

OUT gets a line for each word that stands five times or more, frequent words first: the word and
its numbers, as GloVe's files have it. A word is a run of letters and digits, or one other
character. gensim's word2vec does the learning: pip install ".[vectors]" in the clone.
"""

import sys
from collections.abc import Sequence
from itertools import islice

from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.corpora.texts import documents, find_texts
from fairseq_clusterformer.data.characters import composed, words_of
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output, whole_file

NAME = "python examples/xlqa/vectors.py"
_AT_ONCE = 1000  # words of a document that gensim reads as one sentence; it takes 10,000


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    about = "folders, searched recursively except for hidden files, or files; .xz, .gz and .bz2 "
    parser.add("sources SOURCE", f"{about}are unpacked", nargs="+")
    parser.add("out OUT", "the file to write")
    parser.add("--width N", "numbers of a vector", default=300)
    parser.add("--epochs N", "passes over the text", default=5)
    parser.add("--workers N", "threads; with one, vectors are always the same", default=1)
    parser.add("--force", "replace OUT")
    args = parser.parse_args(arguments)
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        allowed = 'pip install ".[vectors]" in the clone'
        raise UserError(f"{NAME} needs gensim ({error}); allowed: {allowed}") from None
    check_output("OUT", args.out, inputs=args.sources, force=args.force)  # before the search
    texts = [path for source in args.sources for path in find_texts(source)[0]]
    with whole_file("OUT", args.out, inputs=[*args.sources, *texts], force=args.force) as new:
        with open(scratch := new.with_name("words"), "w", encoding="utf-8") as file:
            for _, lines in documents(texts):
                words = (word for line in lines for word in words_of(composed(line.decode())))
                while part := list(islice(words, _AT_ONCE)):
                    file.write(" ".join(part) + "\n")
        how = {"vector_size": args.width, "epochs": args.epochs, "workers": args.workers}
        try:
            vectors = Word2Vec(corpus_file=str(scratch), sg=1, seed=1, **how).wv
        except RuntimeError:  # "you must first build vocabulary"
            problem = "no word stands in it five times"
            raise bad_option("SOURCE", args.sources[0], "more text", problem) from None
        vectors.save_word2vec_format(str(new), write_header=False)
    print(f"wrote {args.out}: vectors of {len(vectors):,} words")
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
