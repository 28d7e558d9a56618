"""Comparing the same work without and with an optimisation."""

from fishcli.bench.ablate import alternate, compare


def test_off_and_on_take_turns_after_a_warm_up_and_medians_count():
    calls = []
    values = {"off": iter([9.0, 5.0, 1.0, 3.0]), "on": iter([9.0, 2.0, 8.0, 4.0])}

    def measure(side):
        calls.append(side)
        return {"frame_ms": next(values[side])}

    off, on = alternate(lambda: measure("off"), lambda: measure("on"), repeats=3)
    assert calls == ["off", "on"] * 4
    assert (off, on) == ({"frame_ms": 3.0}, {"frame_ms": 4.0})


def test_every_figure_has_its_own_median():
    rows = iter([(0, 0), (1, 30), (2, 10), (3, 20)])

    def measure():
        first, second = next(rows)
        return {"first_ms": first, "second_ms": second}

    constant = {"first_ms": 1, "second_ms": 1}
    found = compare("name", "work", measure, lambda: constant, repeats=3)
    assert (found.off, found.on) == ({"first_ms": 2, "second_ms": 20}, constant)


def test_a_cpu_compares_what_it_has_and_nothing_else(bench):
    """Graphs and Triton kernels are absent, not zero."""
    ablations = bench.document["ablations"]
    assert [line["name"] for line in ablations] == [
        "prefix shared by rows of a voice",
        "codec decoding in batches",
        "codes handed over as device tensors, not lists",
        "condition variable instead of polling",
    ]
    for line in ablations:
        assert line["off"].keys() == line["on"].keys()
        assert all(value > 0 for value in [*line["off"].values(), *line["on"].values()])


def test_what_must_be_faster_is(bench):
    by_name = {line["name"].split()[0]: line for line in bench.document["ablations"]}
    for name in ("prefix", "codes", "condition"):
        line = by_name[name]
        assert all(line["on"][figure] < off for figure, off in line["off"].items()), line
