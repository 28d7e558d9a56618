"""``fishcli doctor``: what this machine and a model can do, checked line by line."""

from fishcli.doctor.finding import Finding
from fishcli.doctor.machine import examine_machine
from fishcli.doctor.model import examine_model

__all__ = ["Finding", "examine_machine", "examine_model"]
