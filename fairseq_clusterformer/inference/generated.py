"""Translations of a data set's split: made by fairseq-generate, and read from what it printed."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from fairseq_clusterformer.corpora.folder import RECORD
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.text import TextPipeline

from .bundle import as_checkpoint, is_bundle
from .load import load_checkpoint, read_state

PACKAGE = Path(__file__).resolve().parents[1]


def fairseq_generate(
    checkpoints: Sequence[Path], data: Path, split: str, out: Path, options: Sequence[object]
) -> Path:
    """Run fairseq-generate.

    Args:
        checkpoints: of translation models, or bundles; several are an ensemble.
        out: the folder for its output and its log.
        options: more of its command line.

    Returns:
        The file of its translations.

    Raises:
        UserError: if it fails, with its last line.
    """
    out.mkdir(parents=True, exist_ok=True)
    output, log = (out / f"generate-{split}.{ending}" for ending in ("txt", "log"))
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, path in enumerate(checkpoints):
            if is_bundle(path):  # fairseq reads files alone
                loaded = load_checkpoint(path, data=data)
                path = Path(folder) / f"{number}.pt"
                torch.save(as_checkpoint(loaded), path)
            files.append(str(path))
        # unbuffered, so that an error is the last line of the log
        command = [sys.executable, "-u", "-m", "fairseq_cli.generate", data]
        command += ["--user-dir", PACKAGE, "--path", os.pathsep.join(files)]
        command += ["--gen-subset", split, "--results-path", out, *options]
        command = [str(word) for word in command]
        with open(log, "w") as file:
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    if status:
        last = log.read_text(errors="replace").rstrip().split("\n")[-1]
        raise UserError(f"fairseq-generate ended with status {status}: {last}; see {log}")
    return output


def languages(
    checkpoints: Sequence[Path], source: str | None, target: str | None, pipeline: TextPipeline
) -> tuple[str, str]:
    """The languages to translate: as given, as the models have them, or as the data names them.

    Raises:
        UserError: languages that the models or the data do not have.
    """
    given = {"source_lang": source, "target_lang": target}
    for path in checkpoints:
        task = read_state(path, "--checkpoint", "translation")["cfg"].task
        for name in given:
            own = getattr(task, name)
            if own is None:  # it was trained without -s and -t
                continue
            if given[name] not in (None, own):
                raise bad_option(f"-{name[0]}", given[name], f"{own}, which {path} has")
            given[name] = own
    source, target = given.values()
    if source is None and target is None:
        source, target = pipeline.languages
    source = source or next(lang for lang in pipeline.languages if lang != target)
    target = target or next(lang for lang in pipeline.languages if lang != source)
    if {source, target} != set(pipeline.languages):
        raise UserError(
            f"-s is {source} and -t is {target}; allowed: {' and '.join(pipeline.languages)}, "
            "the languages of --data"
        )
    return source, target


def read_generated(text: str, name: str) -> tuple[list[str], list[str]]:
    """Best hypotheses and references of fairseq-generate's output, in order of sentence id.

    Args:
        text: with lines ``H-3<tab>score<tab>tokens`` and ``T-3<tab>tokens``; others are ignored.
        name: of the file, for messages.

    Raises:
        UserError: if nothing or not everything is there.
    """
    found: dict[str, dict[int, str]] = {"H": {}, "T": {}}
    for line in text.split("\n"):
        if match := re.match(r"(?:H-(\d+)\t[^\t]*|T-(\d+))\t(.*)", line):
            kind, number = ("H", match[1]) if match[1] else ("T", match[2])
            found[kind].setdefault(int(number), match[3])  # the first of an n-best list
    count = max(found["H"].keys() | found["T"].keys(), default=-1) + 1
    if told := re.search(r"Translated ([\d,]+) sentences", text):
        count = max(count, int(told[1].replace(",", "")))
    if not count:
        raise bad_option(
            "--generated", name, "what fairseq-generate prints", "no line begins with H-"
        )
    for kind, what in (("H", "hypotheses"), ("T", "references")):
        if missing := sorted(set(range(count)) - found[kind].keys()):
            some = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            raise bad_option(
                "--generated",
                name,
                "the whole output of fairseq-generate on data with references",
                f"{len(missing)} of {count} {what} are missing ({kind}-: {some})",
            )
    return tuple([lines[i] for i in range(count)] for lines in found.values())


def check_subwords(lines: Sequence[str], pipeline: TextPipeline | None) -> None:
    """Refuse sentencepiece's pieces where `pipeline` does not expect them, and the other way.

    Raises:
        UserError: if so.
    """
    pieces = any("\u2581" in line for line in lines)
    if pieces and pipeline is None:
        raise UserError("--generated has sentencepiece's pieces; allowed: those, with --data")
    if not pieces and pipeline is not None and pipeline.bpe == "sentencepiece":
        raise UserError(
            "--generated has no sentencepiece's pieces, as the data has; allowed: the output of "
            "fairseq-generate without --post-process, --bpe and --tokenizer"
        )


def raw_references(
    data: Path, split: str, target: str, count: int, reference: Path | None
) -> tuple[str, list[str] | None]:
    """Where the references are as they were written, and they themselves.

    Data made from tokenised text has that as raw text: then it is "tokens" and None.

    Args:
        reference: a file; None: what the data folder has.

    Raises:
        UserError: a file that cannot be read, or has other than `count` lines.
    """
    path = reference or data / "raw" / f"{split}.{target}"
    recipe = json.loads((data / RECORD).read_text())["recipe"]
    if reference is None and not (recipe.get("detokenised", True) and path.is_file()):
        return "tokens", None
    lines = read_text(path, "--reference").removesuffix("\n").split("\n")
    if len(lines) != count:
        allowed = f"{count}, one for each sentence translated (--split is {split})"
        raise bad_option("--reference", path, allowed, f"it has {len(lines)} lines")
    return str(path), lines


def read_text(path: Path, option: str) -> str:
    """A file of UTF-8 text that an option names; "-" is stdin.

    Raises:
        UserError: if it cannot be read.
    """
    try:
        return (sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise bad_option(option, path, "a file of UTF-8 text", reason) from None
