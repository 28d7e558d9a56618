"""``fishcli bench``: its flags and its file."""

import json

import pytest

from fishcli.cli.bench import _numbers
from fishcli.errors import UsageError


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["1", "8", "16"], (1, 8, 16)),
        (["1,8,16"], (1, 8, 16)),
        (["1,8", "16"], (1, 8, 16)),
        (["none"], ()),
        ([], ()),
    ],
)
def test_lists_are_repeated_flags_or_commas(values, numbers):
    assert _numbers("concurrency", values) == numbers


@pytest.mark.parametrize("values", [["many"], ["1,,2"], ["1.5"], [""]])
def test_a_list_that_is_none_says_how_to_write_it(values):
    with pytest.raises(UsageError, match="whole numbers like 1,8,16, or none"):
        _numbers("frames", values)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--concurrency", "none"), "nothing to measure"),
        (("--max-batch-size", "0"), "max_batch_size is 0"),
        (("--reference", "some"), "allowed is none, shared or unique"),
        (("--trace", "8", "--concurrency", "none"), "trace needs a CUDA device"),
        (("--model", "nothing"), "leads nowhere"),
    ],
)
def test_wrong_flags_are_refused(fishcli, flags, message):
    result = fishcli("bench", "--device", "cpu", *flags)
    assert result.exit_code == 2
    assert message in result.stderr


def test_figures_are_shown_and_written(fishcli, tmp_path):
    flags = ("--concurrency", "none", "--frames", "1", "--json", "kept/figures.json")
    result = fishcli("bench", "--device", "cpu", "--no-cuda-graph", *flags)
    assert result.exit_code == 0, result.output
    assert "one frame of mini" in result.stdout
    document = json.loads((tmp_path / "kept" / "figures.json").read_text())
    assert [line["slots"] for line in document["frames"]] == [1]
    assert document["settings"]["cuda_graph"] is False
    assert document["runs"] == document["ablations"] == []
