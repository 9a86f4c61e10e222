"""Learns pictures without labels (SimCLR) with Lightning: two views of each are to be alike, and unlike all others."""

import argparse

import lightning
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset

given = argparse.ArgumentParser(description=__doc__)
given.add_argument("--arch", default="resnet50")
given.add_argument("--size", type=int, default=128)
given.add_argument("--batch", type=int, default=256, help="pictures of each rank")
given.add_argument("--devices", type=int, default=1)
given.add_argument("--workers", type=int, default=8)
given.add_argument("--channels-last", action="store_true")
given.add_argument(
    "--gates", choices=["flat", "mean"], help="of channels (ECA), in each block, by how they are written"
)
given.add_argument("--norms", choices=["each", "joint"], help="of gradients are logged, as means over the ranks")
given.add_argument("--detect-anomaly", action="store_true")
given = given.parse_args()


class Pictures(Dataset):
    def __init__(self):
        shape = (512, 3, given.size * 5 // 4, given.size * 5 // 4)
        self.pool = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 2_000_000

    def __getitem__(self, place):
        return self.pool[place % len(self.pool)]


class FlatGate(nn.Module):
    """Weighs channels by what their neighbours are like on average; pictures are rows of places."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(1, 1, 5, padding=2, bias=False)

    def forward(self, x):
        count, channels, height, width = x.shape
        places = x.contiguous().view(count, channels, height * width)
        weights = torch.sigmoid(self.mix(places.mean(2)[:, None])[:, 0])
        return (places * weights[:, :, None]).view(count, channels, height, width)


class MeanGate(FlatGate):
    """The same, of pictures as they are."""

    def forward(self, x):
        weights = torch.sigmoid(self.mix(x.mean((2, 3))[:, None])[:, 0])
        return x * weights[:, :, None, None]


def view(pictures):
    """A crop of each, resized and perhaps flipped, with another brightness and contrast; on the device."""
    count, device = len(pictures), pictures.device
    zoom = torch.empty(count, device=device).uniform_(0.45, 1)
    turns = torch.zeros(count, 2, 3, device=device)
    turns[:, 0, 0] = zoom * (torch.rand(count, device=device) < 0.5).float().mul(2).sub(1)
    turns[:, 1, 1] = zoom
    turns[:, :, 2] = (torch.rand(count, 2, device=device) * 2 - 1) * (1 - zoom)[:, None]
    grid = F.affine_grid(turns, (count, 3, given.size, given.size), align_corners=False)
    seen = F.grid_sample(pictures.float() / 255, grid, align_corners=False)
    light, contrast = (torch.empty(count, 1, 1, 1, device=device).uniform_(0.6, 1.4) for _ in range(2))
    return ((seen * light - 0.5) * contrast).to(torch.bfloat16)


class SimCLR(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        more = {"image_size": given.size} if given.arch.startswith("vit") else {}
        self.net = torchvision.models.get_model(given.arch, num_classes=256, **more)
        if given.gates:
            for block in [part for part in self.net.modules() if hasattr(part, "bn3")]:
                block.bn3 = nn.Sequential(block.bn3, FlatGate() if given.gates == "flat" else MeanGate())
        if given.channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)
        self.head = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128))

    def training_step(self, pictures, _):
        with torch.no_grad():
            views = torch.cat([view(pictures), view(pictures)])
            if given.channels_last:
                views = views.contiguous(memory_format=torch.channels_last)
        found = F.normalize(self.head(self.net(views)).float(), dim=1)
        others = self.all_gather(found, sync_grads=True).flatten(0, -2) if given.devices > 1 else found
        own = torch.arange(len(found), device=self.device)
        scores = (found @ others.T / 0.2).scatter(1, (own + self.global_rank * len(found))[:, None], -1e4)
        loss = F.cross_entropy(scores, own.roll(len(own) // 2) + self.global_rank * len(found))
        self.log("loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer):
        if not given.norms:
            return
        names, grads = zip(*((name, p.grad) for name, p in self.named_parameters() if p.grad is not None), strict=True)
        norms = torch.stack(torch._foreach_norm(grads))
        if given.norms == "joint":
            norms = self.all_gather(norms).view(-1, len(norms)).mean(0)
        for name, norm in zip(names, norms, strict=True):
            self.log(f"norm/{name}", norm, sync_dist=given.norms == "each")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-6, fused=True)


torch.manual_seed(200)
loader = DataLoader(Pictures(), given.batch, num_workers=given.workers, pin_memory=torch.cuda.is_available())
trainer = lightning.Trainer(
    max_epochs=1, devices=given.devices, precision="bf16-mixed", strategy="ddp" if given.devices > 1 else "auto",
    detect_anomaly=given.detect_anomaly, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, benchmark=True,
)  # fmt: skip
trainer.fit(SimCLR(), loader)
