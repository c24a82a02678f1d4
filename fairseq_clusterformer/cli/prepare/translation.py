"""Translation data for fairseq: Multi30k, IWSLT14 or WMT14, German and English.

Called by ``prepare_multi30k.sh``, ``prepare_iwslt14.sh`` and ``prepare_wmt14_en2de.sh``. DEST
becomes a folder as fairseq's ``translation`` task wants it, for both directions: ``dict.de.txt``
and ``dict.en.txt`` (the same, of both languages), ``train``, ``valid`` and ``test`` (and
``test1``) as ``.bin`` and ``.idx``. Beside them are the model of the subwords, in ``raw`` the text
of valid and test as it was, to compare translations with, and ``prepared.json``: what was asked
for, and what was kept and dropped of each split. DEST appears when it is complete: run the same
command again after an interruption. Once it is there, the command does nothing.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_clusterformer.cli.common import Parser, prepare_folder, whole_number
from fairseq_clusterformer.corpora.download import Archive
from fairseq_clusterformer.corpora.translation.build import prepare
from fairseq_clusterformer.corpora.translation.corpora import (
    IWSLT14,
    MULTI30K,
    WMT14,
    Corpus,
    iwslt14,
    multi30k,
    wmt14_en2de,
)
from fairseq_clusterformer.text import VOCABULARIES


@dataclass(frozen=True)
class _Command:
    """A corpus as its command offers it: its function, defaults and help."""

    corpus: Callable[[Path | None], Corpus]
    archives: Sequence[Archive]
    dest: str
    operations: int
    source: str = ""


_COMMANDS = {
    "multi30k": _Command(multi30k, MULTI30K, "multi30k", 4_000),
    "iwslt14": _Command(
        iwslt14,
        [IWSLT14],
        "iwslt14",
        10_000,
        ", unpacked or not, or split and tokenised text: train.de-en.de, train.de-en.en, valid... "
        "and test..., plain or .gz",
    ),
    "wmt14_en2de": _Command(
        wmt14_en2de,
        WMT14,
        "wmt14-en-de",
        32_000,
        ", unpacked or not, or tokenised text: src-train.txt (English), tgt-train.txt (German), "
        "...-val.txt and ...-test.txt",
    ),
}


def _parser(name: str) -> Parser:
    command = _COMMANDS[name]
    parser = Parser(prog=f"prepare_{name}.sh", description=__doc__)
    add = parser.add_argument
    add(
        "dest",
        metavar="DEST",
        type=Path,
        nargs="?",
        default=Path("data-bin", command.dest),
        help="the folder to make (default: %(default)s)",
    )
    places = dict.fromkeys(archive.url.rsplit("/", 1)[0] for archive in command.archives)
    checked = all(archive.checksum for archive in command.archives)
    add(
        "--source",
        metavar="DIR",
        type=Path,
        help=f"a folder that holds {', '.join(archive.name for archive in command.archives)}"
        f"{command.source}; without it, they are downloaded from {' and '.join(places)}"
        + ("" if checked else "; no checksum is known: what is downloaded cannot be verified"),
    )
    add(
        "--bpe-operations",
        metavar="N",
        type=whole_number,
        default=command.operations,
        help="merges to learn, or pieces with sentencepiece (default: %(default)s)",
    )
    add(
        "--vocabulary",
        choices=[kind.replace("_", "-") for kind in VOCABULARIES],
        default="subword-nmt",
        help="subwords of Moses' tokens (the default), or a sentencepiece model of the text",
    )
    add(
        "--extra-train",
        metavar="PREFIX",
        type=Path,
        action="append",
        default=[],
        help="more training text, raw, treated as the corpus's: PREFIX.de and PREFIX.en (or .gz), "
        "or a .tsv, .txt or .zip of lines English<TAB>German, as Tatoeba's; pairs of which one "
        "side is in valid or test are dropped; may be repeated",
    )
    add(
        "--workers",
        metavar="N",
        type=whole_number,
        default=1,
        help="processes that tokenise (default: %(default)s)",
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run ``prepare_<arguments[0]>.sh``; a user's mistake is one line on stderr and status 1."""
    name, *arguments = arguments
    parser = _parser(name)
    options = vars(parser.parse_args(arguments))
    options["bpe"] = options.pop("vocabulary").replace("-", "_")
    options["corpus"] = _COMMANDS[name].corpus(options.pop("source"))
    return prepare_folder({"prepare": prepare, **options})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
