"""Put a checkpoint and all that it needs into one folder.

  clusterformer bundle checkpoint_best.pt my-model --dtype float16
  clusterformer generate --checkpoint my-model "The cat"

A bundle holds the weights (as safetensors), the options of the training, the dictionaries and the
subword model. It needs no data folder, and nothing in it is pickled: loading it runs no code. All
commands of clusterformer, and fairseq_clusterformer.load in Python, take a bundle or a checkpoint.
fairseq's own commands take checkpoints alone.
"""

from collections.abc import Sequence

from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.outputs import check_output

from .common import Parser, add_output, add_places, finite, inputs_of, megabytes, read_card


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="clusterformer bundle", description=__doc__)
    add = parser.add
    add("checkpoint CHECKPOINT", "of fairseq, or a bundle")
    add("out OUT", "the folder to make")
    add_places(parser)
    add_output(parser, "a bundle")
    about = "a reader of words knows the words of this file (of the space it was trained with)"
    add("--word-vectors FILE", about)
    add("--max-words N", "so many words of it, the first ones (default: 50000)")
    about = 'a reader adds this to the score of "no answer" (default: as in training, 0)'
    add("--no-answer-bias B", about, type=finite)
    about = "how often a reader is right, a file that examples/question_answering/folders.py wrote"
    add("--calibration FILE", about)
    args = parser.parse_args(arguments)
    if args.max_words is not None and args.word_vectors is None:
        raise bad_option("--max-words", args.max_words, "with --word-vectors")

    inputs = inputs_of(args, args.card, args.word_vectors, args.calibration)
    check_output("OUT", args.out, folder=True, inputs=inputs, force=True)
    from omegaconf import OmegaConf

    from fairseq_clusterformer.checkpoints.bundle import CARD, is_bundle, write_bundle
    from fairseq_clusterformer.checkpoints.load import load_checkpoint
    from fairseq_clusterformer.documents.found import Weights
    from fairseq_clusterformer.use import CLASSES

    done = is_bundle(args.out) and not args.force
    card, calibration, bias = read_card(args.card), None, args.no_answer_bias
    of_reader = bias is not None or args.calibration is not None
    task = "clusterformer_qa" if of_reader else list(CLASSES)
    if args.calibration is not None:
        Weights.from_file(args.calibration)
        calibration = args.calibration.read_text(encoding="utf-8")
    loaded = load_checkpoint(args.checkpoint, data=args.data, task=task, option="CHECKPOINT")
    if card is None and (loaded.path / CARD).is_file():  # of a bundle
        card = read_card(loaded.path / CARD)
    if bias is not None:
        OmegaConf.update(loaded.cfg, "task.no_answer_bias", bias, force_add=True)
    if args.word_vectors is not None:
        take = getattr(loaded.model, "take_word_vectors", None)
        if take is None:
            problem = f"the model is a {type(loaded.model).__name__}, which has no word vectors"
            raise bad_option("--word-vectors", args.word_vectors, "a reader of words", problem)
        try:
            take(str(args.word_vectors), args.max_words or 50_000)
        except ValueError as error:
            raise UserError(str(error)) from None
    options = {"dtype": args.dtype, "card": card, "calibration": calibration}
    write_bundle(loaded, args.out, **options, force=args.force)
    what = f": {type(loaded.model).__name__}, {megabytes(args.out)} in {args.dtype}"
    print(f"{args.out}{' is already done' if done else what}")
    return 0
