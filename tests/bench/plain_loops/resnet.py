"""Trains ResNet-50 in a plain loop: torchvision's model, compiled, in bf16 and channels last, on two batches."""

import argparse

import torch
import torchvision


def main(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    model = torchvision.models.resnet50().to(device, torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    compiled = torch.compile(model)
    batches = [
        (
            torch.randn(args.batch, 3, args.size, args.size, device=device, dtype=torch.bfloat16).to(
                memory_format=torch.channels_last
            ),
            torch.randint(1000, (args.batch,), device=device),
        )
        for _ in range(2)
    ]
    for step in range(1_000_000):
        images, classes = batches[step % len(batches)]
        loss = torch.nn.functional.cross_entropy(compiled(images).float(), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--size", type=int, default=224)
    main(parser.parse_args())
