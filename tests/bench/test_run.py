"""A whole bench: what its document holds, and that the loop is closed."""

import json
import math
import re
import subprocess

import pytest

from fishcli.bench import BenchSettings, run_bench
from fishcli.bench.machine import commit
from fishcli.bench.rows import longest_text, make_rows
from fishcli.bench.run import PROMPT_OVERHEAD
from fishcli.errors import UsageError
from fishcli.estimate import FRAME_RATE
from tests.bench.conftest import CONCURRENCY, ROWS, SLOTS, Watched

TOP = "schema commit date model weights dtype settings machine ceiling runs codec ablations"
MACHINE = "gpu gpus torch triton python"
RUN = (
    "concurrency rows max_batch_size reference wall_s audio_s rtf_mean rtf_median rtf_p95 "
    "ttfp_mean_s ttfp_p95_s requests_per_s audio_s_per_s frame_ms ar_rtf context_tokens "
    "prefill_ms occupancy peak_memory_gb"
)
GPU_ONLY = {"load_memory_gb", "device_idle", "host_waits_per_frame"}
CODEC = "decode_audio_s_per_s encode_fp32_audio_s_per_s first_chunk_ms"


def test_the_document_holds_what_others_read(bench):
    document = bench.document
    assert set(TOP.split()) <= set(document)
    assert set(MACHINE.split()) <= set(document["machine"])
    assert set(CODEC.split()) <= set(document["codec"])
    assert document["schema"] == 1
    assert document["weights"] == "random"
    json.dumps(document, allow_nan=False)
    (run,) = document["runs"]
    assert set(RUN.split()) <= set(run)
    assert GPU_ONLY.isdisjoint(run)
    assert (run["concurrency"], run["max_batch_size"], run["rows"]) == (CONCURRENCY, SLOTS, ROWS)


def test_every_part_is_saved_when_it_is_done(bench):
    """A bench that is cut short leaves what it had measured."""
    assert [len(saved["runs"]) for saved in bench.saved] == sorted(
        len(saved["runs"]) for saved in bench.saved
    )
    assert bench.saved[0]["runs"] == [] and "codec" in bench.saved[0]
    assert bench.saved[-1] == bench.document


def test_figures_of_a_run_agree_with_its_rows(bench):
    (run,) = bench.document["runs"]
    config_positions = 512
    longest = longest_text(config_positions, PROMPT_OVERHEAD)
    frames = make_rows(ROWS, longest, "none", None).frames
    assert run["audio_s"] == pytest.approx(sum(frames.values()) / FRAME_RATE, rel=1e-3)
    assert run["audio_s_per_s"] == pytest.approx(run["audio_s"] / run["wall_s"])
    assert run["requests_per_s"] == pytest.approx(ROWS / run["wall_s"])
    assert len(run["row_rtf"]) == len(run["row_ttfp_s"]) == ROWS
    assert run["rtf_median"] <= run["rtf_p95"]
    assert 0 < run["occupancy"] <= CONCURRENCY / SLOTS
    assert all(math.isfinite(value) for value in run.values() if isinstance(value, float))


def test_never_more_rows_in_flight_than_asked_for(bench):
    assert max(bench.in_flight) == CONCURRENCY
    assert bench.in_flight[-1] == 0


def test_the_ceiling_is_said_before_anything_is_measured(bench):
    said = [line for line in bench.notes if "ceiling" in line or "warming up" in line]
    assert said[0].startswith("ceiling: memory reads at")
    assert len(said) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrency": ()}, "nothing to measure"),
        ({"concurrency": (0,)}, "concurrency is 0"),
        ({"frames": (2000,)}, r"frames is 2000: allowed is \[1, 1024\]"),
        ({"max_batch_size": 0}, r"max_batch_size is 0: allowed is \[1, 1024\]"),
        ({"max_batch_size": 1025}, "max_batch_size is 1025"),
        ({"rows": 0}, "rows is 0"),
        ({"reference": "some"}, "reference is 'some'"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(UsageError, match=message):
        BenchSettings("random:mini", **changes)


def test_a_trace_needs_a_gpu():
    with pytest.raises(UsageError, match="trace needs a CUDA device, not cpu"):
        run_bench(BenchSettings("random:mini", "cpu", trace=(1,)), Watched())


@pytest.fixture
def checkout(tmp_path):
    """A committed file in a repository of its own."""

    def git(*command):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        done = subprocess.run(
            ["git", *identity, "-C", str(tmp_path), *command],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    file = tmp_path / "module.py"
    file.write_text("one\n")
    git("init", "-q")
    git("add", "module.py")
    git("commit", "-q", "-m", "first")
    return file, git("rev-parse", "HEAD")


def test_the_commit_is_that_of_the_checkout(checkout):
    file, head = checkout
    assert commit(file) == head[:12]
    file.write_text("two\n")
    assert commit(file) == head[:12] + "+"


def test_a_copy_that_is_no_part_of_a_checkout_has_no_commit(checkout, tmp_path_factory):
    file, _ = checkout
    installed = file.parent / "site-packages" / "module.py"
    installed.parent.mkdir()
    installed.write_text("one\n")
    assert commit(installed) == ""
    assert commit(tmp_path_factory.mktemp("elsewhere") / "module.py") == ""


def test_the_documents_commit_is_a_commit_or_empty(bench):
    assert re.fullmatch(r"([0-9a-f]{12}\+?)?", bench.document["commit"])
