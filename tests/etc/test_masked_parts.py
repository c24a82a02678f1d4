"""ETC's pre-training: rows of documents' parts, cut, packed and hidden; and its losses."""

import math
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.logging import metrics

from fairseq_clusterformer.etc.masked_lm import ETCMaskedLMLoss
from fairseq_clusterformer.etc.masked_parts import NO_EXAMPLE, MaskedParts, packed, pieces_of
from tests.etc.models import make_dictionary, rows_of

WORDS = 40
MASK = make_dictionary(WORDS, "<mask>").index("<mask>")


def make(*lines: list[int], **options) -> MaskedParts:
    return rows_of(lines, WORDS, **{"tokens_per_sample": 12, "max_parts": 4, **options})


def test_documents_are_cut_between_lines() -> None:
    """Written out: at most 10 tokens and 3 lines; empty lines end documents."""
    sizes = np.array([0, 4, 6, 1, 0, 0, 2, 2, 2, 2, 10, 0])
    assert pieces_of(sizes, 10, 3) == [(1, 3), (3, 4), (6, 9), (9, 10), (10, 11)]
    assert pieces_of(sizes[:3], 10, 3) == [(1, 3)]
    assert pieces_of(np.array([0, 0]), 10, 3) == []
    assert pieces_of(sizes, 10, 3, least_lines=4) == [(6, 9), (9, 10), (10, 11)]
    assert pieces_of(sizes, 10, 3, least_lines=6) == []


def test_short_pieces_share_rows() -> None:
    """Each goes where it leaves the least room; the last row is full of parts. Packing many takes
    no time, and few rows."""
    tokens, parts = np.array([5, 9, 4, 1, 3, 2]), np.array([1, 1, 1, 1, 3, 1])
    assert packed(tokens, parts, 10, 3) == [[1], [0, 2, 3], [4], [5]]
    rows = packed(np.full(20_000, 30), np.full(20_000, 3), 4096, 4)
    assert sorted(piece for row in rows for piece in row) == [*range(20_000)]
    draw = np.random.default_rng(0)  # rows are full of parts before they are of tokens
    tokens = draw.geometric(1 / 700, 2000).clip(max=4096)
    parts = (tokens / 25 * draw.uniform(0.3, 2, 2000)).astype(int).clip(1, 100)
    assert len(packed(tokens, parts, 4096, 100)) < 1.1 * parts.sum() / 100


def test_rows_are_documents_in_parts() -> None:
    lines = ([4, 5, 6], [7], [], [8, 9], [], [10] * 11, [11] * 11)
    found = make(*lines, hide_parts=0, mask_prob=0)
    assert [len(found), *found.sizes] == [3, 11, 11, 6]
    batch = found.collater([found[2], found[0]])
    parts = batch["net_input"]["parts"]
    assert batch["net_input"]["src_tokens"].tolist() == [
        [4, 5, 6, 7, 8, 9, 1, 1, 1, 1, 1],
        [10] * 11,
    ]
    assert parts["spans"].tolist() == [[[0, 3], [3, 4], [4, 6]], [[0, 11], [0, 0], [0, 0]]]
    assert parts["long_examples"][0, :6].tolist() == [0, 0, 0, 0, 1, 1]
    assert parts["global_examples"].tolist() == [[0, 0, 1], [0, NO_EXAMPLE, NO_EXAMPLE]]
    assert (batch["target"] == 1).all()
    assert not parts["hidden"].any()
    assert parts["alone"]["at"].shape == (0, 2)


def test_blocks_and_none() -> None:
    lines = ([4, 5, 6], [7, 8], [], [9])
    blocks = make(*lines, parts="blocks", part_tokens=2, hide_parts=0)[0]["row"]
    assert blocks["spans"].tolist() == [[0, 2], [2, 4], [4, 5], [5, 6]]
    assert blocks["global_examples"].tolist() == [0, 0, 0, 1]
    none = make(*lines, parts="none")
    assert none.collater([none[0]])["net_input"]["parts"]["spans"].shape == (1, 0, 2)


def test_what_is_left_out_is_counted() -> None:
    """Ends of lines that are too long, and lines of documents that are too short."""
    found = make([*range(4, 24)], [5] * 3, [], [6], hide_parts=0, mask_prob=0, min_sentences=2)
    assert (found.lost, found.left_out) == (8, 1)
    assert found[0]["row"]["src_tokens"].tolist() == [*range(4, 16)]


def test_hidden_parts_show_nothing_and_stand_alone() -> None:
    parts, seen = [[4, 5], [6, 7, 8], [9]], set()
    found = make(*parts, hide_parts=0.5, mask_prob=1, leave_unmasked_prob=0, random_token_prob=0)
    for epoch in range(1, 31):
        found.set_epoch(epoch)
        sample = found[0]
        hidden = sample["row"]["hidden"].tolist()
        seen.add(tuple(hidden))
        pairs = [*zip(parts, hidden, strict=True)]
        assert sample["row"]["src_tokens"].tolist() == [MASK] * 6
        assert [t.tolist() for t in sample["alone"]] == [part for part, h in pairs if h]
        expected = [1 if h else word for part, h in pairs for word in part]
        assert sample["row"]["target"].tolist() == found[0]["row"]["target"].tolist() == expected
    assert len(seen) > 5


def test_hidden_parts_share_rows() -> None:
    """Of any lengths, in rows of as many tokens as the longest of them, or 512."""
    lines = [[4 + i % WORDS] * (1 + 37 * i % 600) for i in range(40)]
    found = make(*lines, tokens_per_sample=20_000, max_parts=40, hide_parts=1)
    alone = found.collater([found[0]])["net_input"]["parts"]["alone"]
    assert alone["src_tokens"].numel() < 1.3 * sum(map(len, lines))
    assert len(alone["at"]) == 40
    for words, (row, place) in zip(found[0]["alone"], alone["at"].tolist(), strict=True):
        begin, end = alone["spans"][row, place].tolist()
        assert alone["src_tokens"][row, begin:end].tolist() == words.tolist()
        assert (alone["long_examples"][row, begin:end] == place).all()
        assert alone["global_examples"][row, place] == place


def test_words_are_guessed_whole_in_the_shares_asked_for() -> None:
    """Of 40,000 tokens; every third one begins a word, and so does each line."""
    begins = np.arange(WORDS + 5) % 3 == 0
    rng = np.random.default_rng(0)
    lines = rng.integers(4, 4 + WORDS, (1000, 40))
    found = make(
        *lines,
        begins=begins,
        tokens_per_sample=40_000,
        max_parts=1000,
        hide_parts=0,
        leave_unmasked_prob=0.2,
    )
    sample, tokens = found[0], lines.ravel()
    shown, guessed = sample["row"]["src_tokens"], sample["row"]["target"] != 1
    assert (sample["row"]["target"][guessed] == tokens[guessed]).all()
    assert (shown[~guessed] == tokens[~guessed]).all()
    starts = begins[tokens]
    starts[::40] = True
    inside = ~starts[1:]
    assert (guessed[1:][inside] == guessed[:-1][inside]).all()
    anew = starts[1:] & ~begins[tokens][1:]  # words that a line alone begins
    assert (guessed[1:][anew] != guessed[:-1][anew]).any()
    assert guessed.mean() == pytest.approx(0.15, abs=0.01)
    assert (shown[guessed] == MASK).mean() == pytest.approx(0.7, abs=0.03)
    same = (shown[guessed] == tokens[guessed]).mean()
    assert same == pytest.approx(0.2 + 0.1 / (WORDS + 1), abs=0.03)


def losses(target: list[int], *given: torch.Tensor) -> tuple:
    """Of logits, what parts should be like, and what they are."""
    criterion = ETCMaskedLMLoss(Namespace(target_dictionary=Dictionary()), 0.8, 0.2)
    logits, *contrast = given

    def model(masked_tokens):
        assert masked_tokens[0].tolist() == [word != 1 for word in target]
        return logits, {"contrast": contrast}

    sample = {"target": torch.tensor([target]), "net_input": {}, "ntokens": 4, "nsentences": 1}
    return criterion(model, sample)


def test_losses_are_those_of_loops() -> None:
    logits, expected, actual = torch.randn(2, 9), torch.randn(3, 4), torch.randn(3, 4)
    total, size, log = losses([5, 1, 7, 1], logits, expected, actual)
    words = sum(math.log(row.exp().sum()) - row[t] for row, t in zip(logits, (5, 7), strict=True))
    parts = 0.0
    for number in range(3):
        alike = [float(expected[number] @ other) / 2 for other in actual]
        parts += math.log(sum(map(math.exp, alike))) - alike[number]
    assert size == 2
    assert float(total) == pytest.approx(0.8 * float(words) + 0.2 * 2 * parts / 3, rel=1e-5)
    with metrics.aggregate() as found:
        ETCMaskedLMLoss.reduce_metrics([log, log])
    values = found.get_smoothed_values()
    assert values["loss"] == pytest.approx(float(words) / 2 / math.log(2), abs=1e-3)
    assert float(values["parts_loss"]) == pytest.approx(parts / 3 / math.log(2), abs=1e-3)
    right = (expected @ actual.T).argmax(-1).eq(torch.arange(3)).float().mean()
    assert float(values["parts_accuracy"]) == pytest.approx(right.item(), abs=1e-3)


def test_nothing_to_guess() -> None:
    nothing = [torch.zeros(0, n, requires_grad=True) for n in (9, 4, 4)]
    total, size, _ = losses([1, 1], *nothing)
    total.backward()
    assert (total.item(), size) == (0, 1)
