"""What a converted encoder loses: the states and the sentence vectors of long texts.

    clusterformer convert FOLDER clustered --text books.txt --max-positions 2048
    python -m examples.question_answering.converted_encoder clustered/checkpoint.pt \\
        --dense FOLDER --text more.txt --lengths 512 2048

The dense model reads as long texts: its learned positions are repeated as those of the converted
one are. Beside it stand windows of as many keys, and pieces as long as the dense model was trained
on, read apart. Printed are cosines with the dense model, means over texts: of a token's states in
the last layer, and of their mean over a text; and the seconds of a text.
"""

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from statistics import fmean, median

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from examples.language_model.converted import keys_of
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.cli.common import Parser, read_lines
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.conversion import as_checkpoint
from fairseq_clusterformer.conversion.convert import rebuilt
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.errors import bad_option, check_file
from fairseq_clusterformer.outputs import write_aside

NAME = "python -m examples.question_answering.converted_encoder"


@torch.no_grad()
def encode(model: nn.Module, ends: Tensor, most: int | None, text: Tensor) -> Tensor:
    """The states [N, D] of a text, int64 [N], between its two ``ends``, which have none here.
    Pieces of up to ``most`` tokens with their ends know nothing of each other; None: of one."""
    states = []
    for piece in text.split(most - 2 if most else len(text)):
        framed = torch.cat([ends[:1], piece, ends[1:]])
        states.append(model.encode(framed[None])["encoder_out"][0][1:-1, 0])
    return torch.cat(states)


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog=NAME, description=__doc__)
    add = parser.add
    add("checkpoint CHECKPOINT", "that convert wrote")
    add("--dense PATH", "what it was converted from", required=True)
    add("--text FILE", "to read", nargs="+", required=True)
    add("--lengths N", "tokens of a text", nargs="+", default=[512, 2048])
    add("--texts N", "of each length", default=10)
    add("--out FILE", "also write the numbers as JSON")
    args = parser.parse_args(arguments)
    for text in args.text:
        check_file("--text", text, "a file of text")
    converted = load_checkpoint(args.checkpoint, task="masked_lm", option="CHECKPOINT")
    most = int(converted.model.max_positions())
    for length in args.lengths:
        if not 3 <= length <= most:
            raise bad_option("--lengths", length, f"3 to {most}, the converted model's")
    with as_checkpoint(args.dense) as path:
        given = load_checkpoint(path, task="masked_lm", option="--dense")
        dictionary = given.task.source_dictionary
        if dictionary.symbols != converted.task.source_dictionary.symbols:
            raise bad_option("--dense", args.dense, "a model of the same dictionary")
        trained = int(given.model.max_positions())
        window = f"window({keys_of(converted.model)[0] - 1})"
        built = (rebuilt(given, {"encoder": x}, max_positions=most) for x in ("full", window))
        dense, windows = (each.model for each in built)
        coding = TextCoding.from_folder(given.folder, dictionary)
    ends = torch.tensor([dictionary.bos(), dictionary.eos()])
    models = {"dense": (dense, None), "converted": (converted.model, None)}
    models |= {window: (windows, None), f"pieces of {trained:,}": (dense, trained)}
    readers = {name: partial(encode, model, ends, size) for name, (model, size) in models.items()}
    results: dict[int, dict] = {}
    print(f"{'tokens':>7}  {'model':24}{'states':>9}{'vector':>9}{'s':>9}")
    for length in args.lengths:
        texts: list[Tensor] = []
        for path in args.text:
            tokens = coding.encode("\n".join(read_lines(path, "--text")))
            parts = [part for part in tokens.split(length - 2) if len(part) == length - 2]
            texts += parts[: args.texts - len(texts)]
        if not texts:
            raise bad_option("--lengths", length, "no more tokens than a file of --text has")
        columns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in models}
        for read in readers.values():
            read(texts[0])  # the first time takes longer
        for text in texts:
            right = None
            for name, read in readers.items():
                began = time.perf_counter()
                states = read(text)
                seconds = time.perf_counter() - began
                right = states if right is None else right
                alike = cosine_similarity(states, right).mean()
                of_text = cosine_similarity(states.mean(0), right.mean(0), dim=0)
                columns[name].append((float(alike), float(of_text), seconds))
        results[length] = {}
        for name, rows in columns.items():
            alike, of_text, seconds = zip(*rows, strict=True)
            row = {"states": fmean(alike), "vector": fmean(of_text), "seconds": median(seconds)}
            results[length][name] = row
            print(f"{length:7,}  {name:24}" + "".join(f"{x:9.4f}" for x in row.values()))
    if args.out is not None:
        write_aside(args.out, json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
