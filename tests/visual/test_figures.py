"""Pictures: of documents of any length."""

import pytest

from fairseq_clusterformer.documents.drawing import MARK, STRIP, draw_document, shade
from fairseq_clusterformer.visual.figure import Drawing
from fairseq_clusterformer.visual.words import ClusteredText, DrawnLayer, Item, describe


def test_every_number_of_tokens_has_a_shade():
    shades = [shade(count, most) for most in range(1, 201) for count in range(1, most + 1)]
    assert 0.2 < min(shades) < max(shades) == 1


@pytest.mark.parametrize("tokens_of_a_mark", [1, 3])
def test_a_document_of_any_length_is_drawn(tokens_of_a_mark):
    passage = [0] * (STRIP // MARK * tokens_of_a_mark)
    tokens = ["a"] * len(passage)
    clusters = describe([tokens], [passage], 1, endings=[tokens])
    layer = DrawnLayer(0, "layer 1", None, passage, clusters)
    text = ClusteredText("", "subword", tokens, len(tokens), "", "", [layer])
    boxes = draw_document(text, layer).axes[0].patches
    assert {box.get_alpha() for box in boxes} == {None, 1.0}


def test_the_last_character_of_a_word_is_in_colour():
    drawing = Drawing(100, "", "")
    before = len(drawing.axes.texts)
    drawing.words(0, 0, [Item("abc", 1, 1), Item("long" * 9, 1, 1)], 90, accent=True)
    assert [text.get_text() for text in drawing.axes.texts[before:]] == ["ab", "c"]
