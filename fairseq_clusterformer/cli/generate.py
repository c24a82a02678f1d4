"""Continue a prompt with a language model.

  clusterformer generate --checkpoint checkpoint_best.pt "The cat" --max-tokens 300
  clusterformer generate --checkpoint BUNDLE --input prompt.txt --temperature 0.8 --top-p 0.9

The prompt is the argument, a file (--input) or what stdin holds. It is printed first, and what
follows it as it is written, a token at a time: bytes, pieces or words, as the model was trained.
Where training saw texts of N tokens, what goes beyond N tokens is new to the model.
"""

import sys
from collections.abc import Sequence

from fairseq_clusterformer.ranges import OF_USE

from .common import BEGIN, Parser, add_model, harmless, input_lines, load_model, number


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer generate", description=__doc__)
    add = parser.add
    add("prompt PROMPT", "default: --input or stdin; it may be empty", nargs="?")
    add_model(parser, "a language model's, a bundle, or an installed one: python-code, books-en")
    add("--input FILE", "a file with the prompt")
    add("--max-tokens N", "to write", default=200)
    about = "0: always the most likely token; 1: as often as the model says"
    add("--temperature T", about, type=number(OF_USE["temperature"]), default=1.0)
    add("--top-k K", "draw among the K most likely tokens", type=number(OF_USE["top_k"]))
    about = "draw among the most likely tokens that have this probability together"
    add("--top-p P", about, type=number(OF_USE["top_p"]), default=1.0)
    add("--begin SYMBOL", BEGIN)
    add("--seed N", "the same text each time (default: another one)", type=int)
    args = parser.parse_args(arguments)
    given = [] if args.prompt is None else [args.prompt]
    prompt = "\n".join(input_lines(parser, given, args.input))
    names = ("max_tokens", "temperature", "top_k", "top_p", "seed")
    options = {name: vars(args)[name] for name in names}
    model = load_model(args, "language_modeling")
    if args.begin is not None:
        model.begin_by(args.begin)
    shown = harmless if sys.stdout.isatty() else str  # a file takes the model's bytes
    for text in model.generate(prompt, stream=True, **options):
        print(shown(text), end="", flush=True)
    print()
    return 0
