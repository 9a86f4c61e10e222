"""First values of the weights: the same by name whatever the method, from the seed or from a checkpoint."""

import json

import pytest
import torch
import transformers as hf

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads.llm import workload as llm
from nightsweep.jobs.workloads.llm.configuration import configuration
from nightsweep.jobs.workloads.llm.weights import name_in_llama

NANO = {"workload": "llm", "model": "llama-nano", "micro_batch": 2, "seq_len": 24}


def named(**settings):
    """Weights by their names in the plain model."""
    model = llm.build_model(complete(NANO | settings))[0]
    return {name_in_llama(name): p.detach() for name, p in model.named_parameters() if p.is_floating_point()}


def checkpoint(folder, **changes):
    """A checkpoint as transformers writes it."""
    config = configuration(complete(NANO))
    config.update(changes)
    torch.manual_seed(3)
    model = hf.LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size="1MB")
    return model


def test_weights_follow_name_and_seed_and_are_those_of_llama():
    full = named()
    model = hf.LlamaForCausalLM(configuration(complete(NANO)))
    assert full.keys() == dict(model.named_parameters()).keys()
    for name, value in full.items():
        assert value.std().item() == pytest.approx(0.0 if "norm" in name else 0.02, rel=0.05), name
    assert all(torch.equal(full[name], value) for name, value in named(method="qat").items())
    lora = named(method="lora")
    assert all(torch.equal(full[name], lora[name]) for name in full)
    assert all(torch.equal(full[name], value) for name, value in named(method="dpo").items())
    assert not torch.equal(full["lm_head.weight"], named(seed=1)["lm_head.weight"])
    assert not torch.equal(full["model.layers.0.mlp.up_proj.weight"], full["model.layers.0.mlp.gate_proj.weight"])


def test_rope_survives_the_move_from_the_meta_device():
    model = llm.build_model(complete(NANO))[0]
    expected = hf.LlamaForCausalLM(configuration(complete(NANO))).model.rotary_emb.inv_freq
    assert torch.equal(model.model.rotary_emb.inv_freq, expected)


@pytest.mark.parametrize("method", ["full", "dpo", "qat"])
def test_a_checkpoint_is_taken_over(tmp_path, method):
    expected = checkpoint(tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists()
    point = complete(NANO | {"weights": str(tmp_path), "method": method})
    model = llm.build_model(point)[0]
    own = dict(expected.named_parameters())
    for name, value in model.named_parameters():
        assert torch.equal(value, own[name_in_llama(name)]), name
    if method == "full":
        ids = torch.arange(16)[None]
        torch.testing.assert_close(model(input_ids=ids).logits, expected(input_ids=ids).logits)


def test_a_tied_checkpoint_and_its_own_rope(tmp_path):
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
    expected = checkpoint(tmp_path, tie_word_embeddings=True, rope_parameters=rope)
    model = llm.build_model(complete(NANO | {"weights": str(tmp_path), "method": "lora"}))[0]
    ids = torch.arange(100)[None]
    torch.testing.assert_close(model(input_ids=ids).logits, expected(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"hidden_size": 64}, "hidden_size is 64, that of llama-nano is 128"), ({"model_type": "gpt2"}, "of gpt2, not")],
)
def test_a_checkpoint_of_another_shape_is_refused(tmp_path, changes, words):
    config = configuration(complete(NANO)).to_dict() | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=words):
        llm.build_model(complete(NANO | {"weights": str(tmp_path)}))


def test_missing_files_and_weights_are_told(tmp_path):
    point = complete(NANO | {"weights": str(tmp_path)})
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        llm.build_model(point)
    configuration(complete(NANO)).save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        llm.build_model(point)
