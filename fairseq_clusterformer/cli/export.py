"""Write a model as a folder of Hugging Face's transformers, or such a folder as a bundle.

  clusterformer export multi30k-de-en my-model --to transformers
  clusterformer export my-model my-bundle --to fairseq

The folder holds config.json, model.safetensors, the tokenizer, generation_config.json and a card.
AutoModelForCausalLM.from_pretrained (AutoModelForSeq2SeqLM, ...) reads it after
`import fairseq_clusterformer.hf`. --to fairseq also takes what was fine-tuned there, and a folder
of GPT-2, BERT, RoBERTa, Marian, BART, Llama, Mistral, Qwen2 or Qwen3.
"""

from collections.abc import Sequence

from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output

from .common import Parser, add_output, add_places, inputs_of, print_size


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer export", description=__doc__)
    about = "of fairseq, a bundle, or with --to fairseq a folder of transformers"
    parser.add("checkpoint CHECKPOINT", about)
    add_output(parser)
    parser.add("--to", "what OUT is for", choices=("transformers", "fairseq"), required=True)
    add_places(parser)
    args = parser.parse_args(arguments)
    if args.to == "fairseq" and args.data:
        raise bad_option("--data", args.data, "none with --to fairseq")
    how = {"dtype": args.dtype, "force": args.force}
    check_output("OUT", args.out, folder=True, inputs=inputs_of(args), force=True)
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

        places = {"data": args.data, "option": "CHECKPOINT"}
        loaded = load_checkpoint(args.checkpoint, task=list(CLASSES), **places)
        folder.export(loaded, args.out, **how)
    print_size(args)
    return 0
