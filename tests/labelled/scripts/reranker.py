"""Trains a cross-encoder of transformers (XLM-R) that ranks passages: it reads a question and a passage together, and
passages that answer the question must score higher than the others. One GPU, DDP, or gradients averaged by hand."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import XLMRobertaConfig, XLMRobertaModel

WORDS = 32_000


class Ranker(nn.Module):
    def __init__(self, args):
        super().__init__()
        config = XLMRobertaConfig(
            vocab_size=WORDS, hidden_size=args.width, num_hidden_layers=args.layers, intermediate_size=4 * args.width,
            num_attention_heads=max(1, args.width // 64), max_position_embeddings=args.length + 2, type_vocab_size=1,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
        )  # fmt: skip
        self.encoder = XLMRobertaModel(config, add_pooling_layer=False)
        self.score = nn.Linear(args.width, 1)

    def forward(self, texts):
        return self.score(self.encoder(input_ids=texts).last_hidden_state[:, 0])[:, 0].float()


def loss_of_each(scores, right):
    """Of each question: of all pairs of a passage that answers it and one that does not."""
    total, count = 0.0, 0
    for own, answers in zip(scores, right, strict=True):
        good, bad = own[answers], own[~answers]
        if len(good) == 0 or len(bad) == 0:
            continue
        total = total + F.softplus(bad[None] - good[:, None]).mean()
        count += 1
    return total / count


def loss_of_all(scores, right):
    """The same of all questions at once."""
    pairs = (right[:, :, None] & ~right[:, None, :]).float()
    losses = (F.softplus(scores[:, None, :] - scores[:, :, None]) * pairs).sum((1, 2))
    number = pairs.sum((1, 2))
    return (losses / number.clamp(min=1)).sum() / (number > 0).sum()


def average_by_hand(parameters, ranks):
    """Each gradient as soon as it is there."""

    def average(weight):
        dist.all_reduce(weight.grad)
        weight.grad.div_(ranks)

    for weight in parameters:
        dist.broadcast(weight.detach(), 0)
        weight.register_post_accumulate_grad_hook(average)


def main(args):
    ranks, rank, local = (int(os.environ.get(n, d)) for n, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(720)
    with device:
        model = Ranker(args).to(torch.bfloat16)
    parameters = list(model.parameters())
    if ranks > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
        if args.average == "hooks":
            average_by_hand(parameters, ranks)
        else:
            model = DistributedDataParallel(model, device_ids=[local] if cuda else None, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    torch.manual_seed(721 + rank)
    batches, shape = [], (args.questions, args.passages)
    for _ in range(4):
        texts = torch.randint(2, WORDS, (args.questions * args.passages, args.length), device=device)
        batches.append((texts, torch.rand(shape, device=device) < 0.2))
    for step in range(1, 1_000_000):
        texts, right = batches[step % len(batches)]
        scores = model(texts).view(shape)
        loss = loss_of_each(scores, right) if args.pairs == "each" else loss_of_all(scores, right)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % args.print_every == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--length", type=int, default=512, help="of a question and a passage, in words")
    parser.add_argument("--questions", type=int, default=8, help="of each rank")
    parser.add_argument("--passages", type=int, default=8, help="of a question")
    parser.add_argument("--pairs", choices=["each", "joint"], default="joint", help="how questions come to the loss")
    parser.add_argument("--average", choices=["ddp", "hooks"], default="ddp", help="how gradients are averaged")
    parser.add_argument("--print-every", type=int, default=50)
    main(parser.parse_args())
