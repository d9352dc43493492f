"""ms-swift's flags, as its users write them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npukit import packages
from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import Mistakes
from npukit.llm.reading.read import Reading, read

Check = Callable[[Config, dict[str, object]], None]


# As in ms-swift's page about NPUs, but for the model and the data.
SFT = (
    "--model models/tiny --dataset rows.jsonl --num_train_epochs 5 --train_type lora --output_dir output "
    "--learning_rate 1e-4 --gradient_accumulation_steps 16 --save_steps 100 --eval_steps 100"
)


@pytest.fixture(autouse=True)
def all_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda package: True)


def swift(line: str = SFT, verb: str = "sft", ranks: int = 1, **environ: str) -> Reading:
    return read(None, shlex.split(line), environ, verb, ranks)


def test_a_whole_command_of_swift() -> None:
    reading = swift()
    assert reading.config.model_dump(mode="json", exclude_defaults=True) == {
        "model": {"path": "models/tiny", "hub": "modelscope"},
        "tuning": {"alpha": 32.0, "dropout": 0.05},
        "data": {
            "train": [{"path": "rows.jsonl"}],
            "cutoff": 4096,
            "too_long": "drop",
            "packing": False,
            "seed": 42,
        },
        "training": {
            "output": "output/v0",
            "epochs": 5.0,
            "eval_batch_size": 1,
            "accumulation": 16,
            "weight_decay": 0.1,
            "betas": [0.9, 0.95],
            "activation_checkpointing": True,
            "log_every": 5,
            "save_every": 100,
            "save_total_limit": None,
            "resume": "never",
            "loggers": ["tensorboard"],
        },
    }
    assert any(note.startswith("eval_steps: not used") for note in reading.notes)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--train_type full", {"tuning.method": "full", "training.learning_rate": 1e-5}),
        ("--tuner_type full --learning_rate 2e-5", {"tuning.method": "full", "training.learning_rate": 2e-5}),
        ("--deepspeed zero2", {"training.parallel": "zero2", "training.offload": False}),
        ("--deepspeed zero3_offload", {"training.parallel": "zero3", "training.offload": True}),
        ("--deepspeed zero0", {"training.parallel": "ddp"}),
        ("--fsdp fsdp2", {"training.parallel": "fsdp2"}),
        ("--torch_dtype float32", {"model.dtype": "float32", "training.precision": "fp16"}),
        ("--torch_dtype bfloat16", {"model.dtype": "bfloat16", "training.precision": "bf16"}),
        ("--torch_dtype float32 --fp16 false", {"training.precision": "fp32"}),
        (
            "--dataset rows.jsonl#500 rows.jsonl",
            {"data.train.0.path": "rows.jsonl#500", "data.train.1.path": "rows.jsonl"},
        ),
        (
            "--dataset AI-ModelScope/alpaca:zh#9",
            {"data.train.0.path": "AI-ModelScope/alpaca#9", "data.train.0.subset": "zh"},
        ),
        ("--use_hf true", {"model.hub": "huggingface"}),
        ("--target_modules q_proj v_proj", {"tuning.targets": ("q_proj", "v_proj")}),
        ("--target_modules all-linear", {"tuning.targets": "all-linear"}),
        ("--split_dataset_ratio 0.5", {"data.validation": 0.5, "training.eval_every": 100}),
        (
            "--val_dataset rows.jsonl --eval_strategy epoch",
            {"data.validation.0.path": "rows.jsonl", "training.eval_every": "epoch"},
        ),
        ("--system 'Be brief.\\nBe kind.'", {"data.system": "Be brief.\nBe kind."}),
        (
            "--packing true --max_length 512 --packing_length 1024",
            {"data.packing": True, "data.cutoff": 512, "data.pack_length": 1024},
        ),
        ("--loss_scale last_round", {"data.last_answer_only": True}),
        (
            "--model Qwen/Qwen2.5-7B-Instruct --agent_template react_en --loss_scale react",
            {"data.tool_format": "react_en", "data.weigh": ("react",), "data.last_answer_only": False},
        ),
        ("--max_steps -1 --warmup_ratio 0.05", {"training.max_steps": None, "training.warmup": 0.05}),
        ("--max_steps 30 --warmup_steps 4", {"training.max_steps": 30, "training.warmup": 4}),
        ("--save_strategy epoch", {"training.save_every": "epoch"}),
        ("--save_strategy no", {"training.save_every": None}),
        (
            "--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr\": 1e-6}'",
            {"training.min_learning_rate": 1e-6},
        ),
        ("--add_version false", {"training.output": "output", "training.resume": "never"}),
        ("--report_to none", {"training.loggers": ()}),
        (
            "--use_dora true --lora_rank 16 --init_weights pissa",
            {"tuning.dora": True, "tuning.rank": 16, "tuning.init": "pissa"},
        ),
        (
            "--init_weights lora-ga --lora_ga_iters 3",
            {
                "tuning.init": "lora_ga",
                "tuning.init_rows": 6,
                "tuning.peft": {"lora_ga_config": {"direction": "ArB2r", "scale": "stable", "stable_gamma": 16}},
            },
        ),
        (
            "--tuner_type full --lisa_activated_layers 2",
            {"tuning.turns": "lisa", "tuning.turn_layers": 2, "tuning.turn_steps": 20},
        ),
        (
            "--rope_scaling yarn --max_model_len 8192",
            {"model.rope": {"rope_type": "yarn"}, "model.length": 8192},
        ),
        (
            '--rope_scaling \'{"type": "linear", "factor": 2.0}\'',
            {"model.rope": {"rope_type": "linear", "factor": 2.0}},
        ),
        ("--quant_bits 4 --quant_method bnb --deepspeed zero2", {"training.parallel": "ddp", "model.quantize": "nf4"}),
        ("--training.learning_rate 3e-4 --data.packing true", {"training.learning_rate": 3e-4, "data.packing": True}),
    ],
)
def test_flags_of_swift(more: str, expected: dict[str, object], assert_has: Check) -> None:
    line = SFT.replace("--learning_rate 1e-4 ", "").replace("--train_type lora ", "") if "full" in more else SFT
    assert_has(swift(f"{line} {more}").config, expected)


def test_tuners_of_swift(assert_has: Check) -> None:
    line = SFT.replace("--train_type lora ", "")
    assert_has(
        swift(f"{line} --tuner_type llamapro --llamapro_num_new_blocks 2").config,
        {"tuning.method": "freeze", "tuning.new_layers": 2},
    )
    ranks = swift(f"{line} --tuner_type adalora --adalora_target_r 4").config.tuning.peft
    assert ranks["target_r"] == 4 and ranks["init_r"] == 12 and ranks["lora_alpha"] == 32


def test_bottleneck_adapters(assert_has: Check) -> None:
    line = "--model models/tiny --dataset rows.jsonl --tuner_type adapter"
    expected = {"tuning.method": "bottleneck", "tuning.rank": 128, "tuning.activation": "gelu"}
    assert_has(swift(line).config, expected)
    narrow = {**expected, "tuning.rank": 16, "tuning.activation": "relu"}
    assert_has(swift(f"{line} --adapter_length 16 --adapter_act relu").config, narrow)


def test_muonclip_reads_optim_args(assert_has: Check) -> None:
    reading = swift(
        "--model models/tiny --dataset rows.jsonl --optimizer muonclip --optim_args qk_clip_tau=50,qk_clip_threshold=9"
    )
    options = {"training.optimizer": "muonclip", "training.optimizer_options": {"qk_clip_tau": 50}}
    assert_has(reading.config, options)
    assert any("qk_clip_threshold" in note for note in reading.notes)


def test_its_defaults_where_nothing_is_said(assert_has: Check) -> None:
    config = swift("--model models/tiny --dataset rows.jsonl").config
    assert_has(config, {"training.learning_rate": 1e-4, "training.epochs": 3, "training.batch_size": 1})
    assert_has(config, {"training.schedule": "cosine", "training.output": "output/tiny/v0", "training.save_every": 500})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--lora_rnk 8", "command line: ms-swift has no --lora_rnk: did you mean lora_rank?"),
        ("--use_galore true --galore_quantization true", "command line: galore_quantization is not supported"),
        ("--task_type seq_cls", "command line: task_type seq_cls needs num_labels."),
        ("--task_type embeding", "not 'embeding': did you mean embedding?"),
        ("--optimizer muon --deepspeed zero2", "muon needs whole parameters"),
        ("--optimizer muonclip --optim_args nesterov=true", "optim_args nesterov=true is not supported"),
        ("--optim_args momentum=0.9", "optim_args are read with --optimizer muonclip only"),
        ("--new_special_tokens none.txt", "there is no file none.txt"),
        ("--deepspeed zero7", "command line: there is no DeepSpeed file zero7: did you mean zero"),
        (
            "--torch_dtype bf16",
            "torch_dtype must be one of auto, bfloat16, float16, float32, not 'bf16': did you mean bfloat16?",
        ),
        (
            "--train_type lroa",
            "vera, not 'lroa': did you mean lora?",
        ),
        ("--tuner_type full", "command line: --tuner_type and --train_type say different things: remove one."),
        ("--dataset row.jsonl", "command line: row.jsonl"),
        ("--packing maybe", "command line: packing must be true or false, not 'maybe'."),
        (
            "--split_dataset_ratio 0.5 --eval_strategy steps --eval_steps 1.5",
            "command line: --eval_steps must be a whole number",
        ),
        ("--target_modules all-linear all-norm", "command line: target_modules all-norm is not supported"),
        (
            "--lr_scheduler_type warmup_stable_decay --lr_scheduler_kwargs '{num_decay_steps: 5}'",
            "command line: num_decay_steps needs max_steps",
        ),
        ("--report_to notes", "command line: report_to notes is not supported"),
        ("--train_type full --torch_dtype float16", "command line: float16"),
    ],
)
def test_a_mistake_is_named_in_its_words(text: str, expected: str) -> None:
    with pytest.raises(NpukitError) as raised:
        swift(f"{SFT} {text}")
    assert expected in str(raised.value)


def test_self_cognition_takes_its_names() -> None:
    names = "--model_author swift --model_name 小黄 Huang"
    assert "model_name: it is for the data set swift/self-cognition" in swift(f"{SFT} {names}").notes
    Path("swift").mkdir(exist_ok=True)  # as in a checkout of ms-swift
    sources = swift(f"{SFT} {names} --dataset rows.jsonl HF::swift/self-cognition:empty_think#500").config.data.train[1]
    assert (sources.path, sources.subset, sources.hub) == ("swift/self-cognition#500", None, "huggingface")
    assert sources.fill == {"NAME": ("小黄", "Huang"), "AUTHOR": ("swift",)}
    assert sources.answer_prefix == "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("flags", "key", "expected"),
    [
        ("--save_steps 0.25", "save_every", 0.25),
        ("--save_total_limit -1", "save_total_limit", None),
        ("--lr_scheduler_type cosine_with_restarts --lr_scheduler_kwargs '{num_cycles: 3}'", "cycles", 3),
        ("--lr_scheduler_type polynomial --lr_scheduler_kwargs '{lr_end: 0.000001}'", "min_learning_rate", 1e-6),
        ("--report_to all", "loggers", ("tensorboard",)),
    ],
)
def test_flags_of_transformers(flags: str, key: str, expected: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda package: package == "tensorboard")
    assert getattr(swift(f"{SFT} {flags}").config.training, key) == expected


def test_a_logger_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda package: False)
    reading = swift(SFT)
    assert reading.config.training.loggers == () and any(note.startswith("report_to") for note in reading.notes)
    with pytest.raises(Mistakes, match="pip install wandb"):
        swift(f"{SFT} --report_to wandb")


def test_a_word_that_belongs_to_nothing() -> None:
    with pytest.raises(NpukitError, match="'extra' is neither --key value nor key=value"):
        swift(f"extra {SFT}")


def test_a_step_of_swift_has_16_rows_however_many_ranks() -> None:
    line = SFT.replace("--gradient_accumulation_steps 16", "--per_device_train_batch_size 2")
    assert [swift(line, ranks=ranks).config.training.accumulation for ranks in (1, 4, 16)] == [8, 2, 1]


@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ("--task_type seq_cls --num_labels 3", {}, {"task": "classify", "head.labels": 3, "head.problem": "one"}),
        ("--num_labels 1 --use_chat_template false", {}, {"head.problem": "number", "data.template": None}),
        (
            "--task_type embedding --loss_type infonce",
            {"INFONCE_TEMPERATURE": "0.05"},
            {"task": "embed", "head.similarity": "infonce", "head.temperature": 0.05},
        ),
        (
            "--task_type embedding --loss_type infonce",
            {"INFONCE_MASK_FAKE_NEGATIVE": "true", "INFONCE_INCLUDE_QQ": "1", "INFONCE_INCLUDE_DD": "false"},
            {"head.fake_margin": 0.1, "head.questions": True, "head.documents": False},
        ),
        (
            "--task_type generative_reranker --loss_type listwise_reranker",
            {"MAX_NEGATIVE_SAMPLES": "3"},
            {"task": "rerank", "head.yes": "yes", "head.ranking": "listwise", "head.negatives": 3},
        ),
    ],
)
def test_heads_of_swift(flags: str, environ: Any, expected: Any, assert_has: Check) -> None:
    assert_has(read(None, shlex.split(f"{SFT} {flags}"), environ, "sft", files=False).config, expected)


def test_each_run_of_swift_has_a_folder(folder: Path) -> None:
    for taken in ("v0-20240101-000000", "v7", "version"):
        (folder / "output" / taken).mkdir(parents=True)
    assert swift().config.training.output == Path("output/v8")
    # Processes that read the flags each by itself must agree on the folder.
    assert swift(ranks=2, LOCAL_RANK="0").config.training.output == Path("output")
    assert swift(NNODES="2", NODE_RANK="1", MASTER_ADDR="10.0.0.1").config.training.output == Path("output")


def test_pretraining_with_flags(assert_has: Check) -> None:
    assert_has(swift(SFT, "pt").config, {"task": "pt", "data.train_on_prompt": False})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--rlhf_type dpo --rpo_alpha 0.1", {"task": "dpo", "loss": "sigmoid", "beta": 0.1, "sft_weight": 0.1}),
        ("--rlhf_type simpo", {"task": "dpo", "loss": "simpo", "beta": 2.0, "gamma": 1.0}),
        ("--rlhf_type cpo --beta 0.2", {"task": "dpo", "loss": "cpo", "beta": 0.2, "sft_weight": 1.0}),
        ("--rlhf_type kto --desirable_weight 2", {"task": "kto", "desirable_weight": 2.0}),
        ("--rlhf_type rm", {"task": "rm"}),
        ("--rlhf_type dpo --loss_type sigmoid sft --loss_weights 0.8 1", {"mix": {"sigmoid": 0.8, "sft": 1.0}}),
    ],
)
def test_preferences(flags: str, expected: dict[str, object]) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    Path("pairs.jsonl").write_text(json.dumps({**row, "rejected_response": "c", "label": True}) + "\n")
    config = swift(f"{SFT} {flags} --dataset pairs.jsonl", "rlhf").config
    options = {"task": config.task, **config.preference.model_dump()}
    assert options | expected == options


def test_columns_are_renamed_in_all_data_sets(assert_has: Check) -> None:
    config = swift(f"""{SFT} --val_dataset rows.jsonl --columns '{{"x": "query", "answer": "response"}}'""").config
    columns = {"query": "x", "response": "answer"}
    validation = config.data.validation
    assert isinstance(validation, tuple) and config.data.train[0].columns == validation[0].columns == columns
    with pytest.raises(NpukitError, match="columns must be JSON"):
        swift(f"{SFT} --columns x=query")


def test_a_step_has_the_same_answers_without_sequence_parallelism() -> None:
    line = f"{SFT} --rlhf_type grpo --reward_funcs format --sequence_parallel_size 4 --num_generations 4"
    reading = swift(line, "rlhf", ranks=4)
    assert reading.config.training.sequence_parallel == 1 and reading.config.training.accumulation == 16
    assert any("sequence_parallel_size" in note for note in reading.notes)


def test_grpo() -> None:
    flags = """--rlhf_type grpo --reward_funcs format mine --external_plugins plugin.py --reward_weights 1 2 --top_k -1
        --use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.4 --sleep_level 1 --offload_model true
        --loss_type dapo --epsilon_high 0.28 --overlong_filter true --dynamic_sample true --num_generations 4
        --generation_batch_size 16 --max_completion_length 128 --scale_rewards batch --gradient_accumulation_steps 2"""
    Path("plugin.py").write_text("")
    reading = swift(f"{SFT} {flags} --per_device_train_batch_size 4".replace("\n", " "), "rlhf")
    options = reading.config.grpo.model_dump(exclude_defaults=True)
    assert reading.config.task == "grpo" and reading.config.rewards.weights == (1.0, 2.0)
    assert reading.config.rewards.plugins == (Path("plugin.py"),)
    assert options == {
        "beta": 0.04,
        "completion_length_limit_scope": "per_round",
        "dynamic_sample": True,
        "epsilon_high": 0.28,
        "mask_truncated_completions": True,
        "max_completion_length": 128,
        "num_generations": 4,
        "scale_rewards": "batch",
        "steps_per_generation": 4,
        "temperature": 0.9,
    }
    assert any("vllm_mode" in note and "weights that are trained" in note for note in reading.notes)
    config = swift(
        f"{SFT} --rlhf_type grpo --reward_funcs format --advantage_estimator rloo --deepspeed zero3", "rlhf"
    ).config
    assert config.training.parallel == "zero3"
    rloo = config.grpo
    assert (rloo.loss_type, rloo.kl_in_reward, rloo.scale_rewards) == ("grpo", True, "none")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--reward_funcs format --use_gym_env true", "environments are for answers of several turns"),
        ("--reward_funcs format --external_plugins none.py", "there is no Python file none.py"),
        ("--reward_funcs soft_overlong", "soft_overlong needs "),
        ("--loss_type luspo --reward_funcs format", "loss_type must be one of grpo"),
        ("--loss_type gspo --reward_funcs format", "importance_sampling_level"),
        ("--vllm_mode bogus --reward_funcs format", "vllm_mode must be one of colocate"),
        ("--beta -1 --external_plugins none.py --temperature 0.5", "--beta must be a number"),
        ("--loss_type real --reward_funcs format", "real compares the answers of whole groups"),
        ("", "task grpo needs rewards"),
    ],
)
def test_what_grpo_cannot_do_is_refused_by_name(flags: str, sentence: str) -> None:
    with pytest.raises(NpukitError, match=sentence):
        swift(f"{SFT} --rlhf_type grpo {flags}", "rlhf")


def test_one_wrong_flag_of_grpo_is_one_mistake(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").touch()
    with pytest.raises(Mistakes) as caught:
        swift(f"{SFT} --rlhf_type grpo --external_plugins {tmp_path}/rewards.py --loss_type luspo", "rlhf")
    assert len(caught.value.mistakes) == 1


def test_what_needs_a_value_model_or_a_teacher_is_refused_by_name() -> None:
    with pytest.raises(NpukitError, match="rlhf_type ppo is not supported: use grpo"):
        swift(f"{SFT} --rlhf_type ppo", "rlhf")


def test_images_are_limited_by_the_environment() -> None:
    model = "--model Qwen/Qwen3-VL-4B-Instruct --dataset AI-ModelScope/LaTeX_OCR:human_handwrite#20 --freeze_vit false"
    reading = read(
        None, shlex.split(f"{model} --vit_lr 1e-5"), {"MAX_PIXELS": "1003520", "ROOT_IMAGE_DIR": "pictures"}, "sft", 1
    )
    data, tuning = reading.config.data, reading.config.tuning
    assert (data.template, data.tokens, data.image_max_pixels) == ("qwen3_vl", "ms_swift", 980 * 32**2)
    assert str(data.media_dir) == "pictures" and data.train[0].columns["images"] == "image"
    assert not tuning.freeze_vision_tower and tuning.freeze_projector and tuning.vision_tower_rate == 1e-5


def test_pixels_in_flags() -> None:
    """max_pixels scales an image before all else; model_kwargs are variables."""
    kwargs = """--model_kwargs '{"max_pixels": 1003520, "fps_max_frames": 8, "image_factor": 2}'"""
    reading = swift(f"{SFT} --max_pixels 50000 {kwargs}", MAX_PIXELS="28")
    data = reading.config.data
    assert (data.image_scaled_pixels, data.image_max_pixels, data.video_max_frames) == (50000, 1280 * 28**2, 8)
    assert any(note.startswith("model_kwargs.image_factor:") for note in reading.notes)
    with pytest.raises(Mistakes):
        swift(f"{SFT} --model_kwargs max_pixels")


def test_longlora_attends_to_groups_of_a_quarter() -> None:
    words = shlex.split("--model meta-llama/Llama-3.1-8B --tuner_type longlora --dataset a/b --max_length 10000")
    tuning = read(None, words, {}, "sft", 1, files=False).config.tuning
    assert (tuning.method, tuning.shifted_attention) == ("lora", 2500)


def test_media_data_sets_are_read_as_ms_swift_does() -> None:
    line = (
        "--model Qwen/Qwen3-VL-4B-Instruct --tuner_type lora_llm --dataset swift/VideoChatGPT:all AI-ModelScope/coco#9"
    )
    config = read(None, shlex.split(line), {}, "sft", 1).config
    videos, boxes = config.data.train
    assert (videos.preset, videos.archive, videos.split) == ("video_chatgpt", "videos.zip", "test")
    assert videos.subset == "Generic+Temporal+Consistency" and boxes.preset == "coco"
    assert config.tuning.method == "lora" and config.tuning.whole_tower
    flags = "--model Qwen/Qwen2.5-VL-3B-Instruct --task_type reranker --dataset swift/TextCaps:rerank"
    (ranked,) = read(None, shlex.split(flags), {"MAX_NEGATIVE_SAMPLES": "1"}, "sft", 1).config.data.train
    assert (ranked.negatives, ranked.question, ranked.columns["positive"]) == (1, "<image>", "reference_strs")


def test_captions_are_read_as_ms_swift_does() -> None:
    model = "--model Qwen/Qwen3-VL-4B-Instruct --dataset modelscope/coco_2014_caption:validation#20"
    source = read(None, shlex.split(model), {}, "sft", 1).config.data.train[0]
    assert (source.split, source.question, source.answer_until) == ("validation", "please describe the image.", "&&")


def test_a_model_that_is_not_known_to_see_gets_no_images() -> None:
    with pytest.raises(Mistakes, match="is not known to take them"):
        swift("--model Qwen/Qwen2.5-7B-Instruct --dataset AI-ModelScope/LaTeX_OCR#20")


def test_flags_of_ms_swift_2_are_taken_for_what_they_became() -> None:
    old = "--model_id_or_path m --sft_type lora --template_type AUTO --dtype bf16 --dataset d --batch_size 3"
    more = "--lora_target_modules ALL --lora_dropout_p 0.1 --train_dataset_sample -1 --use_flash_attn false"
    config = read(None, [*old.split(), *more.split()], {}, "sft", files=False).config
    assert (config.model.path, config.training.batch_size, config.tuning.dropout) == ("m", 3, 0.1)
    assert config.tuning.targets == "all-linear" and config.training.precision == "bf16"
    fewer = [*old.split(), "--train_dataset_sample", "500", "--deepspeed", "default-zero2"]
    config = read(None, fewer, {}, "sft", files=False).config
    assert config.data.max_rows == 500 and config.training.parallel == "zero2"


def test_whole_modules_may_be_named_beside_all_linear() -> None:
    words = [
        "--model",
        "m",
        "--dataset",
        "d",
        "--target_modules",
        "all-linear",
        "embed_tokens",
        "lm_head",
        "--lora_dtype",
        "bfloat16",
    ]
    tuning = read(None, words, {}, "sft", files=False).config.tuning
    assert tuning.targets == "all-linear" and tuning.modules_to_save == ("embed_tokens", "lm_head")


# As they stood in scripts for ms-swift 2.
@pytest.mark.parametrize(
    ("flags", "environ", "expected"),
    [
        ("--model_type qwen2-7b-instruct", {}, {"model.path": "qwen/Qwen2-7B-Instruct", "model.hub": "modelscope"}),
        ("--model_type llama3-8b", {"USE_HF": "1"}, {"model.path": "meta-llama/Meta-Llama-3-8B"}),
        ("--model_type yi-6b-chat --model_id_or_path a/b --template_type yi", {}, {"model.path": "a/b"}),
        ("--model_type qwen2_5 --model a/b", {}, {"model.path": "a/b"}),
        ("--model a/b --template_type default-generation", {}, {"data.template": "dummy"}),
        ("--model a/b --sft_type lora --target_modules ALL", {}, {"tuning.targets": "all-linear"}),
        ("--model a/b --ignore_args_error True", {}, {"model.path": "a/b"}),
        ("--model a/b --deepspeed default-zero3-offload", {}, {"training.parallel": "zero3", "training.offload": True}),
    ],
)
def test_flags_of_ms_swift_2(flags: str, environ: dict[str, str], expected: dict[str, object]) -> None:
    config = read(None, shlex.split(f"{flags} --dataset x/y"), environ, "sft", files=False).config
    for key, value in expected.items():
        group, name = key.split(".")
        assert getattr(getattr(config, group), name) == value


def test_the_best_model_needs_rows_to_evaluate() -> None:
    words = "--model m --dataset d --eval_strategy steps --eval_steps 10 --load_best_model_at_end true"
    with pytest.raises(NpukitError, match="load_best_model_at_end needs rows to evaluate"):
        read(None, words.split(), {}, "sft", files=False)
    assert read(None, [*words.split(), "--val_dataset", "v"], {}, "sft", files=False).config.training.eval_every == 10


def test_data_sets_of_ms_swift_2() -> None:
    flags = "--model a/b --dataset alpaca-en#500 hh-rlhf-cn:harmless_base_cn --custom_train_dataset_path own.jsonl"
    config = read(None, shlex.split(f"{flags} --self_cognition_sample 9"), {}, "sft", files=False).config
    assert [(source.path, source.subset) for source in config.data.train] == [
        ("AI-ModelScope/alpaca-gpt4-data-en#500", None),
        ("AI-ModelScope/hh_rlhf_cn", "harmless_base_cn"),
        ("own.jsonl", None),
        ("swift/self-cognition#9", None),
    ]
    joined = read(None, ["--model", "a/b", "--dataset", "alpaca-en,alpaca-zh"], {}, "sft", files=False).config
    assert len(joined.data.train) == 2


def test_a_model_type_that_says_no_model() -> None:
    with pytest.raises(Mistakes) as raised:
        read(None, ["--model_type", "foo", "--dataset", "x/y"], {}, "sft", files=False)
    assert ["--model_type foo" in mistake.text for mistake in raised.value.mistakes] == [True]


def test_models_of_pictures_that_embed_or_rank_have_templates_and_limits_of_their_own() -> None:
    flags = "--model Qwen/Qwen3-VL-{} --dataset swift/TextCaps:{} --task_type {}"
    embeds, ranks = (
        read(None, shlex.split(flags.format(*words)), {}, "sft", 1).config.data
        for words in (("Embedding-8B", "emb", "embedding"), ("Reranker-8B", "rerank", "generative_reranker"))
    )
    assert (embeds.template, embeds.image_max_pixels, embeds.video_fps) == ("qwen3_vl_emb", 1800 * 32**2, 1.0)
    assert (ranks.template, ranks.image_max_pixels) == ("qwen3_vl_reranker", 1280 * 32**2)


def test_weights_that_transformers_reads_are_taken_instead_of_those_with_code() -> None:
    line = "--model OpenGVLab/InternVL3-8B --dataset AI-ModelScope/LaTeX_OCR#20"
    config = read(None, shlex.split(line), {}, "sft", 1).config
    assert config.model.path == "OpenGVLab/InternVL3-8B-hf"


def test_a_token_in_a_script_is_left_aside_and_not_told() -> None:
    reading = swift(f"{SFT} --push_to_hub false --hub_token s3cret")
    assert any(note.startswith("hub_token: ") for note in reading.notes)
    assert not any("s3cret" in note for note in reading.notes)


def test_evaluation_with_generated_answers() -> None:
    line = f"{SFT} --split_dataset_ratio 0.1 --predict_with_generate true"
    config = swift(f"{line} --max_new_tokens 32 --metric_for_best_model bleu-4").config
    assert config.evaluation.predict_with_generate and config.evaluation.max_new_tokens == 32
    assert config.training.best_metric == "eval_bleu_4" and config.training.best_is_highest
    config = swift(line).config
    assert config.evaluation.max_new_tokens == 64 and config.training.best_metric == "eval_rouge_l"
    with pytest.raises(Mistakes, match="temperature"):
        swift(f"{line} --temperature 0.7")
    with pytest.raises(Mistakes, match=r"eval_rouge_l.*choose one"):
        swift(f"{line} --metric_for_best_model meteor")
    with pytest.raises(Mistakes, match="eval_loss only"):
        swift(f"{SFT} --split_dataset_ratio 0.1 --metric_for_best_model rouge-l")
