"""Trains an image network of torchvision in a plain loop, on one GPU or with DDP."""

import argparse
import gc
import os
import time

import torch
import torchvision
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--arch", default="resnet50")
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--workers", type=int, default=10)
parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--float-images", action="store_true", help="images leave the loader as normalised fp32")
parser.add_argument("--no-pin", action="store_true")
parser.add_argument("--blocking", action="store_true")
parser.add_argument("--resident", type=int, default=0, help="so many batches are made once, and used again and again")
parser.add_argument("--ahead", action="store_true", help="copy the next batch on a stream of its own")
parser.add_argument("--empty-cache", action="store_true")
parser.add_argument(
    "--collect", type=int, default=0, help="keep so many thousand objects, and collect garbage each step"
)
parser.add_argument("--read-ms", type=float, default=0, help="what storage takes to read an image")
parser.add_argument("--slow-rank", type=int, help="whose storage alone takes that")
parser.add_argument("--print-every", type=int, default=50)
given = parser.parse_args()

ranks, rank, local = (int(os.environ.get(name, default)) for name, default in
                      (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0)))  # fmt: skip
device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
if ranks > 1:
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")


class Images(torch.utils.data.Dataset):
    """Random images that lie in memory."""

    def __init__(self):
        self.pool = torch.randint(0, 256, (512, 3, given.size, given.size), dtype=torch.uint8)
        slow = given.slow_rank is None or given.slow_rank == rank
        self.read_s = given.read_ms / 1e3 if slow else 0

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        if self.read_s:
            time.sleep(self.read_s)
        image = self.pool[place % len(self.pool)]
        return (image.float().sub(127.5).div(58.0) if given.float_images else image), place % 1000


def batches(loader):
    kept = []
    for batch in loader:
        yield batch
        if given.resident:
            kept.append(batch)
            if len(kept) == given.resident:
                break
    while kept:
        yield from kept


def to_device(batch):
    images, labels = (part.to(device, non_blocking=not given.blocking) for part in batch)
    return images, labels


def copied_ahead(source):
    """Batches on the device, each copied while the one before it is computed with."""
    side = torch.cuda.Stream()
    following = None
    for batch in source:
        with torch.cuda.stream(side):
            coming = to_device(batch)
        if following is not None:
            yield following
        torch.cuda.current_stream().wait_stream(side)
        for part in coming:
            part.record_stream(torch.cuda.current_stream())
        following = coming


torch.manual_seed(1)
model = torchvision.models.get_model(given.arch, num_classes=1000).to(device)
if given.channels_last:
    model = model.to(memory_format=torch.channels_last)
if ranks > 1:
    model = DistributedDataParallel(model, device_ids=[local] if device.type == "cuda" else None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
loss_of = torch.nn.CrossEntropyLoss()
loader = torch.utils.data.DataLoader(
    Images(), given.batch, num_workers=given.workers, pin_memory=not given.no_pin and device.type == "cuda",
    drop_last=True,
)  # fmt: skip
objects = [{"place": n, "next": [n]} for n in range(given.collect * 1000)]
source = copied_ahead(batches(loader)) if given.ahead else map(to_device, batches(loader))
for step, (images, labels) in enumerate(source):
    if not given.float_images:
        images = images.float().sub_(127.5).div_(58.0)
    if given.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    with torch.autocast(device.type, torch.bfloat16, enabled=given.precision == "bf16"):
        loss = loss_of(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if given.empty_cache:
        torch.cuda.empty_cache()
    if given.collect:
        gc.collect()
    if step % given.print_every == given.print_every - 1:
        print(step, loss.item())
