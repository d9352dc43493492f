"""Tiny synthetic data and models for the scripts of scripts.yaml, in the files that they look for."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Prepare = Callable[[Path], None]
HERE = Path(__file__).parent
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29731"}


@dataclass(frozen=True)
class Script:
    """A row of scripts.yaml, which explains the fields."""

    name: str
    checkout: str
    command: str
    folder: str = "."
    prepare: Prepare = lambda _: None
    devices: int = 1
    tolerance: float = 1e-4
    mend: tuple[tuple[str, str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    imports: str = ""
    on_cpu: str = ""
    not_on_cpu: str = ""
    driver: str = ""
    needs_device: str = ""


def scripts() -> list[Script]:
    """Every row of scripts.yaml."""
    return [_script(row) for row in yaml.safe_load((HERE / "scripts.yaml").read_text(encoding="utf-8"))]


def _script(row: dict[str, Any]) -> Script:
    prepare, variables = row.get("prepare"), row.get("variables", {})
    if prepare is not None:
        row["prepare"] = images(**prepare["images"]) if isinstance(prepare, dict) else globals()[prepare]
    row["variables"] = tuple((ONE_RANK if variables == "one_rank" else variables).items())
    row["mend"] = tuple(map(tuple, row.get("mend", ())))
    return Script(**row)


def mnist(folder: Path) -> None:
    """Digits of noise, in the files that torchvision looks for: 48 to train with, 40 to test with."""
    raw = folder.parent / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    generator = random.Random(1)
    for kind, count in (("train", 48), ("t10k", 40)):
        images = struct.pack(">IIII", 0x803, count, 28, 28) + generator.randbytes(count * 28 * 28)
        labels = struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count))
        (raw / f"{kind}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{kind}-labels-idx1-ubyte").write_bytes(labels)
    if not (folder / "data").exists():
        (folder / "data").symlink_to("../data")


def images(parts: list[str], count: int = 8, size: int = 64, names: tuple[str, ...] = ("cat", "dog")) -> Prepare:
    """Pictures of noise in a folder a class."""

    def prepare(folder: Path) -> None:
        from PIL import Image

        generator = random.Random(2)
        for part in parts:
            for name in names:
                where = folder / part / name
                where.mkdir(parents=True, exist_ok=True)
                for i in range(count):
                    image = Image.frombytes("RGB", (size, size), generator.randbytes(size * size * 3))
                    image.save(where / f"{name or 'picture'}_{i}.png")

    return prepare


def words(folder: Path) -> None:
    generator = random.Random(3)
    where = folder / "data" / "wikitext-2"
    where.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        lines = (" ".join(generator.choices(["the", "a", "of", "to", "in", "is"], k=12)) for _ in range(24))
        (where / f"{name}.txt").write_text("\n".join(lines) + "\n")


def characters(folder: Path) -> None:
    """What nanoGPT's prepare.py makes of a text: numbers of characters as 16 bits, and the size of the vocabulary."""
    where = folder / "data" / "shakespeare_char"
    where.mkdir(parents=True, exist_ok=True)
    generator = random.Random(4)
    for name, count in (("train", 4000), ("val", 1000)):
        (where / f"{name}.bin").write_bytes(struct.pack(f"<{count}H", *generator.choices(range(65), k=count)))
    (where / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def autoencoder(folder: Path) -> None:
    """The latent space that DiT trains in, from a tiny autoencoder where the script looks for the published one."""
    images(["images"], size=256, count=6)(folder)
    import torch
    from diffusers.models import AutoencoderKL  # type: ignore[import-not-found]

    torch.manual_seed(5)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    model = AutoencoderKL(block_out_channels=(4, 4, 4, 4), norm_num_groups=2, latent_channels=4, **blocks)
    model.save_pretrained(folder / "stabilityai" / "sd-vae-ft-ema")


def cora(folder: Path) -> None:
    """A graph of 1,600 papers with 8 words each, in the archive that the scripts would download."""
    generator = random.Random(6)
    kinds = ["Theory", "Rules", "Cases"]
    papers = range(1600)
    content = "\n".join(f"{p} {' '.join(generator.choices('01', k=8))} {generator.choice(kinds)}" for p in papers)
    cites = "\n".join(f"{p} {generator.randrange(1600)}" for p in papers)
    (folder / "cora").mkdir(exist_ok=True)
    (folder / "cora" / "cora.content").write_text(content)
    (folder / "cora" / "cora.cites").write_text(cites)


def nanochat_data(folder: Path) -> None:
    """A tokenizer of bytes and two files of text, where nanochat looks for them."""
    import pyarrow
    import pyarrow.parquet
    import tiktoken
    import torch

    data = folder / "nanochat-data"
    (data / "tokenizer").mkdir(parents=True)
    (data / "base_data_climbmix").mkdir()
    names = ["bos", *(f"{who}_{end}" for who in ("user", "assistant", "python", "output") for end in ("start", "end"))]
    tokenizer = tiktoken.Encoding(
        name="bytes",
        pat_str=r"\S+|\s+",
        mergeable_ranks={bytes([value]): value for value in range(256)},
        special_tokens={f"<|{name}|>": 256 + number for number, name in enumerate(names)},
    )
    (data / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(tokenizer))
    torch.save(torch.tensor([1] * 256 + [0] * len(names), dtype=torch.int32), data / "tokenizer" / "token_bytes.pt")
    generator = random.Random(8)
    for number in range(2):
        texts = [" ".join(generator.choices(["the", "sky", "is", "blue", "of"], k=12)) for _ in range(64)]
        table = pyarrow.table({"text": texts})
        pyarrow.parquet.write_table(table, data / "base_data_climbmix" / f"shard_{number:05}.parquet")


def nanochat_model(folder: Path) -> None:
    """A model of a few steps, for the engine to sample from; both projects get that of the original."""
    if folder.name == "after":
        shutil.copytree(folder.parent / "before" / "nanochat-data", folder / "nanochat-data")
        return
    nanochat_data(folder)
    training = next(script for script in scripts() if script.name.startswith("nanochat, train"))
    command = [sys.executable, *training.command.split(), "--device-type", "cpu"]
    variables = {**os.environ, **dict(training.variables)}
    subprocess.run(command, cwd=folder, env=variables, check=True, capture_output=True)


def stable_diffusion(folder: Path) -> None:
    """A tiny model of random weights in the files that txt2img.py names, and a CLIP and safety checker beside it."""
    import torch
    from diffusers.pipelines.stable_diffusion.safety_checker import (  # type: ignore[import-not-found]
        StableDiffusionSafetyChecker,
    )
    from omegaconf import OmegaConf
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(9)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    clip = folder / "clip"
    CLIPTextModel(CLIPTextConfig(vocab_size=514, **sizes)).save_pretrained(clip)
    letters = [chr(code) for code in range(33, 127)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab={word: number for number, word in enumerate(words)}, merges=[])
    tokenizer.save_pretrained(clip)
    checker = folder / "CompVis" / "stable-diffusion-safety-checker"
    vision = {**sizes, "image_size": 32, "patch_size": 8}
    config = CLIPConfig(text_config=sizes, vision_config=vision, projection_dim=16)
    StableDiffusionSafetyChecker(config).save_pretrained(checker)
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(checker)
    settings = checker / "preprocessor_config.json"  # in the manner of when the script was written
    settings.write_text(settings.read_text().replace("image_processor_type", "feature_extractor_type"))

    path = folder / "configs" / "stable-diffusion" / "v1-inference.yaml"
    whole = OmegaConf.load(path)
    model = whole.model.params
    model.unet_config.params.update(model_channels=32, channel_mult=[1, 2], num_heads=2, num_res_blocks=1)
    model.unet_config.params.update(attention_resolutions=[2, 1], context_dim=32)
    model.first_stage_config.params.ddconfig.update(ch=32, ch_mult=[1, 1, 1, 1], num_res_blocks=1)
    model.cond_stage_config.params = {"version": "./clip"}
    OmegaConf.save(whole, path)
    if folder.name == "after":
        shutil.copytree(folder.parent / "before" / "models", folder / "models", dirs_exist_ok=True)
        return
    weights = folder / "models" / "ldm" / "stable-diffusion-v1" / "model.ckpt"
    weights.parent.mkdir(parents=True, exist_ok=True)
    code = (
        "import torch; from omegaconf import OmegaConf; from ldm.util import instantiate_from_config\n"
        f"torch.manual_seed(9); model = instantiate_from_config(OmegaConf.load('{path.relative_to(folder)}').model)\n"
        "for weight in model.parameters():\n    torch.nn.init.normal_(weight, std=0.05)\n"
        f"torch.save({{'state_dict': model.state_dict()}}, '{weights.relative_to(folder)}')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
