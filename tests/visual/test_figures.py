"""Pictures: of documents of any length."""

import pytest

from fairseq_clusterformer.visual.figure import MARK, STRIP, Drawing, draw_passage
from fairseq_clusterformer.visual.words import ClusteredText, DrawnLayer, Item, describe


@pytest.mark.parametrize("tokens_of_a_mark", [1, 3])
def test_a_document_of_any_length_is_drawn(tokens_of_a_mark):
    """With a strip that shows where each cluster stands in it."""
    passage = [0] * (STRIP // MARK * tokens_of_a_mark)
    tokens = ["a"] * len(passage)
    clusters = describe([tokens], [passage], 1, endings=[tokens])
    layer = DrawnLayer(0, "layer 1", None, passage, clusters)
    text = ClusteredText("", "subword", tokens, len(tokens), "", "", [layer])
    boxes = draw_passage(text, layer).axes[0].patches
    assert {box.get_alpha() for box in boxes} == {None, 1.0}
    assert sum(box.get_alpha() == 1.0 for box in boxes) == STRIP // MARK


def test_the_last_character_of_a_word_is_in_colour():
    drawing = Drawing(100, "", "")
    before = len(drawing.axes.texts)
    drawing.words(0, 0, [Item("abc", 1, 1), Item("long" * 9, 1, 1)], 90, accent=True)
    assert [text.get_text() for text in drawing.axes.texts[before:]] == ["ab", "c"]
