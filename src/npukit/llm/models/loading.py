"""Load a causal language model and its tokenizer from a folder or a hub, or create it from a configuration."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from npukit.errors import NpukitError
from npukit.launch.devices import torch_device
from npukit.llm import families
from npukit.llm.config.options import DataOptions, ModelOptions
from npukit.llm.images.images import Images
from npukit.llm.models.checkpoint import WeightFiles, open_checkpoint
from npukit.llm.models.dequantize import ASCEND
from npukit.llm.models.folder import find_model

# Parameters that transformers needs besides a factor, with Llama 3.1's values.
OF_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


def locate(options: ModelOptions) -> str:
    """The folder to load from. A model on a hub is downloaded first, without its weights if they are not needed."""
    return str(find_model(options.path, options.revision, options.hub, weights=not options.from_config))


def load_config(options: ModelOptions, place: str) -> Any:
    """The model's configuration as transformers reads it."""
    from transformers import AutoConfig

    with _errors_as_sentence(options):
        config = AutoConfig.from_pretrained(
            place, revision=options.revision, trust_remote_code=options.trust_remote_code
        )
    config = thinker_of(config)
    if options.rope:
        _stretch(config.get_text_config(), options)
    return config


def thinker_of(config: Any) -> Any:
    """For a model that also speaks, the configuration of the part that reads and writes text."""
    return getattr(config, "thinker_config", config)


def _stretch(shape: Any, options: ModelOptions) -> None:
    """Scale rotary positions for more tokens than the model was trained with; unchanged if there are enough."""
    before = getattr(shape, "rope_parameters", None) or {}
    kind = options.rope["rope_type"]
    if "rope_theta" not in before:
        raise NpukitError(f"model.rope: RoPE scaling is not supported for {shape.model_type}: leave it out.")
    longest = before.get("original_max_position_embeddings") or shape.max_position_embeddings
    factor = options.rope.get("factor") or math.ceil((options.length or longest) / longest)
    if factor <= 1:
        return
    kept = {name: value for name, value in before.items() if name in ("rope_theta", "partial_rotary_factor")}
    if kind != "linear":
        kept["original_max_position_embeddings"] = longest
    more = OF_LLAMA3 if kind == "llama3" else {}
    shape.max_position_embeddings = int(longest * factor)
    shape.rope_parameters = {**kept, **more, **options.rope, "factor": float(factor)}


def load_tokenizer(options: ModelOptions, place: str) -> Any:
    """The model's tokenizer. If it has no padding token, the end token is used."""
    from transformers import AutoTokenizer

    with _errors_as_sentence(options):
        tokenizer = AutoTokenizer.from_pretrained(
            place, revision=options.revision, trust_remote_code=options.trust_remote_code
        )
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # transformers creates this one if there is none
        raise NpukitError(f"The model {options.path} has no tokenizer: copy its tokenizer.json there.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if options.new_tokens:
        tokenizer.add_special_tokens({"additional_special_tokens": list(options.new_tokens)})
    return tokenizer


def make_room(model: Any, words: int) -> None:
    """Enlarge the embeddings to this many tokens, rounded up to a multiple of 128. Most have spare rows already."""
    if model.get_input_embeddings().num_embeddings < words:
        model.resize_token_embeddings(-(-words // 128) * 128)


def load_model(options: ModelOptions, place: str, dtype: torch.dtype, attention: str | None, scores: int = 0) -> Any:
    """The model with its weights in `dtype`, and the attention with that name or transformers' default.

    With `scores`, a new layer in place of the output layer computes this many numbers for a text.

    >>> load_model(ModelOptions(path="Qwen/Qwen2-7B"), "Qwen/Qwen2-7B", torch.bfloat16, attention=None)
    """
    from transformers import AutoModelForSequenceClassification

    common: dict[str, Any] = {
        "dtype": dtype,
        "trust_remote_code": options.trust_remote_code,
        "attn_implementation": attention,
    }
    shape = load_config(options, place)
    kind = auto_class(shape)
    common["attn_implementation"] = attention_of(shape, attention)
    if options.from_config:
        with torch_device():  # where weights are initialised fastest
            return kind.from_config(shape, **common)
    common |= {"config": shape, "revision": options.revision}
    if scores:
        shape.num_labels = scores
        if not families.vision_of(shape):
            with _errors_as_sentence(options), _quiet():  # its warning about the new layer is expected
                return AutoModelForSequenceClassification.from_pretrained(place, **common)
    with _errors_as_sentence(options):
        loaded = from_pretrained(kind, place, **common)
    return _scoring(loaded) if scores else loaded


def _scoring(model: Any) -> Any:
    """A vision-language model with a score layer instead of its output layer, as transformers has for text models."""
    from transformers import PreTrainedModel
    from transformers.modeling_layers import GenericForSequenceClassification

    if model.base_model is model:  # whose language model has the output layer
        raise NpukitError(
            f"{model.config.model_type} can neither classify nor learn rewards here: choose another model."
        )
    writing = type(model)
    base = next(parent for parent in writing.__mro__ if PreTrainedModel in parent.__bases__)
    name = writing.__name__.partition("For")[0] + "ForSequenceClassification"
    with torch.device("meta"):
        scoring = type(name, (GenericForSequenceClassification, base), {})(model.config)
    setattr(scoring, scoring.base_model_prefix, model.base_model)
    shape = model.config.get_text_config()
    scoring.score = torch.nn.Linear(shape.hidden_size, model.config.num_labels, bias=False, dtype=model.dtype)
    torch.nn.init.normal_(scoring.score.weight, std=shape.initializer_range)
    return scoring


def from_pretrained(kind: Any, place: str, config: Any, weights: WeightFiles | None = None, **options: Any) -> Any:
    """`kind.from_pretrained`, also for checkpoints whose quantisation transformers supports only on CUDA.

    >>> from_pretrained(AutoModelForCausalLM, "qwen2-7b-awq", config, dtype=torch.bfloat16)
    """
    folder = Path(place)
    is_quantized = hasattr(config, "quantization_config") or (folder / ASCEND).is_file()
    weights = weights or (open_checkpoint(folder) if is_quantized else None)
    if weights is None or not weights.quantized:
        return kind.from_pretrained(place, config=config, **options)
    config = copy.deepcopy(config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model_class = type(kind.from_config(config, trust_remote_code=options.get("trust_remote_code")))
    state_dict = {name: weights.read(name) for name in weights.entries}
    loaded = model_class.from_pretrained(None, config=config, state_dict=state_dict, **options)
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    model.name_or_path = model.config.name_or_path = place  # adapters refer to their base model by this
    return loaded


def auto_class(shape: Any) -> Any:
    """The transformers auto class for a model of this shape."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM

    vision = families.vision_of(shape)
    if vision is None:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText if vision.kind == "image" else AutoModelForMultimodalLM


def attention_of(shape: Any, name: str | None) -> Any:
    """The attention argument for transformers; for a vision-language model, of its language model."""
    vision = families.vision_of(shape)
    towers = [part for part in ("vision_config", "audio_config") if hasattr(shape, part)]
    return {"": name, "text_config": name, **dict.fromkeys(towers, "sdpa")} if name and vision else name


def load_images(options: ModelOptions, place: str, shape: Any, data: DataOptions) -> Images | None:
    """How images are passed to the model; None if it does not support them."""
    vision = families.vision_of(shape)
    if vision is None:
        return None
    if find_spec("transformers.vision_utils") is None:
        raise NpukitError("Images need a newer transformers: install the latest 5.x release.")
    from transformers import AutoFeatureExtractor

    hears = AutoFeatureExtractor.from_pretrained
    given = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
    with _errors_as_sentence(options), _quiet():
        processor = (vision.load_processor if vision.kind == "image" else hears)(place, **given)
        audio_processor = hears(place, **given) if vision.audio else None
    settings = _video_settings(Path(place), data.tokens)
    return Images(vision, processor, shape, data, settings, audio_processor=audio_processor)


def _video_settings(folder: Path, tokens: str) -> dict[str, Any]:
    """A checkpoint's video settings. Like LLaMA-Factory, fall back to its image settings."""
    names = ("video_preprocessor_config.json", "processor_config.json")
    for name in (*names, "preprocessor_config.json") if tokens == "llama_factory" else names:
        try:
            settings = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        settings = settings.get("video_processor") if name == "processor_config.json" else settings
        if isinstance(settings, dict):
            return settings
    return {}


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


class _errors_as_sentence:
    """Turn errors from loading a missing or broken model into one sentence."""

    def __init__(self, options: ModelOptions) -> None:
        self._options = options

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (OSError, ValueError, KeyError)):
            first = str(error).strip().split("\n")[0]
            raise NpukitError(f"The model {self._options.path} cannot be loaded (model.path): {first}") from error
