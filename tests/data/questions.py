"""One small question with its document, in all that its files hold."""

import torch

from fairseq_clusterformer.data.qa import Example, Outline

TEXTS = {
    "id": "q1",
    "question": "Où ?",
    "paragraphs": [["A", "Röntgen 🍰 here"], ["B", " in\r\nBerlin."]],
    "answers": [[1, 5, 11]],
    "texts": ["Berlin"],
}
# <s> Röntgen| 🍰 (two tokens)| here <s> title| in\r\n|Berlin|.
DOCUMENT = torch.tensor([0, 10, 11, 12, 13, 0, 14, 15, 16, 17])
CHARACTERS = torch.tensor(
    [[-1, 0, 7, 8, 9, -1, -1, 0, 5, 11], [-1, 7, 9, 9, 14, -1, -1, 5, 11, 12]]
)
# of the example: <s> and a text of 4 tokens, <s>, a title and a text of 3
OUTLINE = Outline(
    sentences=torch.tensor([[1, 3], [3, 5], [7, 10]]),
    supporting=torch.tensor([1, 2]),
    names=(torch.tensor([7]), torch.tensor([8, 9])),
    right=1,
    mentions=torch.tensor([[1, 1, 2], [0, 3, 5], [1, 8, 9]]),
)


def example(**changed) -> Example:
    fields = {
        "question": torch.tensor([70_000, 5]),
        "document": DOCUMENT,
        "characters": CHARACTERS,
        "paragraph_starts": torch.tensor([0, 5]),
        "answers": torch.tensor([[8, 9], [1, 2]]),
        "long_answers": torch.tensor([1]),
        "answerable": True,
        "yes_no": None,
    }
    return Example(**(fields | changed))


NOTHING = {
    "answers": torch.zeros(0, 2, dtype=torch.int64),
    "long_answers": torch.zeros(0, dtype=torch.int64),
}
