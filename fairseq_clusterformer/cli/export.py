"""Write a model as a folder of Hugging Face's transformers, or such a folder as a bundle.

  clusterformer export multi30k-de-en my-model --to transformers
  clusterformer export my-model my-bundle --to fairseq

The folder holds config.json, model.safetensors, the tokenizer, generation_config.json and a card.
AutoModelForCausalLM.from_pretrained (AutoModelForSeq2SeqLM, ...) reads it after
`import fairseq_clusterformer.hf`. --to fairseq also takes what was fine-tuned there, and a folder
of GPT-2, BERT, RoBERTa, Marian, BART, Llama, Mistral, Qwen2 or Qwen3.
"""

from collections.abc import Sequence

from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.outputs import check_output

from .common import Parser, add_output, add_places, inputs_of, megabytes, read_card


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer export", description=__doc__)
    about = "of fairseq, a bundle, or with --to fairseq a folder of transformers"
    parser.add("checkpoint CHECKPOINT", about)
    parser.add("out OUT", "the folder to make")
    parser.add("--to", "what OUT is for", choices=("transformers", "fairseq"), required=True)
    add_places(parser)
    add_output(parser, "what this command wrote")
    args = parser.parse_args(arguments)
    if args.to == "fairseq" and (args.card or args.data):
        parser.error("--card and --data are for --to transformers; allowed: without them")
    card = read_card(args.card)
    how = {"dtype": args.dtype, "force": args.force}
    done = args.out.is_dir() and any(args.out.iterdir()) and not args.force
    check_output("OUT", args.out, folder=True, inputs=inputs_of(args, args.card), force=True)
    if args.to == "fairseq":
        from fairseq_clusterformer.conversion import as_bundle

        as_bundle(args.checkpoint, args.out, **how)
    else:
        try:
            from fairseq_clusterformer.hf import folder
        except ImportError as error:
            raise UserError(str(error)) from None
        from fairseq_clusterformer.checkpoints.load import load_checkpoint
        from fairseq_clusterformer.use import CLASSES

        loaded = load_checkpoint(
            args.checkpoint, data=args.data, task=list(CLASSES), option="CHECKPOINT"
        )
        folder.export(loaded, args.out, card=card, **how)
    what = f": for {args.to}, {megabytes(args.out)} in {args.dtype}"
    print(f"{args.out}{' is already done' if done else what}")
    return 0
