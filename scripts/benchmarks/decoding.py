"""Prompts and decoding of a converted language model, beside the dense one in transformers.

    python -m scripts.benchmarks.decoding CHECKPOINT --dense FOLDER --text book.txt

A prompt is read, and the next tokens follow one by one. transformers uses its cache and PyTorch's
dense attention. Each measurement has a process of its own, and the models take turns; seconds are
of the clock, and medians. The memory at the peak includes the weights and all that was loaded.
"""

import logging
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

import fairseq_clusterformer.hf  # noqa: F401  hides a torchaudio that does not load
from fairseq_clusterformer.attention.past import tensors
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.use.language_model import LanguageModel
from scripts.benchmarks import common

COLUMNS = common.columns(
    "tokens: , | model | prompt seconds: .2f | ms per token: .1f | cache MiB: ,.1f | "
    "peak MiB: ,.0f | prompt times as fast: .2f | tokens times as fast: .2f"
)


class Reader(NamedTuple):
    """A model with a text."""

    tokens: Tensor  # of the text, as the model numbers them, int64 [n]
    read: Callable[[Tensor], Tensor]  # given the next tokens [1, N], logits of what follows [V]
    kept: Callable[[], Iterable[Tensor]]  # of the tokens that were read


def converted(args: Namespace, text: str) -> Reader:
    """Our model."""
    language = LanguageModel(load_checkpoint(args.checkpoint, option="CHECKPOINT"), device="cpu")
    decoder, state, before = language.model.decoder, {}, []

    def read(tokens: Tensor) -> Tensor:
        before.append(tokens)  # decoders are given all tokens, and read the new ones
        every = torch.cat(before, dim=1)
        features, _ = decoder(every, incremental_state=state, features_only=True)
        return decoder.output_layer(features[:, -1])[0]

    tokens = language._given(text, "text", 1)
    return Reader(tokens, read, lambda: tensors(state))


def transformers(args: Namespace, text: str) -> Reader:
    """The dense model."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(args.dense, dtype=torch.float32).eval()
    cache = DynamicCache()

    def read(tokens: Tensor) -> Tensor:
        return model(tokens, past_key_values=cache, logits_to_keep=1).logits[0, -1]

    tokens = AutoTokenizer.from_pretrained(args.dense)(text, return_tensors="pt").input_ids[0]
    return Reader(
        tokens, read, lambda: [t for layer in cache.layers for t in (layer.keys, layer.values)]
    )


MODELS = {"transformers": transformers, "converted": converted}


@torch.inference_mode()
def measure(name: str, length: int, args: Namespace) -> dict:
    """Seconds of a prompt and of the tokens behind it, and MiB; for a process of its own. A text
    that is too short is repeated."""
    logging.disable(logging.INFO)
    torch.set_num_threads(args.threads)
    model = MODELS[name](args, args.text.read_text(encoding="utf-8"))
    number = length + args.steps
    tokens = model.tokens.repeat(-(-number // len(model.tokens)))[:number].unsqueeze(0)
    prompt, *following = tokens.split([length, *[1] * args.steps], dim=1)
    row = {"prompt seconds": common.seconds_of(partial(model.read, prompt), "cpu")}
    seconds = [common.seconds_of(partial(model.read, token), "cpu") for token in following]
    row["ms per token"] = 1e3 * statistics.median(seconds)
    row["cache MiB"] = sum(t.numel() * t.element_size() for t in model.kept()) / common.MIB
    return row | {"peak MiB": common.peak_memory("cpu")}


def rows(args: Namespace) -> Iterator[dict]:
    """A row for each length and model."""
    for length in args.lengths:
        runs = {
            name: partial(common.in_own_process, measure, name=name, length=length, args=args)
            for name in MODELS
        }
        found = common.in_turns(runs, args.repeats)
        for name, repeats in found.items():
            row = {"tokens": length, "model": name}
            row |= {key: statistics.median(of[key] for of in repeats) for key in repeats[0]}
            for key, what in (("prompt seconds", "prompt"), ("ms per token", "tokens")):
                dense, ours = ([of[key] for of in found[n]] for n in ("transformers", name))
                row[f"{what} times as fast"] = common.median_ratio(dense, ours)
            yield row


def main(argv: list[str] | None = None) -> int:
    numbers = {
        "--lengths": ([2048, 8192, 32768], "tokens of a prompt"),
        "--steps": (32, "tokens behind it"),
        "--threads": (2, ""),
    }
    parser = common.make_parser("scripts.benchmarks.decoding", __doc__, numbers)
    parser.add("checkpoint CHECKPOINT", "that convert wrote")
    parser.add("--dense FOLDER", "what it was made of", required=True)
    parser.add("--text FILE", "to read", required=True)
    args = parser.parse_args(argv)
    common.settle_device(parser, args)
    torch.set_num_threads(args.threads)
    settings = f"{args.dense.name}, {args.steps} tokens, {args.repeats} repeats, float32"
    return common.report(parser, args, COLUMNS, settings, rows(args))


if __name__ == "__main__":
    sys.exit(main())
