"""Turn a dense model into a clustered one, and fit its clusters to the dense attention.

  clusterformer convert checkpoint_best.pt clustered --data DATA
  clusterformer convert roberta.pt clustered --text book.txt --max-positions 4096
  clusterformer convert checkpoint_best.pt clustered --attention 'window(64)+taught(clusters=32)'
  clusterformer convert a-marian clustered --text source.txt target.txt

CHECKPOINT is a dense model: fairseq's transformer_lm, transformer or roberta, one of ours whose
attention is full, or a folder of transformers' GPT-2, BERT, RoBERTa, Marian, BART, Llama (SmolLM
too), Mistral, Qwen2 or Qwen3. OUT becomes a folder with checkpoint.pt and convert.json. Without a
data folder, it also has data/, which holds the dictionary and the subwords.
All dense weights are kept. The attention of each head is measured on texts of the model's own
task: heads that look near become windows, the others cluster. Heads change places within their
layer so that they fit its spec; this changes no output. Heads of the kind taught are fitted to the
dense attention; other kinds that learn clusters start anew. At the end stands the command that
goes on with training.

The model runs once over each batch; what its layers read is kept in half precision in OUT.partial,
and layers are fitted one after another. After a stop, the same command goes on.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairseq_clusterformer import __version__
from fairseq_clusterformer.errors import UserError, bad_option, check_file
from fairseq_clusterformer.outputs import check_output, check_utf8, checksum, written
from fairseq_clusterformer.ranges import Range

from .common import Parser, add_places, number

_LENGTH = 2048  # short texts are enough to teach a router
_OF_PLAN = ("max_positions", "rotary_scaling", "lr", "seed")
_LEGEND = """\
Shares of the dense head's attention. far: beyond the near window; best: that window and
the W heaviest keys beyond it; began, after: what window and clusters hold before and
after fitting, and by chance with as many keys. A head moves to its place in the layer."""


#: of a decoder's index; with --rings and of encoders
_INDEX = {"near": 256, "far": 128, "window_below": 0.01, "tokens": 1 << 15, "updates": 40}
_RINGS = {"near": 128, "far": 64, "window_below": 0.05, "tokens": 1 << 18, "updates": 300}


def _default(name: str) -> str:
    return f" (default: {_INDEX[name]:,}; with --rings or an encoder: {_RINGS[name]:,})"


def _parser() -> Parser:
    parser = Parser(prog="clusterformer convert", description=__doc__)
    add = parser.add
    add("checkpoint CHECKPOINT", "of a dense model, a bundle, or such a folder")
    add("out OUT", "the folder to make")
    add_places(parser)
    about = "of all layers (default: what the heads' attention suggests, by --clusters, --probes, "
    add("--attention SPEC", about + "--scouts, --window-below and the like)")
    add("--encoder-attention SPEC", "of a translator's encoder alone")
    add("--decoder-attention SPEC", "of a translator's decoder alone")
    about = "tokens that are near: the window of all heads"
    add("--near-window N", about + _default("near"))
    about = "W, tokens of their clusters that heads see beyond the near window: of an index, "
    about += "those with the largest logits; of an encoder, on either side"
    add("--far-window N", about + _default("far"))
    about = "a decoder sees the latest tokens of its clusters, and keeps no others"
    add("--rings", about, default=None)
    add("--clusters N", "of heads that cluster (default: positions / --far-window)")
    about = "clusters that a query looks into (default: a quarter, 32 at most; with --rings or in "
    add("--probes N", about + "an encoder 2, which share --far-window)")
    about = "a head with less attention beyond the near window becomes a window"
    add("--window-below F", about + _default("window_below"), type=number(Range(0, 1)))
    about = "tokens of the longest text; learned positions are repeated (default: as before)"
    add("--max-positions N", about)
    about = "slow rotary positions as transformers does, until they reach --max-positions"
    add("--rotary-scaling KIND", about, choices=("linear", "yarn"))
    about = "first tokens of a text that all heads of a decoder see (default: 4 where heads give "
    about += "these much attention beyond the near window, else 0)"
    add("--sinks N", about, type=number(Range(at_least=0, whole=True)))
    about = "heads of a decoder that cluster also see the mean of each other cluster, as one key; "
    about += "renewed after so many tokens; 0: no means (default: positions / 128, at least 64)"
    add("--summaries N", about, type=number(Range(at_least=0, whole=True)))
    about = "head: each head has clusters of its own; kv-head: each head of keys and values, "
    about += "whose queries look into the same clusters, and decoding takes less memory (default: "
    about += "kv-head where the kinds of a layer divide the heads of keys)"
    add("--clusters-per WHAT", about, choices=("head", "kv-head"))
    add("--gen-subset SPLIT", "to read", default="train")
    about = "text files, instead of a split; of a translator two, line by line: source and target"
    add("--text FILE", about, nargs="+")
    about = f"of a text that is read (default: as trained, but at most {_LENGTH})"
    add("--tokens-per-sample N", about)
    add("--tokens N", "to read, the first 4,096 to measure on" + _default("tokens"))
    about = "of the routers, an index's by all texts; 0: as they begin" + _default("updates")
    add("--updates N", about, type=number(Range(at_least=0, whole=True)))
    add("--lr F", "of the routers", type=number(Range(above=0)), default=0.02)
    about = "of heads that cluster, queries that teach in the training that follows (default: 16)"
    add("--scouts N", about)
    add("--seed N", "of what is drawn", default=1)
    add("--force", "replace what convert has written, nothing else")
    return parser


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    if args.far_window == 1:
        raise bad_option("--far-window", 1, "2 or more, the query's own included")
    if args.clusters is not None and (args.probes or 0) > args.clusters:
        raise bad_option("--probes", args.probes, f"up to --clusters, {args.clusters}")
    for file in args.text or ():
        check_file("--text", file, "a file of text")
    _check_specs(args)
    check_utf8("OUT", args.out)
    recipe, made = _recipe(args), written(args.out)
    if made and made["recipe"] == recipe and not args.force:
        print(f"{args.out} is already done")
        return 0
    inputs = [args.checkpoint, *(args.text or ())]
    check_output("OUT", args.out, folder=True, inputs=inputs, force=args.force)

    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.conversion import as_checkpoint, batches, is_folder
    from fairseq_clusterformer.conversion.convert import TASKS, check, convert, fine_tuning, write
    from fairseq_clusterformer.conversion.measure import kept_beside

    if is_folder(args.checkpoint) and args.text is None and args.data is None:
        allowed = "--text FILE, or --data with a folder prepared with --dict BUNDLE/dict.txt "
        allowed += f"--tokenizer {args.checkpoint / 'tokenizer.json'}"
        problem = "a folder of transformers has no texts"
        raise bad_option("--text", "not given", allowed, problem)
    with as_checkpoint(args.checkpoint) as checkpoint:
        loaded = load_checkpoint(checkpoint, data=args.data, task=TASKS, option="CHECKPOINT")
        loaded = replace(loaded, path=args.checkpoint)
        plan = _plan(args, loaded)
        check(loaded, plan)
        length = batches.length_of(loaded, args.tokens_per_sample, _LENGTH)
        how = {"tokens": args.tokens or _defaults(args, loaded)["tokens"], "length": length}
        if args.text:
            given = batches.of_text(loaded, args.text, **how, seed=args.seed)
        else:
            given = batches.of_split(loaded, args.gen_subset, **how, seed=args.seed)
        given = batches.far_of(given, plan.near)
        with kept_beside(args.out, loaded.model, given, plan) as folder:
            converted = convert(loaded, given, plan, folder)
            write(converted, args.out, force=args.force, recipe=recipe)
    _print(converted)
    print(f"\n{args.out}: {', '.join(sorted(file.name for file in args.out.iterdir()))}")
    print("\nTo go on with training", end="")
    if not any((data := args.out / "data").glob("train*")) and data.is_dir():
        print(f", with texts in the place of {data}, which has none", end="")
        tokens, words = data / "tokenizer.json", data / "dict.txt"
        if tokens.is_file() and words.is_file():  # a translator has one for each language
            print(f"\n(prepare them with --tokenizer {tokens} --dict {words})", end="")
    print(f":\n\n{fine_tuning(converted, args.out)}")
    return 0


def _check_specs(args: argparse.Namespace) -> None:
    """Raise UserError for a kind or an option that is none, before a model is loaded; whether the
    kinds fit its heads is seen then."""
    from fairseq_clusterformer.attention.options import parse_attention

    for name in ("attention", "encoder_attention", "decoder_attention"):
        spec, option = getattr(args, name) or "full", f"--{name.replace('_', '-')}"
        try:
            parse_attention(spec, num_layers=1, num_heads=0, option=option)
        except ValueError as error:
            raise UserError(str(error)) from None


def _recipe(args: argparse.Namespace) -> dict:
    """What OUT is made from: the options, and the contents of what they name."""
    sources = [args.checkpoint, args.data, *(args.text or ())]
    there = [path for source in sources if source and (path := Path(source)).exists()]
    options = {k: v for k, v in vars(args).items() if k not in ("out", "force", "user_dir")}
    options |= {"text": None, "data": None, "checkpoint": None}
    return options | {"sources": [*map(checksum, there)], "version": __version__}


def _defaults(args: argparse.Namespace, loaded) -> dict:
    from fairseq_clusterformer.conversion.model import target_of

    return _RINGS if args.rings or "encoder" in target_of(loaded).specs else _INDEX


def _plan(args: argparse.Namespace, loaded):
    """What the options ask for; UserError for one of specs that are made, if none is."""
    from fairseq_clusterformer.conversion.model import Plan, target_of

    sides = target_of(loaded).specs
    given = {"encoder": args.encoder_attention, "decoder": args.decoder_attention}
    specs = {} if args.attention is None else dict.fromkeys(sides, args.attention)
    specs |= {side: spec for side, spec in given.items() if spec is not None}
    names = ("clusters", "probes", "scouts", "window_below", "sinks", "summaries", "clusters_per")
    names += ("rings",)
    made = {name: value for name in names if (value := getattr(args, name)) is not None}
    for name, value in made.items():
        whose = "a decoder" if name in ("sinks", "summaries", "rings") else "heads"
        left = sides.keys() - specs.keys() - ({"encoder"} if whose == "a decoder" else set())
        if not left:
            problem = f"there is no spec of {whose} to make"
            raise bad_option(f"--{name.replace('_', '-')}", value, "none here", problem)
    made |= {name: getattr(args, name) for name in _OF_PLAN}
    defaults = _defaults(args, loaded)
    made.setdefault("window_below", defaults["window_below"])
    made["updates"] = defaults["updates"] if args.updates is None else args.updates
    near, far = args.near_window or defaults["near"], args.far_window or defaults["far"]
    if (args.rings or "encoder" in sides) and (args.probes or 0) >= far:
        raise bad_option("--probes", args.probes, f"less than --far-window, {far}")
    return Plan(specs=specs, near=near, far=far, **made)


def _print(converted) -> None:
    print("side     layer head  place  kind      far   best  began (chance)  after (chance)")
    for head in converted.heads:
        began, after = "", f"{head.after:5.3f} ({head.chance:5.3f})"
        if head.before is not None:
            began = f"{head.before:5.3f} ({head.chance_before:5.3f})"
        print(
            f"{head.side:8} {head.layer:5} {head.head:4} {head.place:6}  {head.kind:8} "
            f"{head.far:5.3f}  {head.best:5.3f}  {began:14}  {after}"
        )
    print(_LEGEND)
    for side, spec in sorted(converted.specs.items()):
        print(f"attention of the {side}: {spec}")
    others = {"window", "full", "taught", "strided", "xl"}  # fitted, or without clusters to learn
    if kinds := {head.kind for head in converted.heads} - others:
        print(f"not fitted, their clusters start anew: {', '.join(sorted(kinds))}")
    print(f"{converted.tokens:,} tokens were read, for measuring and fitting.")
