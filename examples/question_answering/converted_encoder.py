"""What a converted encoder loses: the states and the sentence vectors of long texts.

    clusterformer convert FOLDER clustered --text books.txt --max-positions 2048
    python -m examples.question_answering.converted_encoder clustered/checkpoint.pt \\
        --dense FOLDER --text more.txt --lengths 512 2048

The dense model reads as long texts: its learned positions are repeated as those of the converted
one are. Two others have its weights, too: windows, which show each query as many keys as the
converted model does, and pieces as long as the dense model was trained on, read apart. Printed are
cosines with the dense model, means over texts: of a token's states in the last layer, and of their
mean over a text; and the seconds of a text.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from examples.language_model.rivals import sight_of
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.cli.common import Parser
from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.conversion import as_checkpoint
from fairseq_clusterformer.conversion.convert import rebuilt
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.errors import bad_option, check_file
from fairseq_clusterformer.outputs import write_aside

NAME = "python -m examples.question_answering.converted_encoder"
#: states [N - 2, D] of a text, int64 [N], whose first and last token, which frame it, have none
Encode = Callable[[Tensor], Tensor]


def texts_of(
    coding: TextCoding, paths: Sequence[Path], length: int, most: int, ends: Tensor
) -> list[Tensor]:
    """Texts of so many tokens, between the two ``ends``, one behind another from each file, int64
    [length]. Raises UserError: there is none."""
    found: list[Tensor] = []
    for path in paths:
        try:
            tokens = coding.encode(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise bad_option("--text", path, "a file of UTF-8", str(error)) from None
        parts = [part for part in tokens.split(length - 2) if len(part) == length - 2]
        found += [framed(part, ends) for part in parts[: most - len(found)]]
    if not found:
        raise bad_option("--lengths", length, "no more tokens than a file of --text has")
    return found


def framed(part: Tensor, ends: Tensor) -> Tensor:
    """A text between the two tokens."""
    return torch.cat([ends[:1], part, ends[1:]])


@torch.no_grad()
def whole(model: nn.Module, tokens: Tensor) -> Tensor:
    """See `Encode`; the text is read at once."""
    return model.encode(tokens[None])["encoder_out"][0][1:-1, 0]


def in_pieces(model: nn.Module, most: int, tokens: Tensor) -> Tensor:
    """See `Encode`; pieces of up to ``most`` tokens, framed as texts are, know nothing of each
    other."""
    pieces, ends = tokens[1:-1].split(most - 2), tokens[[0, -1]]
    return torch.cat([whole(model, framed(piece, ends)) for piece in pieces])


def compared(models: dict[str, Encode], texts: Sequence[Tensor]) -> dict[str, dict[str, float]]:
    """The numbers of each model; the first is the one that the others are compared with."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in models}
    for encode in models.values():
        encode(texts[0])  # the first time takes longer
    for text in texts:
        right = None
        for name, encode in models.items():
            began = time.perf_counter()
            states = encode(text)
            seconds = time.perf_counter() - began
            right = states if right is None else right
            alike = cosine_similarity(states, right).mean()
            of_text = cosine_similarity(states.mean(0), right.mean(0), dim=0)
            found[name].append((float(alike), float(of_text), seconds))
    results = {}
    for name, rows in found.items():
        states, vectors, seconds = zip(*rows, strict=True)
        results[name] = {"states": fmean(states), "vector": fmean(vectors)}
        results[name]["seconds"] = median(seconds)
    return results


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
    with as_checkpoint(args.dense, None) as (path, _):
        given = load_checkpoint(path, task="masked_lm", option="--dense")
        known = (each.task.source_dictionary for each in (given, converted))
        if len({tuple(dictionary.symbols) for dictionary in known}) > 1:
            raise bad_option("--dense", args.dense, "a model of the same dictionary")
        trained, sight = int(given.model.max_positions()), sight_of(converted.model)
        window = f"window({sight.near + sight.far - 1})"  # keys on either side of a query
        dense, windows = (
            rebuilt(given, {"encoder": spec}, max_positions=most).model
            for spec in ("full", window)
        )
        coding = TextCoding.from_folder(given.folder, given.task.source_dictionary)
    models: dict[str, Encode] = {"dense": partial(whole, dense)}
    models["converted"] = partial(whole, converted.model)
    models[window] = partial(whole, windows)
    models[f"pieces of {trained:,}"] = partial(in_pieces, dense, trained)
    dictionary = given.task.source_dictionary
    ends, results = torch.tensor([dictionary.bos(), dictionary.eos()]), {}
    print(f"{'tokens':>7}  {'model':24}{'states':>9}{'vector':>9}{'s':>9}")
    for length in args.lengths:
        texts = texts_of(coding, args.text, length, args.texts, ends)
        results[length] = compared(models, texts)
        for name, columns in results[length].items():
            print(f"{length:7,}  {name:24}" + "".join(f"{x:9.4f}" for x in columns.values()))
    if args.out is not None:
        write_aside(args.out, json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
