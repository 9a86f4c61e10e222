"""Sequences of text: windows, padded and packed documents, preference pairs; and what the model sees of each other."""

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.workloads.llm import batches, text
from nightsweep.jobs.workloads.llm import workload as llm

NANO = {"workload": "llm", "model": "llama-nano", "micro_batch": 2, "seq_len": 64}


def folder(tmp_path, *sizes):
    """Text files of random letters, of these sizes."""
    generator = np.random.default_rng(0)
    for number, size in enumerate(sizes):
        (tmp_path / f"{number:02}.txt").write_bytes(bytes(generator.integers(97, 123, size, dtype=np.uint8)))
    return str(tmp_path)


def test_windows_are_the_joined_text_cut_anywhere(tmp_path):
    data = folder(tmp_path, 10, 7)
    joined = b"\n".join(path.read_bytes() for path in sorted(tmp_path.glob("*.txt")))
    found = text.windows(text.load_documents(data), 5)
    assert found.tobytes() == joined[:15] and found.shape == (3, 5)


def test_padded_sequences_are_one_document_each_and_count_what_is_real(tmp_path):
    data = folder(tmp_path, 10, 1, 150, 64)
    point = complete(NANO | {"sequences": "padded", "data": data})
    items = [batches.dataset(point)[i] for i in range(len(batches.dataset(point)))]
    assert [int(item["length"]) for item in items] == [10, 64, 64, 22, 64]
    first = items[0]
    assert first["tokens"].shape == first["labels"].shape == (64,)
    assert first["labels"][1:10].equal(first["tokens"][1:10]) and (first["labels"][10:] == -100).all()
    assert batches.real_tokens(default_collate(items)) == 10 + 64 + 64 + 22 + 64


def test_packing_loses_no_document_overfills_nothing_and_leaves_little_room():
    lengths = np.random.default_rng(1).integers(2, 65, 500).tolist()
    sequences = text.pack(lengths, 64)
    assert sorted(place for sequence in sequences for place in sequence) == list(range(500))
    assert max(sum(lengths[place] for place in sequence) for sequence in sequences) <= 64
    assert len(sequences) < 1.15 * sum(lengths) / 64


@pytest.mark.parametrize("attention", ["auto", "eager"])
def test_no_packed_document_sees_another(tmp_path, attention):
    """Logits and loss of the packed sequence are those of each document alone."""
    data = folder(tmp_path, 20, 30, 9)
    point = complete(NANO | {"sequences": "packed", "data": data, "attention": attention})
    work = llm.build(point)
    assert len(work.dataset) == 1
    batch = work.prepare(default_collate([work.dataset[0]]))
    network = work.model
    if attention == "eager":
        network.config._attn_implementation = "eager"
    out = network(
        input_ids=batch["tokens"], attention_mask=batch["mask"], position_ids=batch["positions"]
    ).logits.detach()
    losses, start = [], 0
    for length in (20, 30, 9):
        alone = batch["tokens"][:, start : start + length]
        logits = network(input_ids=alone).logits.detach()
        torch.testing.assert_close(out[:, start : start + length], logits, rtol=1e-4, atol=1e-5)
        losses.append(torch.nn.functional.cross_entropy(logits[0, :-1], alone[0, 1:], reduction="sum"))
        start += length
    assert llm.loss(network, batch).item() == pytest.approx(float(sum(losses)) / (59 - 3), rel=1e-5)
    # and it would show if they did see each other
    mixed = network(input_ids=batch["tokens"]).logits.detach()
    assert not torch.allclose(mixed[:, 20:50], out[:, 20:50], atol=1e-3)


def test_packed_and_padded_hold_the_same_documents():
    counts = {}
    for sequences in ("padded", "packed"):
        data = batches.dataset(complete(NANO | {"seq_len": 2048, "sequences": sequences}))
        items = [data[i] for i in range(len(data))]
        labels = sum(int((item["labels"] != -100).sum()) for item in items)
        counts[sequences] = len(items), sum(int(item["length"]) for item in items), labels
    assert counts["padded"][1:] == counts["packed"][1:]
    assert counts["packed"][0] < counts["padded"][0]
    assert counts["packed"][1] / counts["packed"][0] / 2048 > 0.95


def test_pairs_share_their_first_half_and_go_on_differently():
    point = complete(NANO | {"method": "dpo"})
    data = batches.dataset(point)
    plain = batches.dataset(complete(NANO))
    assert len(data) == len(plain)
    for index in (0, len(data) - 1):
        pair = data[index]
        assert pair["tokens"].shape == (2, 64)
        assert pair["tokens"][0].equal(plain[index]["tokens"])
        assert pair["tokens"][0, :32].equal(pair["tokens"][1, :32])
        assert not pair["tokens"][0, 32:].equal(pair["tokens"][1, 32:])
        assert (pair["labels"][:, :32] == -100).all() and pair["labels"][:, 32:].equal(pair["tokens"][:, 32:])
    assert batches.tokens_per_sample(point) == 128
