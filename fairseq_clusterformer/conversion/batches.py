"""Batches of a model's own data, or of raw text, to look at a model that is not trained."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fairseq import tasks
from fairseq.data import FairseqDataset, LanguagePairDataset
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from fairseq_clusterformer.checkpoints.load import Loaded, dataset_of
from fairseq_clusterformer.corpora.files import aligned_lines
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.data.questions import framed
from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.use.perplexity import begin_of

from .measure import Inputs

AT_ONCE = 2048  # tokens of a batch, or one text


def length_of(loaded: Loaded, wanted: int | None, most: int) -> int | None:
    """Tokens of the texts to read: what is wanted, or as trained up to ``most``; None for tasks
    whose texts are as long as they are. Raises UserError for a length that does not fit."""
    trained, option = loaded.cfg.task.get("tokens_per_sample"), "--tokens-per-sample"
    if trained is None:
        if wanted is not None:
            allowed = f"none for a model of the task {loaded.cfg.task._name}"
            raise bad_option(option, wanted, allowed)
        return None
    positions = loaded.model.max_positions()
    if wanted is not None and not 3 <= wanted <= positions:  # one, and a symbol at either end
        raise bad_option(option, wanted, f"3 to {positions}")
    return wanted or min(trained, positions, most)


def of_split(
    loaded: Loaded, split: str, tokens: int, length: int | None, *, seed: int
) -> list[Inputs]:
    """What the model is given of a split, by its task, in texts of a :func:`length_of` that are
    drawn by the seed, until there are so many tokens, padding included, or no more text. Raises
    UserError: no such split, or nothing in it."""
    section = copy.deepcopy(loaded.cfg.task)
    if length is not None:
        section.tokens_per_sample = length
    task = tasks.setup_task(section, from_checkpoint=True)
    dataset = dataset_of(replace(loaded, task=task), split, "--gen-subset")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
    return _collated(dataset, order.tolist(), tokens)


def of_text(
    loaded: Loaded, files: Sequence[Path], tokens: int, length: int | None, *, seed: int
) -> list[Inputs]:
    """Texts in rows of a length, which the seed shuffles, so that few are of all files; of a
    translator, the lines of two files. Raises UserError for a model that needs more than text, or
    files that do not fit."""
    task = loaded.cfg.task._name
    if task == "translation":
        return _of_pairs(loaded, files, tokens)
    if length is None:
        raise bad_option("--text", files[0], "--data", f"a model of the task {task} needs more")
    coding = TextCoding.from_folder(loaded.folder)  # a masked language model's has a <mask> more
    dictionary, is_masked = coding.dictionary, task == "masked_lm"
    rows: list[Tensor] = []
    for file in files:
        found = coding.encode(file.read_bytes(), f"--text is {file}")
        found = found[found != dictionary.eos()] if is_masked else found
        if not len(found):
            raise bad_option("--text", file, "a text of one token or more", "it is empty")
        if is_masked:
            rows += [framed(row, dictionary, length) for row in found.split(length - 2)]
        else:
            rows += torch.cat([begin_of(loaded, coding), found]).split(length)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    shuffled = ((len(rows[i]), rows[i]) for i in order)
    parts, pad = _cut(shuffled, tokens), dictionary.pad()
    batches = ((collate_tokens(part, pad), torch.tensor([*map(len, part)])) for part in parts)
    return [{"src_tokens": of_rows, "src_lengths": lengths} for of_rows, lengths in batches]


def far_of(batches: Sequence[Inputs], near: int) -> Sequence[Inputs]:
    """Those with a text of more tokens than are near, or all: in the others, a router learns
    nothing."""
    sides = ("src_tokens", "prev_output_tokens")
    far = [b for b in batches if max(b[side].size(1) for side in sides if side in b) > near]
    return far or batches


def _of_pairs(loaded: Loaded, files: Sequence[Path], tokens: int) -> list[Inputs]:
    """Lines of a source and of a target, as they were written."""
    task, given = loaded.task, " ".join(map(str, files))
    if len(files) != 2:
        allowed = "two files, the source and the target, line by line"
        raise bad_option("--text", given, allowed, "a translation model")
    text = TextPipeline.from_folder(loaded.folder)
    languages = task.cfg.source_lang, task.cfg.target_lang
    dictionaries = task.src_dict, task.tgt_dict
    rows: list[list[Tensor]] = [[], []]
    for pair in aligned_lines(files):
        for side, line, language, words in zip(rows, pair, languages, dictionaries, strict=True):
            symbols = text.encode(line, language)
            side.append(words.encode_line(symbols, add_if_not_exist=False).long())
    (source, target), most = rows, loaded.model.max_positions()
    sizes = [[len(row) for row in side] for side in rows]
    lengths = enumerate(zip(*sizes, strict=True))
    fitting = [i for i, (s, t) in lengths if s <= most[0] and t <= most[1]]
    if not fitting:
        problem = "no line fits the model's positions"
        raise bad_option("--text", given, f"up to {most} subwords", problem)
    dataset = LanguagePairDataset(
        source, sizes[0], dictionaries[0], target, sizes[1], dictionaries[1]
    )
    return _collated(dataset, fitting, tokens)


def _collated(dataset: FairseqDataset, order: Sequence[int], tokens: int) -> list[Inputs]:
    """What models are given of a data set, until there are so many tokens."""
    parts = _cut(((int(dataset.num_tokens(index)), index) for index in order), tokens)
    return [dataset.collater([dataset[i] for i in part])["net_input"] for part in parts]


def _cut(rows: Iterable[tuple[int, Any]], tokens: int) -> Iterator[list[Any]]:
    """Rows in batches of few tokens; the first ones, until there are so many tokens in all."""
    batch: list[Any] = []
    longest = total = 0
    for length, row in rows:
        if batch and max(longest, length) * (len(batch) + 1) > AT_ONCE:
            yield batch
            total += longest * len(batch)
            batch, longest = [], 0
            if total >= tokens:
                return
        batch.append(row)
        longest = max(longest, length)
    yield batch
