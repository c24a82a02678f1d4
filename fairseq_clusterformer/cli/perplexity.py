"""Perplexity of a language model: in one pass, and token by token as it would write.

  clusterformer perplexity --checkpoint checkpoint_best.pt --data DATA --gen-subset test
  clusterformer perplexity --checkpoint BUNDLE --text novel.txt

It scores a split of a prepared folder, or a text file, in the blocks of fairseq-eval-lm: cut as
the training's texts were, by lines or by length. Step by step, each token is predicted from a
state that has seen the tokens before it and nothing else. For an honest model both numbers agree.
A model that cannot decode step by step (--cluster-rule leaking-chunk, the mask of CF22's appendix
B) reads every prefix anew: the difference is what it gains from later tokens in one pass.
"""

import json
import sys
from collections.abc import Sequence

from fairseq_clusterformer.errors import bad_option, check_file
from fairseq_clusterformer.outputs import check_output, write_text

from .common import BEGIN, Parser, add_force, add_model, inputs_of, load_model


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer perplexity", description=__doc__)
    add = parser.add
    add_model(parser, "a language model's, a bundle, or an installed one: python-code, books-en")
    add("--gen-subset SPLIT", "of the folder (default: valid)")
    add("--text FILE", "a text file, instead of a split")
    add("--tokens-per-sample N", "of a block, as trained")
    add("--max-blocks N", "score the first N blocks")
    about = "tokens before their segment that heads of kind xl see (default: as trained)"
    add("--memory N", about)
    add("--begin SYMBOL", BEGIN)
    add("--teacher-forced", "one pass only, which is much faster")
    about = "also read all blocks as one text: each behind what the layers keep of those before, "
    add("--stream", about + "which is bounded except for the kind full")
    about = "also bits by position, and on rare identifiers (of bytes) or pairs (of pieces and "
    add("--breakdown", about + "words) that the text has had before, by how far back; one pass")
    about = "with --breakdown, what the training split holds at most N times is rare (default: "
    add("--rare N", about + "20; without the split, everything is)")
    add("--out FILE", "also write the numbers as JSON")
    add_force(parser)
    args = parser.parse_args(arguments)
    if args.text:
        check_file("--text", args.text, "a file of text")
    if args.text and args.gen_subset:
        raise bad_option("--gen-subset", args.gen_subset, "none with --text")
    if args.rare and not args.breakdown:
        raise bad_option("--rare", args.rare, "with --breakdown")
    how = {"inputs": inputs_of(args, args.text), "force": args.force}
    if args.out:
        check_output("--out", args.out, **how)
    length = args.tokens_per_sample
    options = {"tokens_per_sample": length, "xl_memory": args.memory}
    language = load_model(args, "language_modeling", **options)
    if args.begin is not None:
        language.begin_by(args.begin)
    from tqdm import tqdm

    from fairseq_clusterformer.attention.kinds.xl import XL
    from fairseq_clusterformer.use import perplexity

    loaded, model, coding = language.loaded, language.model, language.coding
    if length and length > (longest := model.max_positions()):
        raise bad_option("--tokens-per-sample", length, f"{longest} or less")
    memories = {head.options.memory for head in model.modules() if isinstance(head, XL)}
    if args.memory and memories != {args.memory}:
        allowed = "for a model with heads of kind xl, whose spec says no memory"
        raise bad_option("--memory", args.memory, allowed)
    if args.text:
        blocks = perplexity.text_blocks(loaded, args.text, f"--text is {args.text}")
    else:
        blocks = perplexity.split_blocks(loaded, args.gen_subset or "valid")
    ways = {"stepwise": not args.teacher_forced, "streamed": args.stream, "most": args.max_blocks}
    if args.breakdown:
        has_training = (loaded.folder / "train.idx").is_file()
        training = perplexity.split_blocks(loaded, "train") if has_training else ()
        known, rare = (target for _, target in training), args.rare or perplexity.RARE
        ways["breakdown"] = perplexity.Breakdown(coding, known, rare)
    blocks = tqdm(blocks, unit="block", disable=not sys.stderr.isatty())
    result = perplexity.compare(model, blocks, **ways)
    whole = args.max_blocks is None and coding.unit != "word"  # <unk> stands for any bytes
    if args.text and whole:
        for way in ("teacher-forced", *["streamed"] * args.stream):
            bits = result[f"{way} bits"] * result["tokens"]
            result[f"{way} bits per byte"] = bits / args.text.stat().st_size
    if perplexity.leaks_future(model):
        print("this model lets later tokens change earlier outputs: stepwise is by prefix")
    for name, value in result.items():
        print(f"{name:>40}  {value:.6g}")
    if args.breakdown:
        tables = ways["breakdown"].result()
        for title, buckets in tables.items():
            print(title)
            for found in buckets:
                span = f"{found['from']} to {found['to'] - 1}"
                print(f"{span:>40}  {found['bits']:.4f}  ({found['tokens']:,} tokens)")
        result |= tables
    if args.out is not None:
        how["inputs"] += [loaded.path, loaded.folder]
        write_text("--out", args.out, json.dumps(result, indent=2) + "\n", **how)
    return 0
