"""Time and memory of training encoders for masked words, by the length of the input.

    python -m scripts.benchmarks.encoders --models etc full window+taught --lengths 1024 2048 4096

One forward and backward pass over one row of random words. ``etc`` is ``etc_masked_lm`` of
``--size``, with up to ``--parts`` global tokens whatever the length. ``etc, blocks`` has one for
each block of 97 tokens, as the paper's fixed blocks. All others are specs of
``--encoder-attention`` of ``clusterformer_masked_lm`` with the same sizes. Seconds and memory are
as of ``scripts.benchmarks.reader``.
"""

import logging
import sys
from argparse import Namespace

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_clusterformer.etc.encoder import SIZES
from fairseq_clusterformer.etc.masked_lm import ETCMaskedLM
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM
from fairseq_clusterformer.models.options import set_defaults
from scripts.benchmarks import common

WORDS = 8000
BLOCKS = "etc, blocks"
COLUMNS = common.columns(
    "model | tokens: , | seconds: .3f | times half the length: .2f | "
    "times as fast as full: .1f | peak MiB: ,.0f"
)


def make_model(name: str, args: Namespace, length: int) -> nn.Module:
    """A model with random weights."""
    dictionary = Dictionary()
    for word in range(WORDS - len(dictionary)):
        dictionary.add_symbol(str(word))
    task = Namespace(source_dictionary=dictionary, max_positions=lambda: length)
    options = Namespace(attention_kernel=args.impl, dropout=0.0)
    set_defaults(options, **SIZES[args.size])
    if name.startswith("etc"):
        options.block = 97 if name == BLOCKS else -(-length // args.parts)
        return ETCMaskedLM.build_model(options, task)
    options.encoder_attention, options.max_positions = name, length
    return ClusterformerMaskedLM.build_model(options, task)


def measure(name: str, length: int, args: Namespace) -> dict:
    """Least seconds of a forward and backward pass, and MiB; for a process of its own."""
    logging.disable(logging.INFO)
    torch.manual_seed(0)
    if name == "full":  # similarities, their softmax and gradients, if a kernel keeps them
        common.require_memory(12 * 4 * length**2 * args.batch, args.device)
    model = make_model(name, args, length).to(args.device)
    words = torch.randint(Dictionary().nspecial, WORDS, (args.batch, length), device=args.device)
    masked = torch.rand(words.shape, device=args.device) < 0.15

    def update(tokens: Tensor, guessed: Tensor) -> None:
        model.zero_grad()
        logits = model(tokens, masked_tokens=guessed)[0]
        nn.functional.cross_entropy(logits.float(), tokens[guessed]).backward()

    update(words[:, :512], masked[:, :512])
    repeats = range(args.repeats)
    seconds = [common.own_seconds(lambda: update(words, masked), args.device) for _ in repeats]
    return {"seconds": min(seconds), "peak MiB": common.peak_memory(args.device)}


def main(argv: list[str] | None = None) -> int:
    logging.disable(logging.INFO)
    numbers = {
        "--lengths": ([1024, 2048, 4096, 8192, 16384], "tokens, each twice the one before"),
        "--parts": (256, "global tokens of etc"),
        "--batch": (1, "rows"),
    }
    parser = common.make_parser("scripts.benchmarks.encoders", __doc__, numbers)
    models = ["full", "etc", BLOCKS, "window"]
    parser.add("--models NAME", "etc, or a kind of attention", nargs="+", default=models)
    parser.add("--size", "", choices=list(SIZES), default="small")
    args = parser.parse_args(argv)
    common.settle_device(parser, args)
    shown = ("size", "parts", "batch", "impl", "repeats")
    return common.report_by_length(parser, args, COLUMNS, shown, args.models, measure)


if __name__ == "__main__":
    sys.exit(main())
