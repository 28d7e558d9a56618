"""Numeric building blocks. Knows only torch and Triton; see :mod:`fishcli.kernels.reference`."""
