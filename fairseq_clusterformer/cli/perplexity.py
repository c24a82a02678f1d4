#!/usr/bin/env python3
"""Perplexity of a language model token by token, as it would write, beside the teacher-forced one.

    python scripts/stepwise_perplexity.py --checkpoint checkpoint_best.pt --data DATA_BIN

Each token is predicted from a state that has seen the tokens before it and nothing else. For an
honest model both numbers agree, and agree with ``fairseq-eval-lm`` on the same blocks. A model
that cannot decode step by step (``--cluster-rule leaking-chunk``, the mask of CF22 appendix B) is
run anew on every prefix instead: what it gains from later tokens when teacher-forced shows as the
difference.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from fairseq import checkpoint_utils
from fairseq.tasks.language_modeling import LanguageModelingTask
from torch import Tensor
from tqdm import tqdm

import fairseq_clusterformer.plugin  # noqa: F401
from fairseq_clusterformer.errors import LOADING, write_aside

PREFIXES_AT_ONCE = 64


def load(checkpoint: str, data: str, subset: str, tokens_per_sample: int | None):
    """The model and the blocks that ``fairseq-eval-lm`` would score."""
    overrides = {"data": data}
    if tokens_per_sample is not None:
        overrides["tokens_per_sample"] = tokens_per_sample
    models, _, task = checkpoint_utils.load_model_ensemble_and_task(
        [checkpoint], arg_overrides=overrides
    )
    task.load_dataset(subset)
    return models[0].eval(), task, task.dataset(subset)


def parallel(model, tokens: Tensor, target: Tensor) -> Tensor:
    """Log-probabilities of the targets [B, N] in one pass over inputs [B, N]."""
    probs = model.get_normalized_probs(model(tokens), log_probs=True)
    return probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def by_state(model, tokens: Tensor, target: Tensor) -> Tensor:
    """The same, one token at a time through the incremental state."""
    state: dict = {}
    columns = []
    for t in range(tokens.size(1)):
        out = model.decoder(tokens[:, : t + 1], incremental_state=state)
        probs = model.get_normalized_probs(out, log_probs=True)[:, -1]
        columns.append(probs.gather(-1, target[:, t : t + 1]))
    return torch.cat(columns, dim=1)


def by_prefix(model, tokens: Tensor, target: Tensor, pad: int) -> Tensor:
    """The same, each token from a pass over the tokens before it alone."""
    batch, length = tokens.shape
    result = torch.empty(batch, length)
    for row in range(batch):
        for begin in range(0, length, PREFIXES_AT_ONCE):
            ends = torch.arange(begin, min(length, begin + PREFIXES_AT_ONCE))
            longest = int(ends[-1]) + 1
            prefixes = tokens[row, :longest].repeat(len(ends), 1)
            prefixes[torch.arange(longest) > ends.unsqueeze(-1)] = pad
            last, extra = model(prefixes)
            last = last[torch.arange(len(ends)), ends].unsqueeze(1)
            probs = model.get_normalized_probs((last, extra), log_probs=True)[:, 0]
            result[row, ends] = probs.gather(-1, target[row, ends].unsqueeze(-1)).squeeze(-1)
    return result


@torch.no_grad()
def compare(model, task, dataset, max_blocks: int | None, method: str) -> dict[str, float]:
    """Both losses in bits a token, their perplexities, and the largest difference of a token."""
    pad = task.source_dictionary.pad()
    blocks = range(len(dataset) if max_blocks is None else min(max_blocks, len(dataset)))
    sums, tokens, largest = [0.0, 0.0], 0, 0.0
    for i in tqdm(blocks, unit="block", disable=not sys.stderr.isatty()):
        sample = dataset.collater([dataset[i]])
        source, target = sample["net_input"]["src_tokens"], sample["target"]
        forced = parallel(model, source, target)
        if method == "state":
            stepwise = by_state(model, source, target)
        else:
            stepwise = by_prefix(model, source, target, pad)
        real = target.ne(pad)
        sums[0] -= forced[real].double().sum().item()
        sums[1] -= stepwise[real].double().sum().item()
        tokens += int(real.sum())
        largest = max(largest, (forced - stepwise)[real].abs().max().item())
    bits = [total / tokens / math.log(2) for total in sums]
    return {
        "tokens": tokens,
        "teacher-forced bits": bits[0],
        "stepwise bits": bits[1],
        "teacher-forced perplexity": 2 ** bits[0],
        "stepwise perplexity": 2 ** bits[1],
        "largest difference of a log-probability": largest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", required=True, help="of a language model")
    parser.add_argument("--data", required=True, help="binarised folder")
    parser.add_argument("--gen-subset", default="valid", help="default: valid")
    parser.add_argument("--tokens-per-sample", type=int, help="default: as trained")
    parser.add_argument("--max-blocks", type=int, help="score the first blocks only")
    parser.add_argument("--out", type=Path, help="also write the numbers as JSON")
    args = parser.parse_args()

    if not Path(args.checkpoint).is_file():
        sys.exit(f"--checkpoint is {args.checkpoint}; allowed: a checkpoint file that exists")
    if not (Path(args.data) / f"{args.gen_subset}.idx").is_file():
        sys.exit(
            f"--data is {args.data}; allowed: a folder with {args.gen_subset}.idx, "
            "see scripts/prepare_*"
        )
    for option, value in (
        ("--max-blocks", args.max_blocks),
        ("--tokens-per-sample", args.tokens_per_sample),
    ):
        if value is not None and value < 1:
            sys.exit(f"{option} is {value}; allowed: 1 or more")
    try:
        model, task, dataset = load(
            args.checkpoint, args.data, args.gen_subset, args.tokens_per_sample
        )
    except LOADING as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        sys.exit(
            f"--checkpoint is {args.checkpoint} and --data is {args.data}: cannot be loaded "
            f"({reason}); allowed: a language model that fairseq has written, and its data"
        )
    if not isinstance(task, LanguageModelingTask):
        sys.exit(
            f"--checkpoint is {args.checkpoint}, of the task {type(task).__name__}; "
            "allowed: a language model"
        )
    longest = model.max_positions()
    if args.tokens_per_sample is not None and args.tokens_per_sample > longest:
        sys.exit(f"--tokens-per-sample is {args.tokens_per_sample}; allowed: {longest} or less")
    if len(dataset) == 0:
        sys.exit(f"--gen-subset is {args.gen_subset}, which is empty; allowed: one with text")
    leaks = getattr(model.decoder, "leaks_future", False)
    result = compare(model, task, dataset, args.max_blocks, "prefix" if leaks else "state")
    if leaks:
        print("this model lets later tokens change earlier outputs: stepwise is by prefix")
    for name, value in result.items():
        print(f"{name:>40}  {value:.6g}")
    if args.out is not None:
        write_aside(args.out, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
