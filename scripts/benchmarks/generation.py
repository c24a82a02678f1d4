#!/usr/bin/env python3
"""Time of generating a sentence, clustered and dense, side by side.

    python scripts/benchmark_generation.py --lengths 30 2000 --json RESULT.json
    python scripts/benchmark_generation.py --checkpoints CLUSTERED.pt DENSE.pt --data DATA

Two translation models of the same size, trained ones (--checkpoints) or as they begin, decode the
same forced text step by step, as a beam search does: one token a step for each hypothesis, and
the beam's choice of hypotheses after each. The models take turns, and the numbers are medians.
Before anything is timed, the clustered model's stepwise log-probabilities are compared with those
of its parallel pass, in float64; where they differ by more than rounding, nothing is reported.
"""

import argparse
import copy
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from torch import Tensor, nn

import fairseq_clusterformer.plugin  # noqa: F401
from fairseq_clusterformer.compat import silence_known_warnings
from fairseq_clusterformer.errors import write_aside
from fairseq_clusterformer.models.clusterformer import ClusterformerModel

VOCABULARY, SOURCE = 4000, 30
CHECKED = 200  # tokens


def build(arch: str, options: dict, length: int) -> tuple[nn.Module, nn.Module]:
    """A clustered model of the architecture, and a dense one with the same sizes."""
    dictionary = Dictionary()
    for number in range(VOCABULARY):
        dictionary.add_symbol(str(number))
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    limits = {"max_source_positions": 1024, "max_target_positions": length + 2}
    models = []
    for model in (ClusterformerModel, TransformerModel):
        args = argparse.Namespace(**options, **limits, share_all_embeddings=True, dropout=0.0)
        ARCH_CONFIG_REGISTRY[arch](args)
        models.append(model.build_model(args, task).eval())
    return models[0], models[1]


def load(args: argparse.Namespace, length: int) -> tuple[nn.Module, nn.Module]:
    """The models of two checkpoints, with positions for texts of that length."""
    overrides = {"max_target_positions": length + 2}
    if args.data:
        overrides["data"] = str(args.data)
    models = [
        checkpoint_utils.load_model_ensemble([str(path)], arg_overrides=overrides)[0][0].eval()
        for path in args.checkpoints
    ]
    return models[0], models[1]


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


def stepwise_difference(model: nn.Module, source: Tensor, tokens: Tensor) -> float:
    """Largest difference of a log-probability to the parallel pass, in float64."""
    model = copy.deepcopy(model).double()
    encoder_out = model.encoder(source)
    parallel, _ = model.decoder(tokens, encoder_out=encoder_out)
    stepwise = decode(model, encoder_out, tokens, beam=1)
    return (stepwise.log_softmax(-1) - parallel.log_softmax(-1)).abs().max().item()


@torch.no_grad()
def compare(args: argparse.Namespace, length: int, batch: int, beam: int) -> dict:
    """One row of the table."""
    if args.checkpoints:
        clustered, dense = load(args, length)
    else:
        options = {
            "decoder_attention": args.decoder_attention,
            "attention_window": args.attention_window,
            "num_clusters": args.num_clusters,
        }
        clustered, dense = build(args.arch, options, length)
    vocabulary = clustered.decoder.embed_tokens.num_embeddings
    tokens = torch.randint(4, vocabulary, (batch * beam, length))
    source = torch.randint(4, vocabulary, (batch, SOURCE)).repeat_interleave(beam, 0)
    states = {model: model.encoder(source) for model in (clustered, dense)}

    difference = stepwise_difference(clustered, source[:2], tokens[:2, :CHECKED])
    if difference > 1e-9:
        sys.exit(f"step by step, log-probabilities differ by {difference:.2g}: nothing is timed")

    seconds: dict[nn.Module, list[float]] = {clustered: [], dense: []}
    for _ in range(args.repeats):
        for model, times in seconds.items():
            begin = time.perf_counter()
            decode(model, states[model], tokens, beam)
            times.append((time.perf_counter() - begin) / batch)
    ratios = [c / d for c, d in zip(*seconds.values(), strict=True)]
    return {
        "length": length,
        "sentences": batch,
        "beam": beam,
        "clustered ms a sentence": round(statistics.median(seconds[clustered]) * 1e3, 2),
        "dense ms a sentence": round(statistics.median(seconds[dense]) * 1e3, 2),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(min(ratios), 3), round(max(ratios), 3)],
        "stepwise difference": difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoints", type=Path, nargs=2, metavar=("CLUSTERED", "DENSE"))
    parser.add_argument("--data", type=Path, help="of the checkpoints, if it has moved")
    parser.add_argument("--arch", default="clusterformer_tiny", help="default: %(default)s")
    parser.add_argument(
        "--decoder-attention", default="window*2,window+neural", help="%(default)s"
    )
    parser.add_argument("--attention-window", type=int, default=128, help="%(default)s")
    parser.add_argument("--num-clusters", type=int, default=3, help="%(default)s")
    parser.add_argument("--lengths", type=int, nargs="+", default=[30, 2000])
    parser.add_argument("--sentences", type=int, nargs="+", default=[1, 32], help="of a batch")
    parser.add_argument("--beam", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    args = parser.parse_args()
    if ARCH_MODEL_REGISTRY.get(args.arch) is not ClusterformerModel:
        known = [name for name, m in ARCH_MODEL_REGISTRY.items() if m is ClusterformerModel]
        sys.exit(f"--arch is {args.arch}; allowed: {', '.join(known)}")
    silence_known_warnings()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    rows = []
    shown = ("length", "sentences", "beam", "clustered ms a sentence", "dense ms a sentence")
    print("| " + " | ".join((*shown, "ratio")) + " |\n|" + " ---: |" * (len(shown) + 1))
    for length in args.lengths:
        for batch in args.sentences:
            for beam in args.beam:
                row = compare(args, length, batch, beam)
                spread = f"{row['ratio']} ({row['ratios'][0]} to {row['ratios'][1]})"
                print(
                    "| " + " | ".join([*(str(row[k]) for k in shown), spread]) + " |", flush=True
                )
                rows.append(row)
    if args.json:
        machine = f"{platform.machine()}, {args.threads} thread(s), torch {torch.__version__}"
        settings = {k: v for k, v in vars(args).items() if k != "json"}
        text = json.dumps(
            {"machine": machine, "settings": settings, "rows": rows}, indent=2, default=str
        )
        write_aside(args.json, text + "\n")


if __name__ == "__main__":
    main()
