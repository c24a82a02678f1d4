"""``--bpe clusterformer``: fairseq's commands read and write plain text.

It does all that was done to the text of a prepared folder, and undoes it; a ``--tokenizer`` must
not be given as well. fairseq-interactive removes blanks at both ends of a prompt.
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Optional

from fairseq import utils
from fairseq.data.data_utils import infer_language_pair
from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass
from omegaconf import II

from .coding import TextCoding
from .text import TextPipeline

_OF_TASK = "oc.select:task.{},null"


@dataclass
class ClusterformerTextConfig(FairseqDataclass):
    """Options of ``--bpe clusterformer``."""

    clusterformer_data: Optional[str] = field(  # noqa: UP045 (what fairseq reads)
        default=None,
        metadata={"help": "prepared folder whose text coding is used (default: the data folder)"},
    )
    # Not on the command line, since they have no help: fairseq takes them from the task.
    task_data: Optional[str] = II("task.data")  # noqa: UP045
    task_source_lang: Optional[str] = II(_OF_TASK.format("source_lang"))  # noqa: UP045
    task_target_lang: Optional[str] = II(_OF_TASK.format("target_lang"))  # noqa: UP045


@register_bpe("clusterformer", dataclass=ClusterformerTextConfig)
def text_of_folder(cfg: ClusterformerTextConfig) -> SimpleNamespace:
    """``encode``, plain text to symbols with blanks between them, and ``decode``, which makes
    readable text of these, in lower case if the data is, and U+FFFD of what is no character.
    Raises UserError: another folder, or text that is not UTF-8."""
    folder = Path(utils.split_paths(cfg.clusterformer_data or cfg.task_data)[0])
    if (folder / "dict.txt").is_file():
        coding = TextCoding.from_folder(folder)
        words = coding.dictionary
        return SimpleNamespace(
            encode=lambda text: " ".join(words[i] for i in coding.encode(text)),
            decode=lambda symbols: coding.decode(map(words.index, symbols.split())),
        )
    pipeline = TextPipeline.from_folder(folder)
    source, target = cfg.task_source_lang, cfg.task_target_lang
    if source is None or target is None:  # fairseq's task does the same
        source, target = infer_language_pair(str(folder))
    return SimpleNamespace(
        encode=partial(pipeline.encode, lang=source), decode=partial(pipeline.decode, lang=target)
    )
