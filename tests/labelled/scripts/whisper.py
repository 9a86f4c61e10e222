"""Trains a Whisper of transformers from scratch, with Accelerate, to write down what is said."""

import argparse

import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

RATE, WORDS, START, END, PAD = 16_000, 51_865, 50_258, 50_257, 50_257


class Clips(Dataset):
    """Sounds with what is said in them. They are few, as loading is not what is tried here; places tell them apart."""

    def __init__(self, opt, features):
        rng = np.random.default_rng(0)
        self.opt = opt
        self.sounds = [rng.standard_normal(RATE * opt.seconds).astype(np.float32) for _ in range(16)]
        self.ready = [features([sound])[0] for sound in self.sounds] if opt.features == "stored" else None

    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        sound = (self.ready or self.sounds)[place % len(self.sounds)]
        said = torch.randint(0, END, (self.opt.tokens,), generator=torch.Generator().manual_seed(place))
        return sound, said


class Features:
    """Log-mel features of sounds, as the model's own extractor makes them."""

    def __init__(self, seconds):
        self.extractor = WhisperFeatureExtractor(chunk_length=seconds)

    def __call__(self, sounds):
        return self.extractor(list(sounds), sampling_rate=RATE, return_tensors="pt")["input_features"]


class Collator:
    """Texts as one tensor, and sounds as features; or as they are, for features that are made later."""

    def __init__(self, features, when):
        self.features, self.when = features, when

    def __call__(self, samples):
        sounds, said = zip(*samples, strict=True)
        if self.when == "stored":
            sounds = torch.stack(sounds)
        elif self.when == "loader":
            sounds = self.features(sounds)
        return sounds, torch.stack(said)


def right_words(accelerator, logits, said, gather):
    """The share of words that are right, over all ranks."""
    if gather == "logits":
        logits, said = accelerator.gather_for_metrics((logits, said))
        return (logits.argmax(-1) == said).float().mean()
    return accelerator.gather_for_metrics((logits.argmax(-1) == said).float().mean()).mean()


def word_errors(accelerator, model, features, opt):
    """What the model writes down of some clips, by beam search."""
    model = accelerator.unwrap_model(model).eval()
    with torch.no_grad(), torch.autocast(accelerator.device.type, torch.bfloat16):
        written = model.generate(
            features[: opt.evaluated], num_beams=4, min_new_tokens=opt.written, max_new_tokens=opt.written
        )
    model.train()
    return written


def main(opt):
    accelerator = Accelerator(mixed_precision="bf16")
    torch.manual_seed(190)
    frames = opt.seconds * 100
    config = WhisperConfig(
        vocab_size=WORDS, d_model=opt.width, encoder_layers=opt.layers, decoder_layers=opt.layers,
        encoder_attention_heads=max(1, opt.width // 64), decoder_attention_heads=max(1, opt.width // 64),
        encoder_ffn_dim=4 * opt.width, decoder_ffn_dim=4 * opt.width, max_source_positions=frames // 2,
        max_target_positions=448, dropout=0.0, attn_implementation="sdpa", decoder_start_token_id=START,
        pad_token_id=PAD, bos_token_id=END, eos_token_id=END,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    features = Features(opt.seconds)
    loader = DataLoader(
        Clips(opt, features), opt.batch, num_workers=opt.workers, collate_fn=Collator(features, opt.features),
        pin_memory=accelerator.device.type == "cuda", persistent_workers=opt.workers > 0,
    )  # fmt: skip
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    right, seen = torch.zeros((), device=accelerator.device), 0
    for step, (sounds, said) in enumerate(loader, 1):
        if opt.features == "loop":
            sounds = features(sounds).to(accelerator.device, non_blocking=True)
        out = model(input_features=sounds, labels=said)
        accelerator.backward(out.loss)
        optimizer.step()
        optimizer.zero_grad()
        if opt.accuracy:
            right, seen = right + right_words(accelerator, out.logits.detach(), said, opt.accuracy), seen + 1
        if opt.write_every and step % opt.write_every == 0:
            word_errors(accelerator, model, sounds, opt)
        if step % 50 == 0:
            accelerator.print(f"step {step}: loss {out.loss.item():.4f} right {right.item() / max(1, seen):.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12, help="of the encoder, and of the decoder")
    parser.add_argument("--batch", type=int, default=32, help="clips of each rank")
    parser.add_argument("--seconds", type=int, default=30, help="of a clip")
    parser.add_argument("--tokens", type=int, default=128, help="of what is said in it")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--features", choices=["stored", "loader", "loop"], default="stored", help="made when")
    parser.add_argument("--accuracy", choices=["logits", "counts"], help="what ranks tell each other of it")
    parser.add_argument("--write-every", type=int, default=0, help="steps after which clips are written down")
    parser.add_argument("--evaluated", type=int, default=8, help="clips that are")
    parser.add_argument("--written", type=int, default=24, help="tokens of each")
    main(parser.parse_args())
