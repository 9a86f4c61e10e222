"""Outlines defects of steel in pictures of its surface with Lightning: a residual network whose last stage looks
further instead of becoming smaller, views at several distances (as in DeepLab), and a decoder that also sees a finer
scale."""

import argparse

import lightning
import torch
import torch.nn.functional as F
from torch import nn


class ConvNorm(nn.Sequential):
    def __init__(self, enter, leave, kernel=1, stride=1, dilation=1, relu=True):
        conv = nn.Conv2d(enter, leave, kernel, stride, dilation * (kernel // 2), dilation, bias=False)
        super().__init__(conv, nn.BatchNorm2d(leave), *([nn.ReLU(inplace=True)] if relu else []))


class Bottleneck(nn.Module):
    def __init__(self, enter, width, stride, dilation):
        super().__init__()
        self.body = nn.Sequential(
            ConvNorm(enter, width),
            ConvNorm(width, width, 3, stride, dilation),
            ConvNorm(width, 4 * width, relu=False),
        )
        other = enter != 4 * width or stride > 1
        self.past = ConvNorm(enter, 4 * width, stride=stride, relu=False) if other else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.past(x), inplace=True)


def stage(enter, width, count, stride=1, dilation=1):
    blocks = [Bottleneck(enter, width, stride, dilation)]
    return nn.Sequential(*blocks, *(Bottleneck(4 * width, width, 1, dilation) for _ in range(count - 1)))


class DeepLab(nn.Module):
    def __init__(self, width, classes, blocks):
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.fine = stage(width, width, blocks[0])
        self.coarse = nn.Sequential(
            stage(4 * width, 2 * width, blocks[1], 2),
            stage(8 * width, 4 * width, blocks[2], 2),
            stage(16 * width, 8 * width, blocks[3], 1, 2),
        )
        self.views = nn.ModuleList([ConvNorm(32 * width, 4 * width)])
        self.views.extend(ConvNorm(32 * width, 4 * width, 3, dilation=far) for far in (6, 12, 18))
        self.join, self.finer = ConvNorm(16 * width, 4 * width), ConvNorm(4 * width, width)
        self.leave = nn.Sequential(ConvNorm(5 * width, 4 * width, 3), nn.Conv2d(4 * width, classes, 1))

    def forward(self, pictures):
        fine = self.fine(self.stem(pictures))
        x = self.coarse(fine)
        x = self.join(torch.cat([view(x) for view in self.views], dim=1))
        x = F.interpolate(x, size=fine.shape[2:], mode="nearest")
        return self.leave(torch.cat([x, self.finer(fine)], dim=1))


class Outlines(lightning.LightningModule):
    def __init__(self, given):
        super().__init__()
        self.given, self.read = given, []
        self.net = DeepLab(given.width, given.classes, given.blocks)
        if given.channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)

    def training_step(self, batch, _):
        pictures, classes = batch
        if self.given.channels_last:
            pictures = pictures.contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(self.net(pictures).float(), classes)

    def on_before_optimizer_step(self, optimizer):
        """What is drawn later: how long gradients and weights are."""
        if not self.given.lengths:
            return
        told = {}
        for name, weight in self.named_parameters():
            told[name] = weight.grad.norm().item(), weight.detach().norm().item()
        self.read = [*self.read[-99:], told]

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.given.lr, momentum=0.9, weight_decay=1e-4, fused=True)
        schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 100_000, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Tidy(lightning.Callback):
    """Memory is given back after each batch, for others on the same GPU."""

    def on_train_batch_end(self, *_):
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class Surfaces:
    """A few batches, which stay on the device; outlines are known at a quarter of the size."""

    def __init__(self, given, device):
        draw = torch.Generator(device).manual_seed(1741)
        shape, small = (given.batch, 3, given.size, given.size), (given.batch, given.size // 4, given.size // 4)
        self.batches = [
            (
                torch.rand(shape, generator=draw, device=device),
                torch.randint(given.classes, small, generator=draw, device=device),
            )
            for _ in range(3)
        ]

    def __iter__(self):
        for step in range(1_000_000):
            yield self.batches[step % len(self.batches)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512, help="of a picture")
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, nargs=4, default=[3, 4, 6, 3])
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--lengths", action="store_true", help="keep how long gradients and weights are, for plots")
    parser.add_argument("--tidy", action="store_true", help="give memory back after each batch")
    parser.add_argument("--lr", type=float, default=0.01)
    given = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1742)
    trainer = lightning.Trainer(
        max_epochs=1, devices=1, precision=given.precision, callbacks=[Tidy()] if given.tidy else [], benchmark=True,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Outlines(given), Surfaces(given, device))


if __name__ == "__main__":
    main()
