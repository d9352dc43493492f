"""Runs of frameworks and models of other people that migrate_and_run.py does, made tiny, with random weights.

Where a project has no script that is small enough, one of ours in drivers/ uses it. It is written for CUDA, and
migrated with the project.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

from training_scripts import ONE_RANK, Script, image_folder  # type: ignore[import-not-found]  # the folder is no package

_NANOCHAT = {"NANOCHAT_BASE_DIR": "nanochat-data", "NANOCHAT_DTYPE": "float32", "TORCH_COMPILE_DISABLE": "1"}
_NANOCHAT_TRAIN = (
    "-m scripts.base_train --depth 2 --aspect-ratio 16 --head-dim 16 --max-seq-len 32 --device-batch-size 2 "
    "--total-batch-size 64 --num-iterations 4 --eval-every 2 --eval-tokens 64 --core-metric-every -1 --sample-every 4 "
    "--window-pattern L --warmup-steps 1"
)
_NANOCHAT_MEND = (
    ("scripts/base_train.py", "import wandb\n", ""),
    ("nanochat/tokenizer.py", "import rustbpe\n", ""),
    ("nanochat/optim.py", "@torch.compile(dynamic=False, fullgraph=True)\n", ""),  # a refusal to run uncompiled
)
_NO_TRITON = (
    (
        "megatron/core/transformer/moe/ops/paged_stash.py",  # imported by every model, used by few
        "import triton\nimport triton.language as tl\n",
        'from npukit.port.stand_ins import stand_in\n\ntriton, tl = stand_in("triton"), stand_in("tl")\n',
    ),
)


def nanochat_data(folder: Path) -> None:
    """A tokenizer of bytes and two files of text, where nanochat looks for them."""
    import pyarrow
    import pyarrow.parquet
    import tiktoken
    import torch

    data = folder / _NANOCHAT["NANOCHAT_BASE_DIR"]
    (data / "tokenizer").mkdir(parents=True)
    (data / "base_data_climbmix").mkdir()
    names = ["bos", *(f"{who}_{end}" for who in ("user", "assistant", "python", "output") for end in ("start", "end"))]
    tokenizer = tiktoken.Encoding(
        name="bytes",
        pat_str=r"\S+|\s+",
        mergeable_ranks={bytes([each]): each for each in range(256)},
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
    command = [sys.executable, *_NANOCHAT_TRAIN.split(), "--device-type", "cpu"]
    subprocess.run(command, cwd=folder, env={**os.environ, **_NANOCHAT}, check=True, capture_output=True)


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
    letters = [chr(each) for each in range(33, 127)]
    words = [*letters, *(f"{each}</w>" for each in letters), "<|startoftext|>", "<|endoftext|>"]
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
        "for each in model.parameters():\n    torch.nn.init.normal_(each, std=0.05)\n"
        f"torch.save({{'state_dict': model.state_dict()}}, '{weights.relative_to(folder)}')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)


FRAMEWORKS = (
    Script(
        "nanochat, train and sample",
        "nanochat",
        _NANOCHAT_TRAIN,
        prepare=nanochat_data,
        mend=_NANOCHAT_MEND,
        variables=tuple(_NANOCHAT.items()),
    ),
    Script(
        "nanochat, engine",
        "nanochat",
        "-m nanochat.engine",
        prepare=nanochat_model,
        mend=_NANOCHAT_MEND,
        variables=tuple(_NANOCHAT.items()),
    ),
    Script(
        "whisper, beam search",
        "whisper",
        "whisper_beam_search.py",
        driver="whisper_beam_search.py",
        mend=(
            ("whisper/timing.py", "import numba\n", ""),
            ("whisper/timing.py", "@numba.jit(nopython=True)\n", ""),
            ("whisper/timing.py", "@numba.jit(nopython=True, parallel=True)\n", ""),
        ),
    ),
    Script(
        "edm",
        "edm",
        "train.py --outdir runs --data images/noise --arch ddpmpp --cbase 8 --cres 1,2 --batch 8 --duration 0.000032 "
        "--tick 1 --seed 1 --bench 0 --workers 1",
        prepare=image_folder("images", size=16, count=40, names=("noise",)),
        mend=(
            ("torch_utils/misc.py", "super().__init__(dataset)", "super().__init__()"),  # for torch 2.13
            ("train.py", "max(int(opts.duration * 1000), 1)", "opts.duration * 1000"),  # less than 1,000 pictures
        ),
        variables=tuple(ONE_RANK.items()),
        needs_device="it reads the memory of a device",
    ),
    Script(
        "Megatron-LM, random states",
        "Megatron-LM",
        "megatron_rng.py",
        driver="megatron_rng.py",
        mend=_NO_TRITON,
        variables=tuple(ONE_RANK.items()),
    ),
    Script(
        "Megatron-LM, GPT on 2 ranks",
        "Megatron-LM",
        "examples/run_simple_mcore_train_loop.py",
        devices=2,
        mend=_NO_TRITON,
    ),
    Script(
        "stable-diffusion, txt2img",
        "stable-diffusion",
        "scripts/txt2img.py --ddim_steps 4 --n_iter 1 --n_samples 1 --H 64 --W 64",
        prepare=stable_diffusion,
        mend=(
            ("ldm/models/autoencoder.py", "from taming.modules.vqvae.quantize import VectorQuantizer2 as", "#"),
            ("ldm/modules/encoders/modules.py", "import clip\n", ""),
            ("ldm/modules/encoders/modules.py", "import kornia\n", ""),
        ),
    ),
    Script("LLaVA, train and answer", "LLaVA", "llava_model.py", driver="llava_model.py"),
    Script("mmengine, Runner", "mmengine", "mmengine_runner.py", driver="mmengine_runner.py"),
)
