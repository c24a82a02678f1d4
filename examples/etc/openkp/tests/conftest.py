"""Pages, and the command line of a small training on them."""

from pathlib import Path

import pytest

from openkp import prepare
from openkp.tests.web_pages import HEADING, PLAIN, page, pages_with_headings, write_pages
from tests.cli.conftest import no_update  # noqa: F401  a fixture


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder whose ``valid`` is as its ``train``; the test set also has a page whose
    keyphrase stands nowhere, and one whose keyphrases are unknown."""
    folder = tmp_path_factory.mktemp("pages")
    items = pages_with_headings(16)
    path = write_pages(folder / "pages.jsonl", items)
    nodes = [("red gold", HEADING), ("cat", PLAIN)]
    others = [page(nodes, ["no such"], "b.com"), page(nodes, None, "c.com")]
    test = write_pages(folder / "test.jsonl", [*items[:2], *others])
    words = ("--train", path, "--valid", path, "--test", test)
    assert prepare.main([str(folder / "data"), *map(str, words)]) == 0
    return folder / "data"
