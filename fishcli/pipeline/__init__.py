"""The one place where all parts are wired; the CLI and the bench call it."""

from fishcli.metrics import Progress
from fishcli.pipeline.interrupt import Interrupted
from fishcli.pipeline.line import Observer
from fishcli.pipeline.synthesis import row_source, synthesize
from fishcli.report import RunReport

__all__ = ["Interrupted", "Observer", "Progress", "RunReport", "row_source", "synthesize"]
