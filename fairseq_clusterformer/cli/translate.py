#!/usr/bin/env python3
"""Translate text as people write it, by a translation model of fairseq.

    python scripts/translate.py --checkpoint checkpoint_best.pt "Ein Satz." "Noch einer."
    python scripts/translate.py --checkpoint checkpoint_best.pt --input text.de > text.en

Each line of the input (--input, else stdin) is one sentence and becomes one line of output, or
--nbest lines; empty lines stay empty. Text is tokenised, lower-cased and split into subwords as
the training data was, and put together again afterwards. If that data was lower-cased, so is the
translation; --capitalize writes the first letter of each line large. All input is read before
anything is translated: a line longer than the model allows is an error, which names the line.
"""

import argparse
import logging
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from fairseq import checkpoint_utils, utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from fairseq_cli.generate import get_symbols_to_strip_from_output

import fairseq_clusterformer.plugin  # noqa: F401
from fairseq_clusterformer.cli.common import whole_number
from fairseq_clusterformer.errors import LOADING, UserError
from fairseq_clusterformer.text import TextPipeline


class Translator:
    """One model, or an ensemble, and the text pipeline of its data.

    Args:
        checkpoints: files; several are an ensemble.
        data: the folder of the training data; None: where the first checkpoint was trained on.
        beam: hypotheses followed at once.
        lenpen: scores are divided by the length to this power.
        batch_size: sentences at once.
        cpu: do not use an accelerator.

    Raises:
        UserError: files that are missing, or no translation model.
    """

    def __init__(
        self,
        checkpoints: Sequence[str],
        data: str | None = None,
        *,
        beam: int = 5,
        lenpen: float = 1.0,
        batch_size: int = 32,
        cpu: bool = False,
    ):
        self.models, cfg, self.task = _load(checkpoints, data)
        self.cuda = torch.cuda.is_available() and not cpu
        self.batch_size = batch_size
        for model in self.models:
            model.prepare_for_inference_(cfg)
            if self.cuda:
                model.cuda()
        generation = GenerationConfig(beam=beam, lenpen=lenpen)
        self.generator = self.task.build_generator(self.models, generation)
        self.source, self.target = self.task.cfg.source_lang, self.task.cfg.target_lang
        self.text = TextPipeline.from_folder(utils.split_paths(self.task.cfg.data)[0])

    def translate(self, lines: Sequence[str], nbest: int = 1) -> list[list[tuple[float, str]]]:
        """The `nbest` best translations of each line: log-probability (base 2) over length, text.

        The list of an empty line is empty.

        Raises:
            UserError: a line is longer than the model allows.
        """
        subwords = [self.text.encode(line, self.source) for line in lines]
        wanted = [i for i, line in enumerate(subwords) if line]  # what says nothing stays empty
        tokens, lengths = self.task.get_interactive_tokens_and_lengths(
            [subwords[i] for i in wanted], lambda line: line
        )
        limits = utils.resolve_max_positions(
            self.task.max_positions(), *[model.max_positions() for model in self.models]
        )
        for i, length in zip(wanted, lengths, strict=True):
            if length > limits[0]:
                raise UserError(
                    f"line {i + 1} has {length} subwords with its end; allowed: {limits[0]} or "
                    "fewer, the positions that the model has"
                )
        found: list[list[tuple[float, str]]] = [[] for _ in lines]
        if not wanted:
            return found
        batches = self.task.get_batch_iterator(
            dataset=self.task.build_dataset_for_inference(tokens, lengths),
            max_sentences=self.batch_size,
            max_positions=limits,
        )
        for batch in batches.next_epoch_itr(shuffle=False):
            ids = batch["id"].tolist()
            batch = utils.move_to_cuda(batch) if self.cuda else batch
            results = self.task.inference_step(self.generator, self.models, batch)
            for i, hypotheses in zip(ids, results, strict=True):
                found[wanted[i]] = [
                    self._readable(hypothesis) for hypothesis in hypotheses[:nbest]
                ]
        return found

    def _readable(self, hypothesis: dict) -> tuple[float, str]:
        subwords = self.task.target_dictionary.string(
            hypothesis["tokens"].int().cpu(),
            extra_symbols_to_ignore=get_symbols_to_strip_from_output(self.generator),
        )
        return float(hypothesis["score"]) / math.log(2), self.text.decode(subwords, self.target)


def _load(checkpoints: Sequence[str], data: str | None):
    """Models, their configuration and their task.

    Raises:
        UserError: files that are missing, or no translation model.
    """
    for path in checkpoints:
        if not Path(path).is_file():
            raise UserError(f"--checkpoint is {path}: no such file; allowed: a checkpoint")
    first, *others = checkpoints
    overrides = {} if data is None else {"data": str(data)}
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(first, overrides)
        cfg = state.get("cfg") or convert_namespace_to_omegaconf(state["args"])
        folder = utils.split_paths(cfg.task.data)[0]
        if not Path(folder).is_dir():
            raise UserError(
                f"--data is {folder}{', as --checkpoint says' if data is None else ''}: no such "
                "folder; allowed: the data that the model was trained on, wherever it is now"
            )
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task([first], state=state)
        if not isinstance(task, TranslationTask):
            raise UserError(
                f"--checkpoint is {first}, of the task {type(task).__name__}; allowed: a "
                "translation model"
            )
        if others:
            models += checkpoint_utils.load_model_ensemble(others, overrides, task=task)[0]
    except LOADING as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(
            f"--checkpoint is {' '.join(checkpoints)}: cannot be loaded ({reason}); allowed: "
            "translation models that fairseq has written, and their data"
        ) from None
    return [model.eval() for model in models], cfg, task


def capitalize(text: str) -> str:
    """The text with its first letter large, whatever marks stand before it."""
    return re.sub(r"\w", lambda letter: letter[0].upper(), text, count=1)


def _lines(args: argparse.Namespace) -> list[str]:
    """The input; a line ends in a newline and nowhere else."""
    if args.sentences:
        return args.sentences
    name = args.input or "stdin"
    try:
        content = Path(name).read_bytes() if args.input else sys.stdin.buffer.read()
        text = content.decode()
    except OSError as error:
        raise UserError(f"--input is {name}: {error.strerror}; allowed: a text file") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{name}, line {line}: is not UTF-8; allowed: UTF-8 text") from None
    return text.removesuffix("\n").split("\n") if text else []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("sentences", nargs="*", metavar="SENTENCE", help="default: lines of --input or stdin")
    add(
        "--checkpoint",
        action="append",
        required=True,
        metavar="FILE",
        help="may be repeated: an ensemble",
    )
    add("--data", help="folder of the training data (default: as the checkpoint says)")
    add(
        "-s", "--source-lang", metavar="LANG", help="to be sure: an error if the model has another"
    )
    add("-t", "--target-lang", metavar="LANG")
    add("--input", metavar="FILE", help="a sentence a line")
    add("--beam", type=whole_number, default=5, help="default: %(default)s")
    add("--lenpen", type=float, default=1.0, help="length penalty (default: %(default)s)")
    add(
        "--batch-size",
        type=whole_number,
        default=32,
        help="sentences at once; default: %(default)s",
    )
    add("--nbest", type=whole_number, default=1, help="translations of each line, the best first")
    add("--scores", action="store_true", help="each line begins with log2 p / length, and a tab")
    add("--capitalize", action="store_true", help="the first letter of each line is made large")
    add("--cpu", action="store_true", help="even if there is an accelerator")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status; a user's mistake is one line on stderr and status 1."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.sentences and args.input:
        parser.error("sentences and --input are given; allowed: one of them")
    if args.nbest > args.beam:
        parser.error(f"--nbest is {args.nbest}; allowed: --beam, which is {args.beam}, or less")
    try:
        lines = _lines(args)
        translator = Translator(
            args.checkpoint,
            args.data,
            beam=args.beam,
            lenpen=args.lenpen,
            batch_size=args.batch_size,
            cpu=args.cpu,
        )
        for option, given, own in (
            ("-s", args.source_lang, translator.source),
            ("-t", args.target_lang, translator.target),
        ):
            if given not in (None, own):
                raise UserError(f"{option} is {given}; allowed: {own}, which the model has")
        found = translator.translate(lines, args.nbest)
    except (UserError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    for hypotheses in found:
        for points, text in hypotheses or [(None, "")] * args.nbest:
            text = capitalize(text) if args.capitalize else text
            print(f"{points:.4f}\t{text}" if args.scores and points is not None else text)
    return 0


if __name__ == "__main__":
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    sys.exit(main())
