"""Perplexity of a language model: in one pass, and token by token as it would write.

  clusterformer perplexity --checkpoint checkpoint_best.pt --data DATA --gen-subset test
  clusterformer perplexity --checkpoint BUNDLE --text novel.txt

It scores a split of a prepared folder, or a text file, in the blocks of fairseq-eval-lm: cut as
the training's texts were, by lines or by length. Step by step, each token is predicted from a
state that has seen the tokens before it and nothing else. For an honest model both numbers agree.
A model that cannot decode step by step (--cluster-rule leaking-chunk, the mask of CF22's appendix
B) reads every prefix anew instead: what it gains from later tokens in one pass shows as the
difference.
"""

import json
import sys
from collections.abc import Sequence

from fairseq_clusterformer.errors import bad_option, check_file
from fairseq_clusterformer.outputs import check_output, write_text

from .common import Parser, add_force, add_model, inputs_of


def _parser() -> Parser:
    parser = Parser(prog="clusterformer perplexity", description=__doc__)
    add = parser.add
    add_model(parser, "a language model's, a bundle, or an installed one: python-code, books-en")
    add("--gen-subset SPLIT", "of the folder (default: valid)")
    add("--text FILE", "a text file, instead of a split")
    add("--tokens-per-sample N", "of a block, as trained")
    about = "tokens before their segment that heads of kind xl see (default: as trained)"
    add("--memory N", about)
    add("--max-blocks N", "score the first N blocks")
    add("--teacher-forced", "one pass only, which is much faster")
    about = "also read all blocks as one text: each behind what the layers keep of those before, "
    add("--stream", about + "which is bounded except for the kind full")
    about = "also bits by position, and on rare identifiers (of bytes) or pairs (of pieces and "
    add("--breakdown", about + "words) that the text has had before, by how far back; one pass")
    about = "with --breakdown, what the training split holds at most N times is rare (default: "
    add("--rare N", about + "20; without the split, everything is)")
    add("--out FILE", "also write the numbers as JSON")
    add_force(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    if args.text:
        check_file("--text", args.text, "a file of text")
    if args.text and args.gen_subset:
        raise bad_option("--gen-subset", args.gen_subset, "none with --text")
    if args.rare is not None and not args.breakdown:
        raise bad_option("--rare", args.rare, "with --breakdown")
    how = {"inputs": inputs_of(args, args.text), "force": args.force}
    if args.out:
        check_output("--out", args.out, **how)

    from tqdm import tqdm

    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.use import perplexity
    from fairseq_clusterformer.use.breakdown import Breakdown
    from fairseq_clusterformer.use.language_model import LanguageModel

    length = args.tokens_per_sample
    given = {"tokens_per_sample": length} if length else {}
    loaded = load_checkpoint(args.checkpoint, data=args.data, task="language_modeling", **given)
    how["inputs"] += [loaded.path, loaded.folder]
    if args.out:  # again: now the model's own files are known
        check_output("--out", args.out, **how)
    language = LanguageModel(loaded, device="cpu" if args.cpu else None)
    model, coding = language.model, language.coding
    longest = model.max_positions()
    if length and length > longest:
        raise bad_option("--tokens-per-sample", length, f"{longest} or less")
    if args.memory:
        perplexity.remember(model, args.memory)
    if args.text:
        blocks = perplexity.text_blocks(loaded, args.text, f"--text is {args.text}")
    else:
        blocks = perplexity.split_blocks(loaded, args.gen_subset or "valid")
    breakdown = None
    if args.breakdown:
        has_training = (loaded.folder / "train.idx").is_file()
        training = perplexity.split_blocks(loaded, "train") if has_training else ()
        how_rare = {"rare": args.rare} if args.rare else {}
        breakdown = Breakdown(coding, (target for _, target in training), **how_rare)
    blocks = tqdm(blocks, unit="block", disable=not sys.stderr.isatty())
    ways = {"stepwise": not args.teacher_forced, "streamed": args.stream}
    result = perplexity.compare(model, blocks, most=args.max_blocks, breakdown=breakdown, **ways)
    whole = args.max_blocks is None and coding.unit != "word"  # <unk> stands for any bytes
    if args.text and whole:
        for way in ("teacher-forced", *["streamed"] * args.stream):
            bits = result[f"{way} bits"] * result["tokens"]
            result[f"{way} bits per byte"] = bits / args.text.stat().st_size
    if perplexity.leaks_future(model):
        print("this model lets later tokens change earlier outputs: stepwise is by prefix")
    for name, value in result.items():
        print(f"{name:>40}  {value:.6g}")
    if breakdown is not None:
        for title, buckets in breakdown.result().items():
            print(title)
            for found in buckets:
                span = f"{found['from']} to {found['to'] - 1}"
                print(f"{span:>40}  {found['bits']:.4f}  ({found['tokens']:,} tokens)")
        result |= breakdown.result()
    if args.out is not None:
        write_text("--out", args.out, json.dumps(result, indent=2) + "\n", **how)
    return 0
