"""Which numbers an option may have, and what is said of others."""

import re
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest

from fairseq_clusterformer.ranges import LARGEST, Range, check_ranges


@dataclass
class Declared:
    share: float = field(default=-1.0, metadata={"range": Range(0, below=1)})
    form: str = field(default="a", metadata={"range": Range(choices=("a", "b"))})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share": 1.0}, "--share is 1.0; allowed: 0 or more, below 1"),
        ({"share": 0.0}, None),
        ({"share": -1.0}, None),  # its default
        ({"form": "c"}, "--form is c; allowed: a, b"),
        ({"lr": [0.1, float("inf")]}, "--lr is inf; allowed: 0 or more"),
        ({"lr": [0.0], "dropout": 1.0, "use_bmuf": True}, None),
        ({"label_smoothing": 1}, "--label-smoothing is 1; allowed: 0 or more, below 1"),
        ({"temperature": 0.0}, "--temperature is 0.0; allowed: above 0"),
        ({"seed": LARGEST + 1}, f"--seed is {LARGEST + 1}; allowed: 0 or more, up to {LARGEST}"),
        ({"seed": LARGEST}, None),
        ({"beam": 1.5}, "--beam is 1.5; allowed: 1 or more"),
        ({"beam": 1, "max_update": 0}, None),
        ({"of_nobody": float("nan")}, "--of-nobody is nan; allowed: a finite number"),
        ({"of_nobody": 2**63}, f"--of-nobody is {2**63}; allowed: up to {LARGEST}"),
        ({"of_nobody": -(2**63), "name": "nan", "nothing": None}, None),
    ],
)
def test_what_is_outside_is_said(options, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$") if said else nullcontext():
        check_ranges(options, Declared)
    assert Range(whole=True).allowed() == "a whole number"
