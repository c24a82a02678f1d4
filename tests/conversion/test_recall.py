"""The picture of what heads see of the dense attention."""

from matplotlib.colors import to_hex

from fairseq_clusterformer.conversion.convert import Head
from fairseq_clusterformer.conversion.recall import FITTED, draw_recall


def test_bars_are_as_long_as_the_recall() -> None:
    heads = [
        Head("encoder", 0, 0, 1, "taught", 0.5, 0.9, 0.55, 0.6, 0.5, 0.75),
        Head("encoder", 0, 1, 0, "window", 0.1, 1.0, 0.9, None, None, 0.9),
        Head("decoder", 0, 0, 0, "full", 0.7, 0.8, 1.0, None, None, 1.0),
    ]
    axes = draw_recall(heads, 16).axes[0]
    bars = [p.get_width() for p in axes.patches if to_hex(p.get_facecolor()) == FITTED]
    assert bars == [0.75, 0.9, 1.0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[:2] == ["encoder, layer 0, head 0: taught", "encoder, layer 0, head 1: window"]
    assert axes.texts[0].get_text() == "75%; began 60%, chance 50%"
    assert "up to 16 tokens away" in axes.get_title("left")
