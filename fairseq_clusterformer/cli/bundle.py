"""Put a checkpoint and all that it needs into one folder.

  clusterformer bundle checkpoint_best.pt my-model --dtype float16
  clusterformer generate --checkpoint my-model "The cat"

A bundle holds the weights (as safetensors), the options of the training, the dictionaries and the
subword model. It needs no data folder, and nothing in it is pickled: loading it runs no code. All
commands of clusterformer, and fairseq_clusterformer.load in Python, take a bundle or a checkpoint.
fairseq's own commands take checkpoints alone. A MODEL_CARD.md that you write into a bundle goes
with it into its own bundles and exports.
"""

from collections.abc import Sequence

from fairseq_clusterformer.outputs import check_output

from .common import Parser, add_output, add_places, finite, inputs_of, print_size


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer bundle", description=__doc__)
    add = parser.add
    add("checkpoint CHECKPOINT", "of fairseq, or a bundle")
    add_output(parser)
    add_places(parser)
    about = 'a reader adds this to the score of "no answer" (default: as in training, 0)'
    add("--no-answer-bias B", about, type=finite)
    about = "how often a reader is right, a file that examples/question_answering/folders.py wrote"
    add("--calibration FILE", about)
    args = parser.parse_args(arguments)
    inputs = inputs_of(args, args.calibration)
    check_output("OUT", args.out, folder=True, inputs=inputs, force=True)
    from omegaconf import OmegaConf

    from fairseq_clusterformer.checkpoints.bundle import write_bundle
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.documents.found import Weights
    from fairseq_clusterformer.use import CLASSES

    bias, calibration, task = args.no_answer_bias, None, list(CLASSES)
    if args.calibration is not None:
        Weights.from_file(args.calibration)
        calibration = args.calibration.read_text(encoding="utf-8")
    if bias is not None or calibration is not None:
        task = "clusterformer_qa"
    loaded = load_checkpoint(args.checkpoint, data=args.data, task=task, option="CHECKPOINT")
    if bias is not None:
        OmegaConf.update(loaded.cfg, "task.no_answer_bias", bias, force_add=True)
    how = {"dtype": args.dtype, "calibration": calibration, "force": args.force}
    write_bundle(loaded, args.out, **how)
    print_size(args)
    return 0
