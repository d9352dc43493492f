"""LLaMA-Factory's YAML, as its users write it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from npukit import packages
from npukit.errors import NpukitError
from npukit.llm.config.dialects.training.llama_factory import LLAMA_FACTORY
from npukit.llm.config.options import Config
from npukit.llm.config.wording import worded
from npukit.llm.reading.read import Reading, read

Check = Callable[[Config, dict[str, object]], None]


# As it stands in an Ascend guide to LLaMA-Factory, but for the model and the data.
LORA_SFT_DS = (
    (Path(__file__).parents[2] / "data" / "qwen1_5_lora_sft_ds.yaml")
    .read_text()
    .replace("qwen/Qwen1.5-7B", "models/tiny")
)


@pytest.fixture(autouse=True)
def all_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda package: True)


def llama_factory(text: str = LORA_SFT_DS, *words: str) -> Reading:
    Path("x.yaml").write_text(text)
    return read(Path("x.yaml"), words, {})


def test_a_whole_yaml_of_llama_factory() -> None:
    reading = llama_factory()
    assert reading.config.model_dump(mode="json", exclude_defaults=True) == {
        "model": {"path": "models/tiny"},
        "tuning": {"targets": ["q_proj", "v_proj"]},
        "data": {
            "train": [{"path": "identity"}, {"path": "alpaca_en_demo"}],
            "validation": 0.1,
            "template": "qwen",
            "tokens": "llama_factory",
            "cutoff": 1024,
            "max_rows": 1000,
            "packing": False,
            "preprocessing_workers": 16,
        },
        "training": {
            "output": "saves/Qwen1.5-7B/lora/sft",
            "epochs": 3.0,
            "eval_batch_size": 1,
            "accumulation": 2,
            "warmup": 0.1,
            "precision": "fp16",
            "activation_checkpointing": True,
            "eval_every": 500,
            "save_every": 500,
            "save_total_limit": None,
            "resume": "never",
        },
    }
    assert (reading.dialect, reading.config.training.learning_rate, reading.config.training.parallel) == (
        "LLaMA-Factory",
        1e-4,
        "ddp",
    )
    noted = [note.split(":")[0] for note in reading.notes]
    assert noted == ["ddp_timeout", "overwrite_cache", "gradient_checkpointing", "deepspeed", "packing"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("bf16: true\nfp16: false\n", {"training.precision": "bf16"}),
        ("pure_bf16: true\n", {"training.precision": "bf16", "model.dtype": "bfloat16"}),
        ("fp16: false\n", {"training.precision": "fp32"}),
        (
            "deepspeed: examples/deepspeed/ds_z3_offload_config.json\n",
            {"training.parallel": "zero3", "training.offload": True},
        ),
        ("deepspeed: mine.json\n", {"training.parallel": "mine.json"}),
        ("deepspeed: null\nfsdp: full_shard auto_wrap\n", {"training.parallel": "fsdp2"}),
        ("lora_target: all\n", {"tuning.targets": "all-linear"}),
        ("finetuning_type: freeze\nfreeze_trainable_layers: 1\n", {"tuning.method": "freeze", "tuning.layers": 1}),
        ("stage: pt\n", {"task": "pt", "data.packing": True}),
        ("neat_packing: true\n", {"data.packing": True}),
        ("overwrite_output_dir: false\n", {"training.resume": "auto"}),
        ("resume_from_checkpoint: models\n", {"training.resume": "models"}),
        ("val_size: 0\neval_dataset: identity\n", {"data.validation.0.path": "identity"}),
        ("eval_strategy: no\n", {"training.eval_every": None}),
        ("mix_strategy: interleave_under\ninterleave_probs: 0.7,0.3\n", {"data.train.0.weight": 0.7}),
        ("disable_gradient_checkpointing: true\n", {"training.activation_checkpointing": False}),
        (
            "report_to: [wandb, tensorboard]\nuse_swanlab: true\n",
            {"training.loggers": ("wandb", "tensorboard", "swanlab")},
        ),
        (
            "lr_scheduler_type: constant_with_warmup\n",
            {"training.schedule": "constant", "training.warmup": 0.1},
        ),
        ("lr_scheduler_type: constant\n", {"training.schedule": "constant", "training.warmup": 0}),
        ("stage: pt\ntemplate: empty\n", {"task": "pt"}),
        ("optim: sgd\nadam_beta2: 0.95\n", {"training.optimizer": "sgd", "training.betas": (0.9, 0.95)}),
        (
            "pissa_init: true\nadditional_target: embed_tokens,lm_head\n",
            {"tuning.init": "pissa_niter_16", "tuning.modules_to_save": ("embed_tokens", "lm_head")},
        ),
        ("pissa_init: true\npissa_convert: true\n", {"tuning.convert": True}),
        (
            "finetuning_type: full\nuse_badam: true\nbadam_switch_mode: descending\nbadam_switch_interval: 9\n",
            {"tuning.turns": "badam", "tuning.turn_order": "descending", "tuning.turn_steps": 9},
        ),
        ("use_asft_loss: true\nasft_alpha: 0.05\n", {"tuning.loss": "asft", "tuning.reference_weight": 0.05}),
        ("rope_scaling: yarn\ncutoff_len: 8192\n", {"model.rope": {"rope_type": "yarn"}, "model.length": 8192}),
        ("shift_attn: true\ncutoff_len: 8192\n", {"tuning.shifted_attention": 2048}),
        ("use_galore: false\nquantization_bit: null\nflash_attn: fa2\n", {}),
    ],
)
def test_keys_of_llama_factory(more: str, expected: dict[str, object], folder: Path, assert_has: Check) -> None:
    (folder / "mine.json").write_text('{"zero_optimization": {"stage": 2}}')
    keys = {line.split(":")[0] for line in more.splitlines()}
    kept = [line for line in LORA_SFT_DS.splitlines() if line.split(":")[0] not in keys]
    assert_has(llama_factory("\n".join([*kept, more])).config, expected)


def test_its_defaults_where_nothing_is_said(assert_has: Check) -> None:
    config = llama_factory("model_name_or_path: models/tiny\ndataset: identity\nfp16: true\n").config
    assert_has(
        config, {"training.learning_rate": 5e-5, "training.epochs": 3, "training.batch_size": 8, "data.cutoff": 2048}
    )
    assert_has(config, {"training.schedule": "linear", "training.log_every": 500, "training.plot": False})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("learning_rte: 1\n", "x.yaml:43: LLaMA-Factory has no learning_rte: did you mean learning_rate?"),
        (
            "quantization_bit: 4\nquantization_method: eetq\n",
            "x.yaml:44: quantization_method eetq is not supported: use bnb",
        ),
        ("lora_rank: many\n", "x.yaml:43: lora_rank must be a whole number above 0, not 'many'."),
        ("bf16: true\n", "x.yaml:36: bf16 and fp16 are both true: remove one of them."),
        ("streaming: true\n", "x.yaml:43: streamed data has no known length: set max_steps."),
        (
            "torch_dtype: bfloat16\n",
            "x.yaml:43: LLaMA-Factory has no torch_dtype: it is ms-swift's name of model.dtype.",
        ),
        ("optim: adamw_trch\n", "x.yaml:43: optim must be one of adamw_torch, "),
        ("report_to: wanbd\n", "x.yaml:43: report_to wanbd is not supported: did you mean wandb?"),
        ("fsdp: full_shard\n", "x.yaml:43: deepspeed and fsdp are both given"),
        ("lr_scheduler_kwargs: {num_stable_steps: 5}\n", "num_stable_steps in lr_scheduler_kwargs is not supported"),
    ],
)
def test_a_mistake_is_named_in_its_words(text: str, expected: str) -> None:
    with pytest.raises(NpukitError) as raised:
        llama_factory(LORA_SFT_DS + text)
    assert expected in str(raised.value)


def test_of_several_keys_the_one_that_says_most_is_named() -> None:
    Path("x.yaml").write_text(LORA_SFT_DS)
    with pytest.raises(NpukitError, match=r"x.yaml:5: stage is sft, but the command is npukit pt."):
        read(Path("x.yaml"), [], {}, "pt")


def test_stages_that_come_later_are_refused() -> None:
    with pytest.raises(NpukitError, match=r"x.yaml:5: stage ppo is not supported: use task grpo"):
        llama_factory(LORA_SFT_DS.replace("stage: sft", "stage: ppo"))


def test_options_of_lora_are_no_mistake_in_a_file_of_theirs_that_trains_all() -> None:
    reading = llama_factory(LORA_SFT_DS.replace("finetuning_type: lora", "finetuning_type: full"))
    assert "lora_target has no effect because finetuning_type is full" in reading.notes


def test_words_may_be_theirs_or_ours(assert_has: Check) -> None:
    assert_has(
        llama_factory(LORA_SFT_DS, "lora_rank=4", "training.epochs=1").config, {"tuning.rank": 4, "training.epochs": 1}
    )


def test_advice_is_in_the_words_of_the_file() -> None:
    names = LLAMA_FACTORY.names
    assert worded("Lower data.cutoff or training.epochs.", names) == "Lower cutoff_len or num_train_epochs."
    assert "add training.parallel=ddp to the command" in worded("Set training.parallel=ddp.", names)
    assert "add data.bad_rows=... to the command" in worded("Change data.bad_rows.", {"data.cutoff": "cutoff_len"})
    assert worded("See training.parallel in train.yaml.", {}) == "See training.parallel in train.yaml."


def test_keys_of_earlier_releases_are_taken_for_what_they_became() -> None:
    words = [
        *("model_name_or_path=m", "dataset=d", "template=qwen", "stage=dpo", "dpo_beta=0.3", "split=train"),
        *("num_layer_trainable=3", "finetuning_type=freeze", "resources_per_worker=1", "bf16=true"),
    ]
    reading = read(None, words, {}, files=False)
    assert reading.config.preference.beta == 0.3 and reading.config.tuning.layers == 3
    assert any("dpo_beta is pref_beta since 0.8.0" in note for note in reading.notes)
    with pytest.raises(NpukitError, match="dpo_beta and pref_beta"):
        read(None, [*words, "pref_beta=0.1"], {}, files=False)
    old = ["model_name_or_path=m", "dataset=d", "checkpoint_dir=a", "resume_lora_training={}", "bf16=true"]
    assert read(None, " ".join(old).format("true").split(), {}, files=False).config.model.adapter == Path("a")
    with pytest.raises(NpukitError, match="one adapter is trained at a time"):
        read(None, " ".join(old).format("false").split(), {}, files=False)
    orpo = read(
        None, ["model_name_or_path=m", "dataset=d", "stage=orpo", "orpo_beta=0.2", "bf16=true"], {}, files=False
    )
    assert (orpo.config.task, orpo.config.preference.loss, orpo.config.preference.beta) == ("dpo", "orpo", 0.2)


def test_bitsandbytes_is_what_bnb_was_called() -> None:
    words = [
        "model_name_or_path=m",
        "dataset=d",
        "stage=sft",
        "quantization_bit=4",
        "bf16=true",
        "finetuning_type=lora",
    ]
    config = read(None, [*words, "quantization_method=bitsandbytes"], {}, files=False).config
    assert config.model.quantize == "nf4"
