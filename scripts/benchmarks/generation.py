"""Time of generating a sentence with a clustered and with a dense model.

    python -m scripts.benchmarks.generation --lengths 30 2000 --json RESULT.json
    python -m scripts.benchmarks.generation --checkpoints CLUSTERED.pt DENSE.pt --data DATA

Two translation models of the same size decode the same forced text step by step, as a beam search
does. The models are trained ones (--checkpoints), or have random weights. They take turns, and the
numbers are medians.
"""

import statistics
import sys
from argparse import Namespace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer import TransformerModel
from torch import Tensor, nn

from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.compat import silence_known_warnings
from fairseq_clusterformer.models.clusterformer import ClusterformerModel
from scripts.benchmarks import common

VOCABULARY, SOURCE = 4000, 30
#: of the models with random weights
RANDOM = {"decoder_attention": "window*2,window+neural", "attention_window": 128}
RANDOM |= {"num_clusters": 3, "max_source_positions": 1024, "share_all_embeddings": True}
RANDOM |= {"dropout": 0.0}
ARCH = "clusterformer_tiny"
COLUMNS = common.columns(
    "length | sentences | beam | clustered ms per sentence: .2f | dense ms per sentence: .2f | "
    "ratio: .3f | lowest ratio: .3f | highest ratio: .3f"
)


def build(args: Namespace, length: int) -> list[nn.Module]:
    """A clustered model and a dense one, with positions for texts of that length."""
    if args.checkpoints:
        positions = {"max_target_positions": length + 2}
        options = {"data": args.data, "option": "--checkpoints", **positions}
        return [load_checkpoint(path, **options).model for path in args.checkpoints]
    dictionary = Dictionary()
    for number in range(VOCABULARY):
        dictionary.add_symbol(str(number))
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    models = []
    for model in (ClusterformerModel, TransformerModel):
        options = Namespace(max_target_positions=length + 2, **RANDOM)
        ARCH_CONFIG_REGISTRY[ARCH](options)
        models.append(model.build_model(options, task).eval())
    return models


def decode(model: nn.Module, encoder_out: dict, tokens: Tensor, beam: int) -> Tensor:
    """Logits [B, N, V] of forced tokens [B, N], one step after another."""
    state: dict = {}
    order = torch.arange(len(tokens))
    logits = []
    for t in range(tokens.size(1)):
        if beam > 1 and t > 0:
            model.decoder.reorder_incremental_state_scripting(state, order)
        out, _ = model.decoder(
            tokens[:, : t + 1], encoder_out=encoder_out, incremental_state=state
        )
        logits.append(out[:, -1])
    return torch.stack(logits, dim=1)


@torch.no_grad()
def compare(args: Namespace, length: int, batch: int, beam: int) -> dict:
    """One row of the table."""
    models = build(args, length)
    vocabulary = models[0].decoder.embed_tokens.num_embeddings
    tokens = torch.randint(4, vocabulary, (batch * beam, length))
    source = torch.randint(4, vocabulary, (batch, SOURCE)).repeat_interleave(beam, 0)
    runs = {
        name: partial(decode, model, model.encoder(source), tokens, beam)
        for name, model in zip(("clustered", "dense"), models, strict=True)
    }
    seconds = common.interleaved(runs, args.repeats, "cpu")
    ratios = [c / d for c, d in zip(*seconds.values(), strict=True)]
    row = {"length": length, "sentences": batch, "beam": beam}
    for name, times in seconds.items():
        row[f"{name} ms per sentence"] = statistics.median(times) * 1e3 / batch
    row |= {"ratio": common.median_ratio(*seconds.values()), "lowest ratio": min(ratios)}
    return row | {"highest ratio": max(ratios)}


def main(argv: list[str] | None = None) -> int:
    numbers = {
        "--lengths": ([30, 2000], "tokens"),
        "--sentences": ([1, 32], "of a batch"),
        "--beam": ([1, 5], ""),
        "--threads": (1, ""),
    }
    parser = common.make_parser("scripts.benchmarks.generation", __doc__, numbers)
    parser.add_argument("--checkpoints", type=Path, nargs=2, metavar=("CLUSTERED", "DENSE"))
    parser.add_argument("--data", type=Path, help="of the checkpoints, if it has moved")
    parser.set_defaults(repeats=5)
    args = parser.parse_args(argv)
    silence_known_warnings()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    trained = args.checkpoints and " and ".join(map(str, args.checkpoints))
    settings = trained or f"random weights, {ARCH}, {RANDOM['decoder_attention']}"
    sizes = product(args.lengths, args.sentences, args.beam)
    rows = (compare(args, *size) for size in sizes)
    return common.report(parser, args, COLUMNS, settings, rows)


if __name__ == "__main__":
    sys.exit(main())
