"""Trains an image network of torchvision with Lightning."""

import argparse

import lightning
import torch
import torchmetrics
import torchvision

parser = argparse.ArgumentParser()
parser.add_argument("--arch", default="resnet50")
parser.add_argument("--batch", type=int, default=256)
parser.add_argument("--size", type=int, default=224)
parser.add_argument("--workers", type=int, default=10)
parser.add_argument("--precision", default="bf16-mixed")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--augment", action="store_true", help="crop, flip and jitter, on the CPU")
parser.add_argument("--float-images", action="store_true")
parser.add_argument("--no-pin", action="store_true")
parser.add_argument("--metrics", action="store_true", help="read the loss and the accuracy in each step")
parser.add_argument("--devices", type=int, default=1)
given = parser.parse_args()


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.pool = torch.randint(0, 256, (512, 3, given.size + 32, given.size + 32), dtype=torch.uint8)
        flip, jitter = torchvision.transforms.RandomHorizontalFlip(), torchvision.transforms.ColorJitter(0.4, 0.4, 0.4)
        crop = torchvision.transforms.RandomResizedCrop(given.size, antialias=True)
        self.augment = torchvision.transforms.Compose([crop, flip, jitter])

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        image = self.pool[place % len(self.pool)]
        image = self.augment(image) if given.augment else image[:, : given.size, : given.size]
        return (image.float().div(255.0) if given.float_images else image.clone()), place % 1000


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torchvision.models.get_model(given.arch, num_classes=1000)
        if given.channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=1000)
        self.read = []

    def training_step(self, batch, _):
        images, labels = batch
        if not given.float_images:
            images = images.float().div(255.0)
        if given.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        found = self.net(images)
        loss = torch.nn.functional.cross_entropy(found, labels)
        if given.metrics:
            self.read.append((loss.item(), self.accuracy(found, labels).item(), found.float().norm().item()))
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


loader = torch.utils.data.DataLoader(
    Images(), given.batch, num_workers=given.workers, pin_memory=not given.no_pin and torch.cuda.is_available()
)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
strategy = "ddp" if given.devices > 1 else "auto"
trainer = lightning.Trainer(max_epochs=1, devices=given.devices, precision=given.precision, strategy=strategy, **quiet)
trainer.fit(Net(), loader)
