"""Continue a prompt with a language model.

  clusterformer generate --checkpoint checkpoint_best.pt "The cat" --max-tokens 300
  clusterformer generate --checkpoint BUNDLE --input prompt.txt --temperature 0.8 --top-p 0.9

The prompt is the argument, a file (--input) or what stdin holds. It is printed first, and what
follows it as it is written, a token at a time: bytes, pieces or words, as the model was trained.
Where training saw texts of N tokens, what goes beyond N tokens is new to the model.
"""

import sys
from collections.abc import Sequence

from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.ranges import Range

from .common import Parser, add_model, harmless, input_lines, number, whole_number


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer generate", description=__doc__)
    add = parser.add
    add("prompt PROMPT", "default: --input or stdin; it may be empty", nargs="?")
    add_model(parser, "a language model's, a bundle, or an installed one: python-code, books-en")
    add("--input FILE", "a file with the prompt")
    add("--max-tokens N", "to write", default=200)
    about = "0: always the most likely token; 1: as often as the model says"
    add("--temperature T", about, type=number(Range(at_least=0)), default=1.0)
    add("--top-k K", "draw among the K most likely tokens", type=whole_number)
    about = "draw among the most likely tokens that have this probability together"
    add("--top-p P", about, type=number(Range(above=0, at_most=1)), default=1.0)
    add("--seed N", "the same text each time (default: another one)", type=int)
    add("--num-samples N", "texts, each after a line of dashes")
    args = parser.parse_args(arguments)
    if args.seed is not None and not -(2**63) <= args.seed < 2**64:
        raise bad_option("--seed", args.seed, "a number of 64 bits")
    given = [] if args.prompt is None else [args.prompt]
    prompt = "\n".join(input_lines(parser, given, args.input))

    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.use.language_model import LanguageModel

    loaded = load_checkpoint(args.checkpoint, data=args.data, task="language_modeling")
    model = LanguageModel(loaded, device="cpu" if args.cpu else None)
    names = ("max_tokens", "temperature", "top_k", "top_p", "seed", "num_samples")
    options = {name: getattr(args, name) for name in names}
    shown = harmless if sys.stdout.isatty() else str  # a file takes the model's bytes
    if args.num_samples:
        for text in model.generate(prompt, **options):
            print(f"{'-' * 20}\n{shown(text)}")
        return 0
    for text in model.generate(prompt, stream=True, **options):
        print(shown(text), end="", flush=True)
    print()
    return 0
