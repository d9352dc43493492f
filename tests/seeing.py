"""Tiny models that see, made from transformers' own classes, with a tokenizer and pictures to show them."""

from __future__ import annotations

import copy
import io
import json
import random
import wave
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
SPECIAL += ["<image>", "<img>", "</img>", "<IMG_CONTEXT>", "<|begin_of_image|>", "<|image|>", "<|end_of_image|>"]
SPECIAL += ["<|video_pad|>"]
SPECIAL += ["<start_of_image>", "<image_soft_token>", "<end_of_image>", "<|IMAGE_PLACEHOLDER|>"]
HUNYUAN_IMAGE = "<｜hy_place▁holder▁no▁102｜>"
SPECIAL += [HUNYUAN_IMAGE]
TILE_TOKENS = ["<|patch|>", "<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
}
QWEN2_VISION = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
QWEN2_5_VISION = {
    "depth": 3,
    "hidden_size": 32,
    "out_hidden_size": 64,
    "intermediate_size": 48,
    "num_heads": 2,
    "fullatt_block_indexes": [1],
    "window_size": 112,
}
QWEN3_VISION = {
    "depth": 3,
    "hidden_size": 32,
    "out_hidden_size": 64,
    "intermediate_size": 48,
    "num_heads": 2,
    "patch_size": 16,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
LLAVA_VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 42,
    "patch_size": 14,
}
SIGLIP_VISION = LLAVA_VISION | {"model_type": "siglip_vision_model"}
PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
MLLAMA_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_global_layers": 1,
    "attention_heads": 2,
    "intermediate_layers_indices": [0, 1],
    "vision_output_dim": 96,
    "image_size": 42,
    "patch_size": 14,
}
INTERN_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}
GEMMA4_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 4,
    "standardize": True,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LINEAR = {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 16, "linear_value_head_dim": 16}
LINEAR |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
GLM_VISION = {
    "depth": 2,
    "hidden_size": 32,
    "out_hidden_size": 64,
    "intermediate_size": 48,
    "num_heads": 2,
    "image_size": 112,
}
GLM_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}
LLAMA4_VISION = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "projector_input_dim": 48,
    "projector_output_dim": 48,
    "vision_output_dim": 48,
    "image_size": 56,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ({"rope_parameters": ROPE}, QWEN2_VISION),
    "qwen2_5_vl": ({"rope_parameters": ROPE}, QWEN2_5_VISION),
    "qwen3_vl": ({"rope_parameters": ROPE | {"mrope_interleaved": True}, "head_dim": 16}, QWEN3_VISION),
    "qwen3_vl_moe": (
        {"rope_parameters": ROPE | {"mrope_interleaved": True}, "head_dim": 16, **EXPERTS},
        QWEN3_VISION,
    ),
    "qwen3_5": (
        {"rope_parameters": ROPE | {"mrope_interleaved": True, "partial_rotary_factor": 1.0}, "head_dim": 16, **LINEAR},
        {name: value for name, value in QWEN3_VISION.items() if name != "deepstack_visual_indexes"},
    ),
    "qwen3_5_moe": (
        {
            "rope_parameters": ROPE | {"mrope_interleaved": True, "partial_rotary_factor": 1.0},
            "head_dim": 16,
            "shared_expert_intermediate_size": 24,
            **LINEAR,
            **EXPERTS,
        },
        {name: value for name, value in QWEN3_VISION.items() if name != "deepstack_visual_indexes"},
    ),
    "glm4v": ({"rope_parameters": GLM_ROPE}, GLM_VISION),
    "glm46v": ({"rope_parameters": GLM_ROPE, "model_type": "glm4v_text"}, GLM_VISION | {"model_type": "glm4v_vision"}),
    "paddleocr_vl": ({"rope_parameters": ROPE, "head_dim": 16}, INTERN_VISION),
    "hunyuan_vl": (
        {
            "rope_parameters": ROPE
            | {"rope_type": "dynamic", "factor": 1.0, "alpha": 100.0, "mrope_section": [2, 2, 2, 2]},
            "head_dim": 16,
        },
        INTERN_VISION | {"patch_size": 16, "max_image_size": 128},
    ),
    "minicpmv4_6": (
        {
            "model_type": "qwen3_5_text",
            "rope_parameters": ROPE | {"mrope_interleaved": True, "partial_rotary_factor": 1.0},
            "head_dim": 16,
            **LINEAR,
        },
        INTERN_VISION,
    ),
    "llava": ({"model_type": "llama"}, LLAVA_VISION),
    "llava_next": ({"model_type": "llama"}, LLAVA_VISION),
    "llava_onevision": ({"model_type": "qwen2"}, LLAVA_VISION | {"model_type": "siglip_vision_model"}),
    "internvl": ({"model_type": "qwen2"}, INTERN_VISION),
    "gemma3": (
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        SIGLIP_VISION | {"image_size": 56},
    ),
    "gemma4": (
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 8,
            "use_bidirectional_attention": "vision",
            "final_logit_softcapping": 30.0,
        },
        GEMMA4_VISION,
    ),
    "llama4": (
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "intermediate_size_mlp": 96,
            "moe_layers": [1],
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 24,
            "floor_scale": 16,
            **PLAIN_ROPE,
        },
        LLAMA4_VISION,
    ),
    "paligemma": ({"model_type": "gemma", "head_dim": 16}, SIGLIP_VISION | {"projection_dim": 64}),
    "mllama": ({"num_hidden_layers": 3, "cross_attention_layers": [1], "bos_token_id": 1, **PLAIN_ROPE}, MLLAMA_VISION),
}
PINPOINTS = [[42, 84], [84, 42], [84, 84]]
RATE = 16_000
AUDIO = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "num_mel_bins": 16}


WORDS = ["a", "cat", "on", "the", "mat", "sees", "two", "quiet", "birds", "through", "blue", "air"]


@pytest.fixture(scope="session")
def seeing_tokenizer() -> Any:
    return make_tokenizer()


def make_tokenizer() -> Any:
    """A byte-level BPE with the tokens of models that see."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["What is in the picture? A cat on a mat."], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[*SPECIAL[1:2], *SPECIAL[3:]],
        chat_template=CHATML,
        model_max_length=4096,
    )


@pytest.fixture(scope="session")
def seeing_models(seeing_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of a family."""
    made: dict[str, Path] = {}

    def folder_of(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp("models") / family
            make_model(family, seeing_tokenizer, made[family])
        return made[family]

    return folder_of


def make_model(family: str, tokenizer: Any, folder: Path) -> None:
    """Write a model with random weights that are always the same."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    text, vision = FAMILIES[family]
    if family == "llama4":
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.add_special_tokens({"additional_special_tokens": TILE_TOKENS})
    common = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in zip(IDS, SPECIAL[3:6], strict=True)}
    ids["video_token_id"] = tokenizer.convert_tokens_to_ids("<|video_pad|>")
    if family in OTHERS:
        name, token = OTHERS[family]
        ids = {name: tokenizer.convert_tokens_to_ids(token), "image_seq_length": 4}
    if family in GLM:
        ids = {"image_token_id": tokenizer.convert_tokens_to_ids("<|image|>")}
    if family == "paddleocr_vl":
        ids["image_token_id"] = tokenizer.convert_tokens_to_ids("<|IMAGE_PLACEHOLDER|>")
    if family == "hunyuan_vl":
        ids = {"image_token_id": tokenizer.convert_tokens_to_ids(HUNYUAN_IMAGE)}
    if family == "minicpmv4_6":
        ids["insert_layer_id"] = 0
    if family in ("llava_next", "llava_onevision"):
        ids["image_grid_pinpoints"] = PINPOINTS
    if family == "llava_onevision":
        ids |= {"vision_aspect_ratio": "anyres_max_2"}
    if family == "mllama":
        ids = {"image_token_index": tokenizer.convert_tokens_to_ids("<|image|>")}
    if family == "gemma3":
        ids |= {"mm_tokens_per_image": 4}
    if family == "gemma4":
        ids = {f"{kind}_token_id": tokenizer.convert_tokens_to_ids("<|image|>") for kind in ("image", "video", "audio")}
        common |= {"vocab_size_per_layer_input": len(tokenizer)}
    if family == "paligemma":
        ids |= {"projection_dim": 64, "hidden_size": 64}
    config = AutoConfig.for_model(family, text_config=TEXT | common | text, vision_config=vision, **ids)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.05) if parameter.dim() > 1 else None
            torch.nn.init.constant_(parameter, 0.5) if parameter.numel() == 1 else None  # gates, which begin shut
        if family == "paligemma":  # whose embeddings of text are scaled: images must count beside them
            model.model.multi_modal_projector.linear.weight.mul_(10)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_processor(family, folder)


def make_hearing_model(tokenizer: Any, folder: Path) -> None:
    """A tiny Qwen2-Audio whose tower takes two seconds."""
    import torch
    from transformers import Qwen2AudioConfig, Qwen2AudioForConditionalGeneration

    tokenizer.add_special_tokens({"additional_special_tokens": ["<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"]})
    common = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    shape = Qwen2AudioConfig(
        text_config=TEXT | common | {"model_type": "qwen2"},
        audio_config={**AUDIO, "max_source_positions": 100, "model_type": "qwen2_audio_encoder"},
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2AudioForConditionalGeneration(shape)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.05) if parameter.dim() > 1 else None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16, "chunk_length": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "sampling_rate": RATE}))


OMNI_TOKENS = ["vision_bos", "vision_eos", "IMAGE", "VIDEO", "audio_bos", "AUDIO", "audio_eos"]
OMNI_TOKENS += ["audio_start", "audio_pad", "audio_end"]
OMNI: dict[str, dict[str, Any]] = {  # thinkers that hear a fifth of a second at a time, or a second
    "qwen2_5_omni_thinker": {
        "text_config": {"rope_parameters": ROPE},
        "vision_config": QWEN2_5_VISION,
        "audio_config": {**AUDIO, "max_source_positions": 40, "n_window": 10, "output_dim": 64},
        "tokens": {"image": "IMAGE", "video": "VIDEO", "audio": "AUDIO", "starts": ("vision_bos", "audio_bos")},
        "suffix": "index",
    },
    "qwen3_omni_moe_thinker": {
        "text_config": {"rope_parameters": ROPE | {"mrope_interleaved": True}, "head_dim": 16, **EXPERTS},
        "vision_config": QWEN3_VISION,
        "audio_config": {
            **AUDIO,
            "max_source_positions": 40,
            "n_window_infer": 200,
            "downsample_hidden_size": 8,
            "output_dim": 64,
        },
        "tokens": {
            "image": "image_pad",
            "video": "video_pad",
            "audio": "audio_pad",
            "starts": ("vision_start", "audio_start"),
        },
        "suffix": "id",
    },
}


def make_omni_model(tokenizer: Any, folder: Path, family: str = "qwen2_5_omni_thinker") -> None:
    """A tiny thinker of an Omni."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in OMNI_TOKENS]})
    common = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    given = OMNI[family]
    tokens = {name: given["tokens"][name] for name in ("image", "video", "audio")}
    ids = {f"{name}_token_{given['suffix']}": f"<|{token}|>" for name, token in tokens.items()}
    names = ("vision_start_token_id", "audio_start_token_id")
    ids |= {name: f"<|{token}|>" for name, token in zip(names, given["tokens"]["starts"], strict=True)}
    shape = AutoConfig.for_model(
        family,
        text_config=TEXT | common | given["text_config"],
        vision_config=given["vision_config"],
        audio_config=given["audio_config"],
        **{name: tokenizer.convert_tokens_to_ids(token) for name, token in ids.items()},
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForImageTextToText.from_config(shape)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.05) if parameter.dim() > 1 else None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_processor("qwen2_5_vl" if family == "qwen2_5_omni_thinker" else "qwen3_vl", folder)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings |= {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16, "chunk_length": 4}
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "sampling_rate": RATE}))


GLM = ("glm4v", "glm46v")
VIDEO_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
IDS = ("vision_start_token_id", "vision_end_token_id", "image_token_id")
OTHERS = {
    "llava": ("image_token_index", "<image>"),
    "llava_next": ("image_token_index", "<image>"),
    "llava_onevision": ("image_token_index", "<image>"),
    "internvl": ("image_token_id", "<IMG_CONTEXT>"),
    "gemma3": ("image_token_index", "<image_soft_token>"),
    "llama4": ("image_token_index", "<|patch|>"),
    "paligemma": ("image_token_index", "<image>"),
}


def processor_of(folder: Path) -> Any:
    """transformers' image processor; npukit's own in the place of one that needs torchvision."""
    from transformers import AutoImageProcessor

    from npukit.llm.images.llama4 import Llama4Processor

    settings = json.loads((folder / "preprocessor_config.json").read_text())
    if settings["image_processor_type"] != "Llama4ImageProcessor":
        return AutoImageProcessor.from_pretrained(folder)
    own = Llama4Processor(settings)
    return lambda **given: {name: torch_of(value) for name, value in own(**given).items()}


def torch_of(value: Any) -> Any:
    import torch

    return torch.from_numpy(value)


def write_processor(family: str, folder: Path) -> None:
    """Its image processor's settings, with limits that keep pictures small."""
    patch = FAMILIES[family][1].get("patch_size", 14)
    settings: dict[str, Any] = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 4 * (2 * patch) ** 2, "longest_edge": 64 * (2 * patch) ** 2},
    }
    if family in GLM:
        settings |= {
            "image_processor_type": "Glm4vImageProcessor",
            "size": {"shortest_edge": 4704, "longest_edge": 80000},
        }
    if family == "paddleocr_vl":
        settings |= {"image_processor_type": "PaddleOCRVLImageProcessor", "temporal_patch_size": 1}
    if family == "hunyuan_vl":
        settings |= {"image_processor_type": "HunYuanVLImageProcessor", "temporal_patch_size": 1}
    if family == "minicpmv4_6":
        settings = {"image_processor_type": "MiniCPMV4_6ImageProcessor", "scale_resolution": 112, "max_slice_nums": 4}
    if family == "llava":
        sides = {"height": 42, "width": 42}
        settings = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 42}, "crop_size": sides}
    if family == "llava_next":
        sides = {"height": 42, "width": 42}
        settings = {"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 42}}
        settings |= {"crop_size": sides, "image_grid_pinpoints": PINPOINTS}
    if family == "llava_onevision":
        settings = {"image_processor_type": "LlavaOnevisionImageProcessor", "size": {"height": 42, "width": 42}}
        settings |= {"image_grid_pinpoints": PINPOINTS}
    if family == "gemma3":
        settings = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 56, "width": 56}}
    if family == "gemma4":
        settings = {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4, "max_soft_tokens": 70}
    if family == "mllama":
        settings = {"image_processor_type": "MllamaImageProcessor", "size": {"height": 42, "width": 42}}
    if family == "llama4":
        settings = {"image_processor_type": "Llama4ImageProcessor", "size": {"height": 56, "width": 56}}
        settings |= {"max_patches": 4}
    if family == "paligemma":
        settings = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 42, "width": 42}}
    if family == "internvl":
        settings = {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 56, "width": 56}}
        settings |= {"min_patches": 1, "max_patches": 4}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    if family in VIDEO_FAMILIES:
        least, most = (tokens * (2 * patch) ** 2 * (4 if patch == 16 else 1) for tokens in (1, 6))
        (folder / "video_preprocessor_config.json").write_text(
            json.dumps({"size": {"shortest_edge": least, "longest_edge": most}, "fps": 2, "min_frames": 4})
        )


def written(family: str, seen: Any) -> list[str]:
    """What each of the images that a processor has seen is in the text, as transformers' own processors write it."""
    from transformers.models.llama4.processing_llama4 import Llama4Processor
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
    from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor

    if family in ("llava", "paligemma"):
        return ["<image>" * 9] * len(seen["pixel_values"])
    if family == "llama4":
        parts = Llama4Processor.__new__(Llama4Processor)
        return [parts._prompt_split_image(tiles, 4) for tiles in seen["aspect_ratios"].tolist()]
    if family == "mllama":
        return ["<|image|>"] * len(seen["num_tiles"][0])
    if family == "gemma3":
        whole = f"\n\n<start_of_image>{'<image_soft_token>' * 4}<end_of_image>\n\n"
        return [whole] * len(seen["pixel_values"])
    if family == "gemma4":
        return [f"<|image>{'<|image|>' * int(count)}<image|>" for count in seen["num_soft_tokens_per_image"]]
    if family == "llava_next":
        processor = LlavaNextProcessor.__new__(LlavaNextProcessor)  # for its arithmetic alone
        processor.image_processor, processor.patch_size = SimpleNamespace(image_grid_pinpoints=PINPOINTS), 14
        processor.num_additional_image_tokens = 0
        sizes = seen["image_sizes"].tolist()
        return ["<image>" * processor._get_number_of_features(*size, 42, 42) for size in sizes]
    if family == "llava_onevision":
        own = LlavaOnevisionProcessor.__new__(LlavaOnevisionProcessor)
        own.image_processor, own.num_image_tokens = SimpleNamespace(image_grid_pinpoints=PINPOINTS), 9
        own.vision_aspect_ratio = "anyres_max_2"
        return ["<image>" * own._get_number_of_features(*size, 42, 42) for size in seen["image_sizes"].tolist()]
    if family == "internvl":
        return [f"<img>{'<IMG_CONTEXT>' * 4 * count}</img>" for count in seen["num_patches"]]
    if family == "minicpmv4_6":
        parts = MiniCPMV4_6Processor.__new__(MiniCPMV4_6Processor)
        parts.slice_mode, parts.image_token = True, "<|image_pad|>"
        for name in ("image", "slice"):
            setattr(parts, f"{name}_start_token", f"<{name}>")
            setattr(parts, f"{name}_end_token", f"</{name}>")
        texts = [
            parts.replace_image_token(seen, image_idx=number, image_token_divisor=16)
            for number in range(len(seen["grids"]))
        ]
        return [f"<image_id>{number}</image_id>{text}" for number, text in enumerate(texts)]
    if family == "hunyuan_vl":
        grids = (seen["image_grid_thw"] // 2).tolist()
        start, end = (HUNYUAN_IMAGE.replace("102", number) for number in ("100", "101"))
        return [f"{start}{HUNYUAN_IMAGE * (high * (wide + 1) + 2)}{end}" for _, high, wide in grids]
    counts = (seen["image_grid_thw"].prod(1) // 4).tolist()
    if family in GLM:
        return [f"<|begin_of_image|>{'<|image|>' * count}<|end_of_image|>" for count in counts]
    if family == "paddleocr_vl":
        return [f"<|IMAGE_START|>{'<|IMAGE_PLACEHOLDER|>' * count}<|IMAGE_END|>" for count in counts]
    return [f"<|vision_start|>{'<|image_pad|>' * count}<|vision_end|>" for count in counts]


def about_tokens(family: str, ids: Any, seen: Any, image_token: int, prompt: int) -> dict[str, Any]:
    """What transformers' own processors say about tokens; the first answer begins after `prompt` of them."""
    import torch
    from transformers.models.mllama import processing_mllama

    if "image_grid_thw" in seen:
        return {"mm_token_type_ids": (ids == image_token).int()}
    if family == "mllama" and seen:
        spans = [processing_mllama.get_cross_attention_token_mask(ids[0].tolist(), image_token)]
        dense = processing_mllama.convert_sparse_cross_attention_mask_to_dense
        return {"cross_attention_mask": torch.from_numpy(dense(spans, seen["num_tiles"], 4, ids.shape[1]))}
    if family == "gemma4":
        return {"mm_token_type_ids": (ids == image_token).int()}
    if family == "gemma3":
        return {"token_type_ids": (ids == image_token).int()}
    if family == "paligemma":
        return {"token_type_ids": (torch.arange(ids.shape[1])[None] >= prompt).int()}
    return {}


# What processors return besides.
NOT_FOR_MODELS = (
    *("num_patches", "num_crops", "num_tiles", "grids", "num_patches_per_image"),
    *("num_soft_tokens_per_image", "aspect_ratios"),
)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of different shapes: a.png to e.png."""
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder)
    return folder


def write_pictures(folder: Path) -> None:
    """a.png to e.png, of noise."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(0)
    sizes = {"a": (90, 60), "b": (56, 56), "c": (200, 300), "d": (40, 150), "e": (300, 80)}
    for name, (width, height) in sizes.items():
        Image.fromarray(noise.integers(0, 255, (height, width, 3), np.uint8)).save(folder / f"{name}.png")


def sound(seconds: float, rate: int = RATE, channels: int = 1) -> bytes:
    """A WAV file of a tone that rises."""
    import numpy as np

    times = np.arange(int(seconds * rate)) / rate
    samples = (np.sin(2 * np.pi * (200 + 300 * times) * times) * 20_000).astype("<i2")
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat(samples[:, None], channels, 1).tobytes())
    return content.getvalue()


def write_recordings(folder: Path) -> None:
    """a.wav and b.wav of one and two channels, and long.wav, which is longer than the tower hears."""
    for name, content in {"a": sound(0.8), "b": sound(1.37, 44_100, 2), "long": sound(3.0, 8_000)}.items():
        (folder / f"{name}.wav").write_bytes(content)


def write_clips(folder: Path) -> None:
    """Folders of frames of noise, walk (5) and run (6), beside a picture 000.png."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(1)
    for name, count, (width, height) in (("walk", 5, (90, 60)), ("run", 6, (64, 120)), (".", 1, (90, 60))):
        (folder / name).mkdir(exist_ok=True)
        for number in range(count):
            pixels = noise.integers(0, 255, (height, width, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:03}.png")


def write_rows(folder: Path, count: int = 12) -> Path:
    """Conversations with none, one or several of the pictures, in one or two turns."""
    pick = random.Random(0)

    def say(most: int) -> str:
        return " ".join(pick.choices(WORDS, k=pick.randint(1, most)))

    file = folder / "rows.jsonl"
    with file.open("w") as lines:
        for number in range(count):
            names = pick.choices("abcde", k=number % 3)
            turns = [
                {"role": "user", "content": f"<image>{say(5)}" if names else say(9)},
                {"role": "assistant", "content": say(12)},
            ]
            for _ in names[1:]:
                turns += [
                    {"role": "user", "content": f"{say(3)} <image> {say(3)}"},
                    {"role": "assistant", "content": say(9)},
                ]
            lines.write(json.dumps({"messages": turns, "images": [f"{name}.png" for name in names]}) + "\n")
    return file
