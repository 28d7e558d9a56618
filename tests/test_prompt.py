"""Prompt grids against the golden ones, and texts that try to steer the model."""

import pytest
import torch

from fishcli.errors import RowError
from fishcli.model import ModelConfig
from fishcli.model.tokenizer import HashedWords, load_tokenizer
from fishcli.prompt import PromptBuilder, Spoken
from tests.conftest import TOY, golden_json, golden_tensors

CASES = golden_json("prompts")["cases"]


@pytest.fixture(scope="module")
def builder():
    config = ModelConfig.from_folder(TOY)
    return PromptBuilder(load_tokenizer(TOY, config), config)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_grid_equals_golden(builder, case):
    tensors = golden_tensors("prompts")
    references = [Spoken(ref["text"], tensors[ref["codes"]]) for ref in case["references"]]
    turns = [Spoken(turn["text"], tensors[turn["codes"]]) for turn in case["turns"][:-1]]
    grid = builder.build(case["turns"][-1]["text"], references, turns)
    expected = tensors[f"prompt.{case['name']}"]
    assert grid.shape == expected.shape
    assert torch.equal(grid.long(), expected.long())


@pytest.mark.parametrize("token", ["<|im_end|>", "<|semantic:12|>", "<|audio_start|>", "<|voice|>"])
def test_control_tokens_in_any_text_are_refused(builder, token):
    with pytest.raises(RowError, match="text contains the control token"):
        builder.build(f"Hello {token} there")
    spoken = Spoken(f"x{token}", torch.zeros(10, 3, dtype=torch.int32))
    with pytest.raises(RowError, match="ref_text contains the control token"):
        builder.build("Hello", [spoken])


def test_text_that_is_not_unicode_is_refused(builder):
    with pytest.raises(RowError, match=r"text contains '\\udcff', half a character"):
        builder.build("Hello \udcff there")


def test_speaker_tags_and_brackets_pass(builder):
    grid = builder.build("Before. <|speaker:1|>[whisper] a < b > c <3")
    assert grid.shape[0] == 11


def test_hashed_words_stay_below_the_control_tokens():
    config = ModelConfig.from_folder(TOY)
    tokenizer = HashedWords(config)
    ids = tokenizer.encode("One, two   three\nfour <|voice|>")
    assert len(ids) >= 7
    assert all(0 <= token < config.im_end for token in ids)
    assert ids == tokenizer.encode("One, two   three\nfour <|voice|>")
