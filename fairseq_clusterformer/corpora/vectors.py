"""Vectors of words from plain text, by gensim, in GloVe's text form.

A line of the file is a word and its numbers, separated by blanks; frequent words come first.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from fairseq_clusterformer.data.unicode import composed
from fairseq_clusterformer.data.words import words_of
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output, digest, whole_file, written

from .folder import difference
from .language_modelling.text import TextReader, find_texts
from .lines import naming_all

METHODS = ("word2vec", "fasttext")
_AT_ONCE = 1000  # words of a document that gensim reads as one sentence; it takes 10,000


def learn_vectors(
    sources: Sequence[Path],
    out: Path,
    *,
    method: str = "word2vec",
    width: int = 300,
    window: int = 5,
    cbow: bool = False,
    negative: int = 5,
    epochs: int = 5,
    min_count: int = 5,
    max_words: int | None = None,
    lower_case: bool = False,
    document_separator: str | None = None,
    pattern: Sequence[str] | None = None,
    seed: int = 1,
    workers: int = 1,
    force: bool = False,
) -> dict[str, int] | None:
    """Learn vectors of the words in some text, and write them; always the same if `workers` is 1.
    The arguments are as ``clusterformer vectors --help`` describes them.

    Returns:
        How many ``documents`` and running ``words`` were read, and ``vectors`` written; None if
        the same was done before.

    Raises:
        UserError: no gensim, a file that is there, or text with no word that is frequent enough.
    """
    recipe = dict(locals())
    for name in ("sources", "out", "workers", "force"):
        del recipe[name]
    model_of = _gensim(method)
    check_output("OUT", out, inputs=sources, force=force)
    made = written(out) if out.is_file() else None
    texts = [path for source in sources for path in find_texts(source, pattern)[0]]
    if made:  # it may lie among them
        texts = [path for path in texts if not path.samefile(out)]
    inputs = [*sources, *texts]
    check_output("OUT", out, inputs=inputs, force=force)
    content = hashlib.sha256("".join(digest(path) for path in texts).encode()).hexdigest()
    recipe["sources"] = content
    if made and not force:
        if made["recipe"] == recipe:
            return None
        problem = f"was made otherwise ({difference(made['recipe'] or {}, recipe)})"
        raise bad_option("OUT", out, "another file, or --force to replace this one", problem)
    reader = TextReader(document_separator)
    how = {"inputs": inputs, "force": force, "recipe": recipe}
    with whole_file("OUT", out, **how) as partial:
        words = partial.with_name("scratch")
        with naming_all(texts):
            counts = _write_words(reader.documents(texts), words, lower_case)
        reader.check_separator("SOURCE")
        try:
            model = model_of(
                corpus_file=str(words),
                vector_size=width,
                window=window,
                sg=int(not cbow),
                negative=negative,
                epochs=epochs,
                min_count=min_count,
                seed=seed,
                workers=workers,
            )
        except RuntimeError:  # "you must first build vocabulary"
            problem = f"no word is as frequent among {counts['words']:,}"
            raise bad_option("--min-count", min_count, "a smaller number", problem) from None
        with open(partial, "w", encoding="utf-8") as file:
            for word in model.wv.index_to_key[:max_words]:
                numbers = " ".join(f"{number:.5g}" for number in model.wv[word].tolist())
                file.write(f"{word} {numbers}\n")
    return counts | {"vectors": len(model.wv.index_to_key[:max_words])}


def _gensim(method: str):
    """The class of a method."""
    try:
        from gensim.models import FastText, Word2Vec
    except ImportError as error:
        raise UserError(
            f"clusterformer vectors needs gensim ({error}); allowed: pip install "
            '"fairseq_clusterformer[vectors]"'
        ) from None
    return dict(zip(METHODS, (Word2Vec, FastText), strict=True))[method]


def _write_words(
    documents: Iterable[Iterator[bytes]], path: Path, lower_case: bool
) -> dict[str, int]:
    """Write documents as lines of words with blanks between, none of them of two documents."""
    counts = {"documents": 0, "words": 0}
    with open(path, "w", encoding="utf-8") as file:
        for lines in documents:
            words = (word for line in lines for word in _words(line, lower_case))
            before = counts["words"]
            while part := list(islice(words, _AT_ONCE)):
                file.write(" ".join(part) + "\n")
                counts["words"] += len(part)
            counts["documents"] += counts["words"] > before
    return counts


def _words(line: bytes, lower_case: bool) -> list[str]:
    text = composed(line.decode())
    return words_of(text.lower() if lower_case else text)
