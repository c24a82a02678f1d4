"""Continue a prompt with a language model.

  clusterformer generate --checkpoint checkpoint_best.pt "The cat" --max-tokens 300
  clusterformer generate --checkpoint BUNDLE --input prompt.txt --temperature 0.8 --top-p 0.9

The prompt is the argument, a file (--input) or what stdin holds. It is printed first, and what
follows it as it is written, a token at a time: bytes, pieces or words, as the model was trained.
Where training saw texts of N tokens, what goes beyond N tokens is new to the model.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.ranges import Range

from .common import Parser, add_model, harmless, input_lines, number, whole_number


def _parser() -> Parser:
    parser = Parser(prog="clusterformer generate", description=__doc__)
    add = parser.add_argument
    add("prompt", metavar="PROMPT", nargs="?", help="default: --input or stdin; it may be empty")
    add_model(parser, "a language model's, a bundle, or an installed one: python-code, books-en")
    add("--input", metavar="FILE", type=Path, help="a file with the prompt")
    add("--max-tokens", metavar="N", type=whole_number, default=200, help="default: %(default)s")
    kind = number(Range(at_least=0))
    about = "0: always the most likely token; 1: as often as the model says (default: 1)"
    add("--temperature", metavar="T", type=kind, default=1.0, help=about)
    add("--top-k", metavar="K", type=whole_number, help="draw among the K most likely tokens")
    kind = number(Range(above=0, at_most=1))
    about = "draw among the most likely tokens that have this probability together (default: 1)"
    add("--top-p", metavar="P", type=kind, default=1.0, help=about)
    add("--seed", metavar="N", type=int, help="the same text each time (default: another one)")
    add("--num-samples", metavar="N", type=whole_number, help="texts, each after a line of dashes")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Continue a prompt; returns the exit status.

    Raises:
        UserError: if the checkpoint, its data or the prompt is wrong.
    """
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.seed is not None and not -(2**63) <= args.seed < 2**64:
        raise bad_option("--seed", args.seed, "a number of 64 bits")
    given = [] if args.prompt is None else [args.prompt]
    prompt = "\n".join(input_lines(parser, given, args.input))

    from fairseq_clusterformer.inference.language_model import LanguageModel
    from fairseq_clusterformer.inference.load import load_checkpoint

    loaded = load_checkpoint(args.checkpoint, data=args.data, task="language_modeling")
    model = LanguageModel(loaded, device="cpu" if args.cpu else None)
    options = {
        name: getattr(args, name)
        for name in ("max_tokens", "temperature", "top_k", "top_p", "seed", "num_samples")
    }
    shown = harmless if sys.stdout.isatty() else str  # a file takes the model's bytes
    if args.num_samples:
        for text in model.generate(prompt, **options):
            print(f"{'-' * 20}\n{shown(text)}")
        return 0
    for text in model.generate(prompt, stream=True, **options):
        print(shown(text), end="", flush=True)
    print()
    return 0
