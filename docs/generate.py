"""Writes what is generated in docs/: command-line.md and the tables of options.md.

    python docs/generate.py

A table of options.md follows a line ``<!-- options: NAME -->``; TABLES has its dataclasses.
"""

import argparse
import contextlib
import importlib
import re
from dataclasses import MISSING, fields
from pathlib import Path
from unittest import mock

DOCS = Path(__file__).resolve().parent
_LOSSES = "criterions.clustering_losses:ClusteringLossConfig"
#: the options of ``module:Class``; a class that begins with ``-`` only takes options away
TABLES = {
    "language model": "-fairseq.models.transformer_lm:TransformerLanguageModelConfig"
    " models.clusterformer_lm:ClusterformerLanguageModelConfig",
    "translation": "-models.options:ClusteringOptions models.clusterformer:ClusterformerOptions",
    "classifier": "-models.encoder_only:EncoderOnlyOptions"
    " models.clusterformer_classifier:ClusterformerClassifierConfig",
    "etc": "-models.encoder_only:EncoderOptions etc.masked_lm:ETCMaskedLMConfig",
    "etc pre-training": "etc.masked_lm_task:ETCMaskedLMTaskConfig"
    " etc.masked_lm_loss:ETCMaskedLMLossConfig",
    "etc keyphrases": "-etc.lift:LiftOptions etc.keyphrases_model:ETCKeyphrasesConfig",
    "keyphrases": "etc.keyphrases_task:ETCKeyphrasesTaskConfig"
    " etc.keyphrases_loss:ETCKeyphrasesLossConfig",
    "sentences": "tasks.clusterformer_sentence:ClusterformerSentenceConfig",
    "etc reader": "-etc.lift:LiftOptions etc.reader:ETCReaderConfig",
    "reader": "-models.encoder_only:EncoderOptions -models.options:ClusteringOptions"
    " models.clusterformer_reader:ClusterformerReaderConfig",
    "bidaf": "readers.bidaf:BidafReaderConfig",
    "qanet": "-readers.bidaf:BidafReaderConfig -models.options:ClusteringOptions"
    " readers.qanet:QANetReaderConfig",
    "questions": f"tasks.clusterformer_qa:ClusterformerQAConfig -{_LOSSES}"
    " criterions.clusterformer_qa:ClusterformerQAConfig",
    "losses": _LOSSES,
    "ranking": f"-{_LOSSES}"
    " criterions.clusterformer_sentence_prediction:ClusterformerSentencePredictionConfig",
}
_TABLE = re.compile(r"(<!-- options: (.+?) -->\n)(?:\|.*\n)*")


def parser_of(words: list[str]) -> argparse.ArgumentParser:
    """The parser of a command, caught when it is about to print its help."""
    from fairseq_clusterformer.cli.main import main

    caught: list[argparse.ArgumentParser] = []
    with (
        mock.patch.object(
            argparse.ArgumentParser, "print_help", lambda p, file=None: caught.append(p)
        ),
        contextlib.suppress(SystemExit),
    ):
        main([*words, "--help"])
    return caught[0]


def command_line() -> str:
    """docs/command-line.md."""
    from fairseq_clusterformer.cli.main import COMMANDS

    parts = [
        "# Command line\n\n`python docs/generate.py` writes this page from the commands' parsers; "
        "`--help` says more. `python -m fairseq_clusterformer` is the same as `clusterformer`. "
        "The exit status is 0 for success, 1 for a mistake in what was given, and 2 for a mistake "
        "in the command line. What takes a checkpoint takes a bundle too, `--data FOLDER` if the "
        "prepared folder has moved, `--user-dir FOLDER` for a plug-in of your own, and mostly "
        "`--cpu` to leave an accelerator alone.\n"
    ]
    for name, what in COMMANDS.items():
        parser = parser_of(name.split())
        parts.append(f"\n## clusterformer {name}\n\n{what[0].upper()}{what[1:]}.\n\n")
        parts += _arguments(parser)
        for corpora in parser._actions:
            if isinstance(corpora, argparse._SubParsersAction):
                own, *others = corpora.choices
                parts += [f"\n`{name} {own}`:\n\n", *_arguments(corpora.choices[own])]
                if not others:
                    continue
                parts.append(f"\n`{name} NAME --help` lists what is different for other corpora: ")
                parts.append(f"{', '.join(others)}.\n")
    return re.sub("\n{3,}", "\n\n", "".join(parts))


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    """A line for each argument: the first part of its help, and its default."""
    lines = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        shared = {"--cpu", "--data", "--user-dir"} & {*action.option_strings}
        if shared and not action.required:
            continue  # the page's beginning explains them
        value = parser._get_formatter()._format_args(action, action.dest.upper())
        names = ", ".join(action.option_strings)
        text = parser._get_formatter()._expand_help(action) if action.help else ""
        text = " ".join(text.split())
        first = re.split(r"; (?![^(]*\))", text)[0] if action.choices is None else text
        default = re.search(r" \(default: [^()]*\)", text.removeprefix(first))
        text = f"{first}{default[0] if default else ''}".replace("<", "&lt;").replace("*", "\\*")
        lines.append(f"- `{f'{names} {value}'.strip()}`{text and ': '}{text}\n")
    return lines


def option_table(owners: list[str]) -> str:
    """The options that these dataclasses have, and earlier ones of the list do not."""
    rows, known = ["| option | default | meaning |", "|---|---|---|"], set()
    for owner in owners:
        module, name = owner.removeprefix("-").split(":")
        path = module if module.startswith("fairseq.") else f"fairseq_clusterformer.{module}"
        for field in fields(getattr(importlib.import_module(path), name)):
            if field.name.startswith("_") or field.name in known:
                continue
            known.add(field.name)
            text = field.metadata.get("help", "").replace("|", "\\|").replace("<", "&lt;")
            if not owner.startswith("-") and text and field.default != "???":
                option = "--" + field.name.replace("_", "-")
                rows.append(f"| `{option}` | {_shown(field)} | {text} |")
    return "\n".join(rows) + "\n"


def _shown(field) -> str:
    default = field.default if field.default is not MISSING else field.default_factory()
    if default is False:
        return "off"
    return "none" if default in (None, "", []) else f"`{default}`"


def options(page: str) -> str:
    """docs/options.md with today's tables."""
    import fairseq_clusterformer.plugin  # noqa: F401  registers all dataclasses

    return _TABLE.sub(lambda found: found[1] + option_table(TABLES[found[2]].split()), page)


if __name__ == "__main__":
    (DOCS / "command-line.md").write_text(command_line())
    page = DOCS / "options.md"
    page.write_text(options(page.read_text()))
