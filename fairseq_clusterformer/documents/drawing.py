"""The clusters that a reader sees in a document. Words are whole, also where a token is part of
one; ``<s>`` leads a paragraph."""

from pathlib import Path

import regex

from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.errors import bad_option

from ..visual.language_model import describe_model
from ..visual.words import ClusteredText, DrawnLayer, describe
from .read import Reader
from .sections import Section
from .sources import read_source

START = "<s>"
TOKENS = 20_000  # of a document, from its beginning


def words_of(section: Section) -> list[str]:
    """The word that each token is part of; ``<s>`` of what leads a paragraph, empty of a title."""
    words = [""] * len(section.tokens)
    starts, ends = section.document.characters.tolist()
    for _, text, tokens in section.paragraphs():
        found = {
            place: match[0]
            for match in regex.finditer(r"\w+|[^\w\s]", text)
            for place in range(*match.span())
        }
        words[tokens[0]] = START
        for token in tokens[1:]:
            held = (found[place] for place in range(starts[token], ends[token]) if place in found)
            words[token] = next(held, "")
    return words


def read_clusters(loaded: Loaded, path: Path, question: str) -> ClusteredText:
    """Read the beginning of a document with a reader, for a question; raises UserError if no layer
    clusters, or the file or the question cannot be read."""
    source, reader = read_source(path), Reader(loaded)
    section = reader.sections(source, TOKENS)[0]
    read = reader.read(reader.question(question), section, 1)
    if not read.clusters:
        allowed = "a reader with a --cluster-attention that clusters, such as kmeans"
        raise bad_option("--checkpoint", loaded.path, allowed, "no layer clusters")
    tokens, words = section.shown(), words_of(section)
    for start in section.document.starts.tolist()[1:]:
        tokens[start] = "\n"  # between paragraphs
    layers = []
    for (number, name), clusters in read.clusters.items():
        of_tokens = clusters.tolist()
        described = describe([tokens], [of_tokens], max(of_tokens) + 1, endings=[words])
        layers.append(DrawnLayer(number, name, None, of_tokens, described))
    return ClusteredText(
        model=describe_model(loaded),
        unit="subword",
        tokens=tokens,
        row=len(tokens),
        counted=f"Sizes and words are counted over these {len(tokens):,} subwords.",
        note=f"The document is {source.name}.",
        layers=layers,
    )
