"""20 Newsgroups "bydate": posts from folders or the archive, and what is taken out of them."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fairseq_clusterformer.errors import UserError

from ..lines import members
from .readers import LabelledText

GROUPS = tuple(
    """
    alt.atheism comp.graphics comp.os.ms-windows.misc comp.sys.ibm.pc.hardware
    comp.sys.mac.hardware comp.windows.x misc.forsale rec.autos rec.motorcycles
    rec.sport.baseball rec.sport.hockey sci.crypt sci.electronics sci.med sci.space
    soc.religion.christian talk.politics.guns talk.politics.mideast talk.politics.misc
    talk.religion.misc
    """.split()
)

_QUOTE = re.compile(
    r"writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>", re.MULTILINE
)


def strip_fields(post: str) -> str:
    """Return the post without its header, except for the subject's text."""
    header, _, body = post.partition("\n\n")
    subject = re.search(r"^Subject:(.*)", header, re.MULTILINE)
    return f"{subject[1].strip() if subject else ''}\n\n{body}"


def strip_headers(post: str) -> str:
    """Return the post without its header: all up to the first empty line."""
    return post.partition("\n\n")[2]


def strip_quotes(post: str) -> str:
    """Return the post without the lines that quote another or say who is quoted."""
    return "\n".join(line for line in post.split("\n") if not _QUOTE.search(line))


def strip_footers(post: str) -> str:
    """Return the post without its last block, after an empty line or a line of dashes."""
    lines = post.strip().split("\n")
    for number in range(len(lines) - 1, 0, -1):
        if not lines[number].strip().strip("-"):
            return "\n".join(lines[:number])
    return post


# In the order in which they are done, which is scikit-learn's.
STRIPS: dict[str, Callable[[str], str]] = {
    "fields": strip_fields,
    "headers": strip_headers,
    "footers": strip_footers,
    "quotes": strip_quotes,
}


def read_posts(files: Sequence[Path], strip: Sequence[str]) -> Iterator[LabelledText]:
    """Yield the posts of a part, sorted by group and number.

    Args:
        files: the part's folder, on the disk or in an archive: ``20news.tar.gz/20news-train``.
    """
    folder = files[0]
    source, before = (folder, "") if folder.is_dir() else (folder.parent, f"{folder.name}/")
    posts = {}
    for name, post in members(source, lambda name: f"/{before}" in f"/{name}"):
        place = tuple(f"/{name}".split(f"/{before}", 1)[1].split("/"))
        if len(place) != 2:
            raise UserError(f"{source}: {name}; allowed: {before}GROUP/NUMBER")
        posts[place] = post
    for (group, number), post in sorted(posts.items()):
        text = post.decode("latin-1").replace("\r\n", "\n")
        for name, function in STRIPS.items():
            text = function(text) if name in strip else text
        yield LabelledText(group, (text,), f"{folder}/{group}/{number}")
