"""Mistakes and Ctrl-C end a command of fairseq in one line, without a traceback."""

import os
import re
import sys
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from torch.multiprocessing import ProcessRaisedException

from .checks import what_hydra_refuses

#: what fairseq refuses, where it names an option
_REFUSALS = {AssertionError, Exception, NotImplementedError, RuntimeError}


def one_line(error: BaseException) -> str | None:
    """What a user needs to know of a mistake; None: it is an error of another kind."""
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        return what_hydra_refuses(error)
    text = f"{type(error).__name__}: {error}"
    # these quote the traceback of their process
    if isinstance(error, ProcessRaisedException) or "Original Traceback" in text:
        text = str(error).strip().splitlines()[-1]
    # a file or a package that is missing, or a full disk, is no fault of the program's either
    known = "allowed: " in text or isinstance(error, (OSError, ImportError))
    if type(error) in _REFUSALS or isinstance(error, ValueError):
        known = known or re.search(r"(^|[\s`(])--[a-z]", str(error))
    return " ".join(text.split()) if known else None


def report_in_one_line() -> None:
    """Lets this process print one line where it is a command of fairseq."""
    command = Path(sys.argv[0] if sys.argv else "")
    started = command.name.startswith("fairseq-") or command.parent.name == "fairseq_cli"
    before = sys.excepthook
    if not started or hasattr(before, "__wrapped__"):
        return

    def excepthook(kind, error, trace):
        line = one_line(error)
        if issubclass(kind, KeyboardInterrupt):
            if os.environ.get("RANK", "0") != "0":  # torchrun's first process says it
                return
            line = f"{command.stem}: interrupted"
        if line is None:
            before(kind, error, trace)
        else:
            print(line, file=sys.stderr)

    excepthook.__wrapped__ = before
    sys.excepthook = excepthook
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else hydra prints its errors itself, in several lines

    def return_value(self: JobReturn):
        if self.status == JobStatus.FAILED:
            raise self._return_value  # hydra would print a line before it
        return of_job.fget(self)

    of_job = JobReturn.return_value
    JobReturn.return_value = property(return_value, of_job.fset)
