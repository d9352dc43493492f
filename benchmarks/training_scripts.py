"""The training scripts of other people that migrate_and_run.py runs, made tiny: their arguments and synthetic data.

Each is run as it is in its checkout. `mend` names the few lines that no longer run with today's libraries, on any
device; they are changed before anything else is done.
"""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Prepare = Callable[[Path], None]
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29731"}


@dataclass(frozen=True)
class Script:
    """A script, and how it is run in the folder of its project."""

    name: str
    checkout: str
    command: str
    folder: str = "."  # of the checkout: the project
    prepare: Prepare = lambda _: None  # writes data beside and into the project's folder
    devices: int = 1
    tolerance: float = 1e-4
    mend: tuple[tuple[str, str, str], ...] = ()  # file, text, its replacement
    variables: tuple[tuple[str, str], ...] = ()
    imports: str = ""  # another checkout that it imports from
    on_cpu: str = ""  # argument that tells the script to do without a device, where it then does something else
    not_on_cpu: str = ""  # argument that asks for a device
    driver: str = ""  # a script in drivers/ that is put into the project before it is migrated
    needs_device: str = ""  # why the script itself refuses to run without an accelerator


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


def image_folder(*parts: str, count: int = 8, size: int = 64, names: tuple[str, ...] = ("cat", "dog")) -> Prepare:
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
    image_folder("images", size=256, count=6)(folder)
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


EXAMPLES = "examples"
_WHOLE_MODEL = ("main.py", "model = torch.load(f)", "model = torch.load(f, weights_only=False)")
_NO_DOWNLOAD = (
    ("main.py", "import requests\n", ""),
    ("main.py", "    with requests.get(cora_url, stream=True) as tgz_file:", "    for tgz_file in ():"),
)

SCRIPTS = (
    Script(
        "nanoGPT",
        "nanoGPT",
        "train.py config/train_shakespeare_char.py --max_iters=5 --eval_interval=5 --eval_iters=1 --log_interval=1 "
        "--block_size=16 --batch_size=4 --n_layer=2 --n_head=2 --n_embd=32 --dtype=float32 --compile=False "
        "--gradient_accumulation_steps=1 --dropout=0.0",
        prepare=characters,
    ),
    Script(
        "nanoGPT, 2 ranks",
        "nanoGPT",
        "train.py config/train_shakespeare_char.py --max_iters=4 --eval_interval=4 --eval_iters=1 --log_interval=1 "
        "--block_size=16 --batch_size=4 --n_layer=2 --n_head=2 --n_embd=32 --dtype=float32 --compile=False "
        "--gradient_accumulation_steps=2 --dropout=0.0",
        prepare=characters,
        devices=2,
    ),
    Script(
        "minGPT adder",
        "minGPT",
        "-m projects.adder.adder --trainer.max_iters=21 --trainer.num_workers=0 --trainer.batch_size=8 --data.ndigit=1",
    ),
    Script(
        "mnist",
        EXAMPLES,
        "main.py --epochs 1 --batch-size 8 --test-batch-size 20 --log-interval 1",
        "mnist",
        mnist,
        on_cpu="--no-cuda",
    ),
    Script(
        "mnist_rnn",
        EXAMPLES,
        "main.py --cuda --epochs 1 --batch-size 8 --test-batch-size 20 --log-interval 1",
        "mnist_rnn",
        mnist,
    ),
    Script(
        "forward_forward",
        EXAMPLES,
        "main.py --epochs 5 --train_size 32 --test_size 16 --log-interval 1",
        "mnist_forward_forward",
        mnist,
        on_cpu="--no_cuda",
    ),
    Script("vae", EXAMPLES, "main.py --epochs 1 --batch-size 8 --log-interval 1", "vae", mnist, on_cpu="--no-cuda"),
    Script(
        "siamese",
        EXAMPLES,
        "main.py --epochs 1 --batch-size 8 --test-batch-size 20 --log-interval 1",
        "siamese_network",
        mnist,
        on_cpu="--no-cuda",
        tolerance=1e-3,
    ),
    Script(
        "dcgan",
        EXAMPLES,
        "main.py --dataset folder --dataroot images --cuda --niter 2 --batchSize 4 --imageSize 64 --ngf 4 --ndf 4 "
        "--nz 8 --workers 0 --manualSeed 7",
        "dcgan",
        image_folder("images"),
    ),
    Script(
        "imagenet",
        EXAMPLES,
        "main.py images -a squeezenet1_1 --epochs 1 -b 4 -j 0 -p 1 --gpu 0 --seed 3 --lr 0.001",
        "imagenet",
        image_folder("images/train", "images/val", size=224),
    ),
    Script(
        "word_language_model",
        EXAMPLES,
        "main.py --cuda --epochs 2 --emsize 16 --nhid 16 --batch_size 4 --bptt 8 --log-interval 2 --dropout 0",
        "word_language_model",
        words,
        mend=(_WHOLE_MODEL,),
    ),
    Script(
        "word_lm transformer",
        EXAMPLES,
        "main.py --cuda --epochs 1 --model Transformer --lr 1 --emsize 16 --nhid 16 --batch_size 4 --bptt 8 "
        "--log-interval 2 --dropout 0",
        "word_language_model",
        words,
        mend=(_WHOLE_MODEL,),
    ),
    Script(
        "super_resolution",
        EXAMPLES,
        "main.py --upscale_factor 4 --batchSize 2 --testBatchSize 2 --nEpochs 2 --cuda --threads 0",
        "super_resolution",
        image_folder("dataset/BSDS300/images/train", "dataset/BSDS300/images/test", size=256, count=6, names=("",)),
        not_on_cpu="--cuda",
    ),
    Script("gcn", EXAMPLES, "main.py --epochs 5 --val-every 1", "gcn", cora, mend=_NO_DOWNLOAD),
    Script("ddp tutorial, 1 card", EXAMPLES, "single_gpu.py 1 1 --batch_size 256", "distributed/ddp-tutorial-series"),
    Script(
        "ddp tutorial, 2 ranks",
        EXAMPLES,
        "multigpu_torchrun.py 1 1 --batch_size 128",
        "distributed/ddp-tutorial-series",
        devices=2,
    ),
    Script(
        "dino",
        "dino",
        "main_dino.py --arch vit_tiny --patch_size 32 --out_dim 64 --batch_size_per_gpu 2 --epochs 1 "
        "--local_crops_number 1 --data_path images --num_workers 0 --use_fp16 false --warmup_epochs 0",
        prepare=image_folder("images", count=4),
        mend=(("main_dino.py", 'torch.hub.list("facebookresearch/xcit:main")', "[]"),),
        variables=tuple(ONE_RANK.items()),
    ),
    Script(
        "mae",
        "mae",
        "main_pretrain.py --batch_size 2 --epochs 1 --model mae_vit_base_patch16 --data_path images --num_workers 0 "
        "--warmup_epochs 0",
        prepare=image_folder("images/train", count=2),
        mend=(
            ("util/misc.py", "from torch._six import inf", "from math import inf"),
            ("util/pos_embed.py", "dtype=np.float)", "dtype=float)"),
        ),
        tolerance=1e-3,
    ),
    Script(
        "DiT",
        "DiT",
        "train.py --data-path images --model DiT-S/8 --epochs 1 --global-batch-size 2 --num-workers 0 --log-every 1",
        prepare=autoencoder,
        imports="pytorch-image-models",
        variables=tuple(ONE_RANK.items()),
        needs_device="it asserts that there is one",
    ),
    Script(
        "guided-diffusion",
        "guided-diffusion",
        "-m scripts.image_train --data_dir images/cat --image_size 64 --num_channels 32 --num_res_blocks 1 "
        "--attention_resolutions 16 --num_head_channels 16 --batch_size 2 --log_interval 1 --lr_anneal_steps 4 "
        "--save_interval 100",
        prepare=image_folder("images"),
    ),
    Script(
        "timm train.py",
        "pytorch-image-models",
        "train.py images --model resnet10t --num-classes 2 --img-size 64 -b 4 -vb 4 --epochs 1 --workers 1 "
        "--log-interval 1 --seed 3 --lr 0.01 --no-prefetcher --warmup-epochs 0",
        prepare=image_folder("images/train", "images/validation"),
        tolerance=1e-3,
    ),
)
