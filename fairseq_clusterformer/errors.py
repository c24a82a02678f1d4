"""One form for a user's mistake."""


class UserError(Exception):
    """A mistake of the user's, reported in one line without a traceback."""


def bad_option(option: str, value: object, allowed: str, problem: str = "") -> UserError:
    """The one form of an error: ``--option is VALUE: problem; allowed: what is``.

    Args:
        option: as the user gave it, such as ``--data``, or the name of a positional argument.
        value: what was given.
        allowed: what would be right.
        problem: what is wrong with it, where the value alone does not show it.
    """
    return UserError(f"{option} is {value}{problem and f': {problem}'}; allowed: {allowed}")


def __getattr__(name: str) -> object:
    """What has moved to :mod:`fairseq_clusterformer.outputs`, under its former name."""
    if name in ("check_holds_only", "check_new", "whole_folder", "write_aside"):
        from fairseq_clusterformer import outputs

        return getattr(outputs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
