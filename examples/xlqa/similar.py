"""Find the passages of documents that are most like a sentence, by an encoder of sentences.

    python examples/xlqa/similar.py letters report.pdf "The harbour was closed." --encoder MINILM

MINILM is a folder with config.json, model.safetensors and tokenizer.json, such as that of
all-MiniLM-L6-v2. A passage is a run of short paragraphs, or a piece of a long one, of up to 254
word pieces. Each is printed with the cosine of its vector and the sentence's (1: the same), its
file, its first paragraph and its first words. --index keeps the vectors for later runs.
"""

import sys
from collections.abc import Sequence
from textwrap import shorten

from fairseq_clusterformer.cli.common import Parser, check_encoder, harmless
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.errors import bad_option

NAME = "python examples/xlqa/similar.py"


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add
    add("document PATH", "files of text, Markdown, HTML or PDF, and folders of them", nargs="+")
    add("sentence TEXT", "what passages are compared with")
    add("--encoder FOLDER", "an encoder of sentences, of BERT's form", required=True)
    add("--top N", "passages to print", default=5)
    add("--index FOLDER", "keep vectors of passages here")
    add("--cpu", "do not use an accelerator")
    args = parser.parse_args(arguments)
    if not args.sentence.strip():
        raise bad_option("sentence", "empty", "a text")
    check_encoder(args.encoder)
    from fairseq_clusterformer.documents.passages import Index, Passages, SentenceEncoder
    from fairseq_clusterformer.documents.sources import read_sources
    from fairseq_clusterformer.use.base import device_of

    sources = read_sources(args.document, report=parser.say)
    device = device_of("cpu" if args.cpu else None)
    encoder = SentenceEncoder(args.encoder, Index(args.index), device)
    sections = [section for source in sources for section in encoder.sections(source)]
    cosines = Passages(sections, encoder).likeness(args.sentence)
    for rank, place in enumerate((-cosines).argsort(kind="stable")[: args.top], 1):
        section, cosine = sections[place], cosines[place]
        paragraph = section.pieces[0].number + 1
        print(harmless(f"{rank}. {cosine:.3f}: {section.source.name}, paragraph {paragraph}"))
        shown = shorten(section.text, 160, placeholder=" \u2026")
        print(harmless(f"   {shown}"))
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
