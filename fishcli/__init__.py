"""fishcli: batch speech synthesis for corpora with Fish Speech S2 Pro."""

__version__ = "0.1.0"
