"""The picture of what heads see of the dense attention."""

from matplotlib.colors import to_hex

from fairseq_clusterformer.conversion.convert import Head
from fairseq_clusterformer.conversion.recall import FITTED, LEFT, RIGHT, draw_recall
from fairseq_clusterformer.visual.figure import WIDTH


def test_bars_are_as_long_as_the_recall() -> None:
    heads = [
        Head("encoder", 0, 0, 1, "taught", 0.5, 0.9, 0.55, 0.6, 0.5, 0.75),
        Head("encoder", 0, 1, 0, "window", 0.1, 1.0, 0.9, None, None, 0.9),
        Head("decoder", 0, 0, 0, "full", 0.7, 0.8, 1.0, None, None, 1.0),
    ]
    axes = draw_recall(heads, 16).axes[0]
    room = WIDTH - LEFT - RIGHT
    bars = [p for p in axes.patches if p.get_x() == LEFT and to_hex(p.get_facecolor()) == FITTED]
    assert [round(bar.get_width() / room, 3) for bar in bars] == [0.75, 0.9, 1.0]
    texts = [text.get_text() for text in axes.texts]
    layers = {"encoder, layer 0", "decoder, layer 0"}
    for shown in layers | {"75%", "began 60%, chance 50%", "head 1: window"}:
        assert shown in texts
    assert any("up to 16 tokens away" in text for text in texts)
