"""Writes the tables of options into their pages.

    python docs/generate.py

A table of options follows a line ``<!-- options: NAME -->``; TABLES has its dataclasses.
"""

import argparse
import importlib
import re
from collections.abc import Collection
from dataclasses import MISSING, fields
from pathlib import Path

DOCS = Path(__file__).resolve().parent
#: user-dirs of examples/ with options of their own, by what they are imported as
PLUGINS = {"xlqa": DOCS.parent / "examples/xlqa", "openkp": DOCS.parent / "examples/etc/openkp"}
#: pages with tables of options
OPTIONS = [
    DOCS / "options.md",
    *(
        DOCS.parent / "examples" / task / "OPTIONS.md"
        for task in ("classification", "etc", "question_answering", "translation")
    ),
    *(folder / "README.md" for folder in PLUGINS.values()),
]
_LOSSES = "criterions.clustering_losses:ClusteringLossConfig"
#: the options of ``module:Class``; a class that begins with ``-`` only takes options away
TABLES = {
    "language model": "-fairseq.models.transformer_lm:TransformerLanguageModelConfig"
    " models.clusterformer_lm:ClusterformerLanguageModelConfig",
    "translation": "-models.options:ClusteringOptions models.clusterformer:ClusterformerOptions",
    "classifier": "-models.encoder:EncoderOnlyOptions"
    " models.clusterformer_classifier:ClusterformerClassifierConfig",
    "etc": "-models.encoder:EncoderOptions etc.encoder:ETCOptions",
    "etc pre-training": "etc.masked_lm:ETCMaskedLMTaskConfig etc.masked_lm:ETCMaskedLMLossConfig",
    "etc keyphrases": "-etc.encoder:ETCOptions openkp.model:ETCKeyphrasesConfig",
    "keyphrases": "openkp.task:ETCKeyphrasesTaskConfig openkp.task:ETCKeyphrasesLossConfig",
    "sentences": "tasks.clusterformer_sentence:ClusterformerSentenceConfig",
    "etc reader": "-etc.encoder:ETCOptions etc.reader:ETCReaderConfig",
    "reader": "-models.encoder:EncoderOptions -models.options:ClusteringOptions"
    " models.clusterformer_reader:ClusterformerReaderConfig",
    "bidaf": "xlqa.readers:BidafReaderConfig",
    "qanet": "-xlqa.readers:BidafReaderConfig -models.options:ClusteringOptions"
    " xlqa.readers:QANetReaderConfig",
    "questions": f"tasks.clusterformer_qa:ClusterformerQAConfig -{_LOSSES}"
    " criterions.clusterformer_qa:ClusterformerQAConfig",
    "losses": _LOSSES,
    "ranking": f"-{_LOSSES}"
    " criterions.clusterformer_sentence_prediction:ClusterformerSentencePredictionConfig",
}
#: how a clause begins that a short help leaves out
_MORE = "which|whose|as in|instead|separated|each|but|from|so that|with|written|if|before|such as"
_TABLE = re.compile(r"(<!-- options: (.+?) -->\n)(?:\|.*\n)*")


def option_table(owners: list[str], before: Collection[str] = ()) -> str:
    """The options that these dataclasses have, without those of earlier ones of the list and
    without the lines of tables before."""
    rows, known = ["| option | default | meaning |", "|---|---|---|"], set()
    for owner in owners:
        module, name = owner.removeprefix("-").split(":")
        ours = not module.startswith(("fairseq.", *PLUGINS))
        path = f"fairseq_clusterformer.{module}" if ours else module
        for field in fields(getattr(importlib.import_module(path), name)):
            if field.name.startswith("_") or field.name in known:
                continue
            known.add(field.name)
            text = _short(field.metadata.get("help", ""))
            if not owner.startswith("-") and text and field.default != "???":
                option = "--" + field.name.replace("_", "-")
                row = f"| `{option}` | {_shown(field)} | {text} |"
                if not any(row.split("|")[1:3] == each.split("|")[1:3] for each in before):
                    rows.append(row)
    return "\n".join(rows) + "\n"


def _short(text: str) -> str:
    """The beginning of a help: what may be chosen stays, what explains it goes."""
    cuts = "; ", r": (?![\w-]+(?:(?:, | or )[\w-]+)*$)", f", (?:{_MORE})\\b"
    if len(text) > 60:
        text = re.sub(r" \([^()]*\)", "", text)
    for cut in cuts:
        first = re.split(cut, text)[0]
        if len(text) > 60 and len(first) > 15:
            text = first
    text = re.sub(r"; \w+$", "", text)  # of "0: as many as ..."
    return text.replace("|", "\\|").replace("<", "&lt;")


def _shown(field) -> str:
    default = field.default if field.default is not MISSING else field.default_factory()
    if default is False:
        return "off"
    return "-" if default in (None, "", []) else f"`{default}`"


def options(page: str) -> str:
    """A page with today's tables."""
    from fairseq.utils import import_user_module

    import fairseq_clusterformer.plugin  # noqa: F401  registers all dataclasses

    for folder in PLUGINS.values():
        import_user_module(argparse.Namespace(user_dir=str(folder)))

    shown: list[str] = []

    def table(found: re.Match) -> str:
        lines = option_table(TABLES[found[2]].split(), shown)
        shown.extend(lines.splitlines()[2:])
        return found[1] + lines

    return _TABLE.sub(table, page)


if __name__ == "__main__":
    for page in OPTIONS:
        page.write_text(options(page.read_text()))
