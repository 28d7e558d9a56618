"""Measures the whole pipeline in a closed loop, and its parts alone."""

from fishcli.bench.run import BenchSettings, run_bench

__all__ = ["BenchSettings", "run_bench"]
