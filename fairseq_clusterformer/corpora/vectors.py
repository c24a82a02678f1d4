"""Vectors of words from plain text, by gensim, in GloVe's text form: a line is a word and its
numbers, separated by blanks; frequent words come first."""

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
    sources: Sequence[Path], out: Path, *, workers: int, force: bool, **recipe
) -> dict[str, int] | None:
    """Learn vectors of the words in some text, and write them; always the same if `workers` is 1.
    The arguments are the options of ``clusterformer vectors``; all are needed. Returns how many
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
        allowed = 'pip install "fairseq_clusterformer[vectors]"'
        raise UserError(
            f"clusterformer vectors needs gensim ({error}); allowed: {allowed}"
        ) from None
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
