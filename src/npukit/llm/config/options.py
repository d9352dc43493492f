"""The configuration for training language models.

Every option has a type, a default and a meaning. `npukit train --explain` prints them as a table.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from npukit.llm import tasks
from npukit.llm.config.reinforcement import GrpoOptions, RewardOptions
from npukit.train.options import Called, Choices, Fraction, FrozenOptions, TrainOptions, When

# PEFT's adapters besides LoRA, whose own options are in tuning.peft
OTHER_ADAPTERS = ("adalora", "boft", "fourierft", "hra", "ia3", "loha", "lokr", "miss", "oft", "vera")
Method = Literal[
    "lora",
    "full",
    "freeze",
    "adalora",
    "boft",
    "bottleneck",
    "fourierft",
    "hra",
    "ia3",
    "loha",
    "lokr",
    "miss",
    "oft",
    "vera",
]
LORA, FREEZE, FULL = (When("tuning.method", method) for method in ("lora", "freeze", "full"))
ADAPTER = When("tuning.method", ("lora", *OTHER_ADAPTERS))
WITH_RANK = When("tuning.method", ("lora", "bottleneck", *OTHER_ADAPTERS))
CHAT, CLASSIFY, EMBED, RERANK, TOKENS, ANSWERS = (
    When("task", partial(tasks.using, uses)) for uses in ("chat", "classify", "embed", "rerank", "tokens", "answers")
)
# the metrics of evaluations that generate answers
ANSWER_METRICS = ("rouge_1", "rouge_2", "rouge_l", "bleu_4", "accuracy")
Format = Literal["auto", "alpaca", "sharegpt", "messages", "prompt", "text", "tokens"]


class ModelOptions(FrozenOptions):
    """The model to train."""

    path: Annotated[str, Called(llama_factory="model_name_or_path", swift="model")] = Field(
        description="a folder, or a name on the Hugging Face Hub or ModelScope (see hub)"
    )
    revision: Annotated[str | None, Called(swift="model_revision")] = Field(
        None, description="branch, tag or commit on the hub"
    )
    hub: Literal["huggingface", "modelscope"] = Field(
        "huggingface", description="where names are looked up; USE_MODELSCOPE_HUB=1 selects modelscope"
    )
    adapter: Path | None = Field(None, description="a LoRA or bottleneck adapter to continue training")
    from_config: Annotated[bool, Called(llama_factory="train_from_scratch")] = Field(
        False, description="start from new weights in the shape of this model, for pre-training"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="data type of the loaded weights"
    )
    quantize: Literal["nf4", "int8", "hqq"] | None = Field(
        None, description="keep the frozen weights below an adapter in 4 bits (nf4, hqq) or 8 (QLoRA)"
    )
    balance_experts: Annotated[
        float, Field(ge=0), Called(llama_factory="moe_aux_loss_coef", swift="router_aux_loss_coef")
    ] = Field(0.0, description="weight of the load-balancing loss of a MoE model (router_aux_loss_coef)")
    new_tokens: tuple[str, ...] = Field((), description="special tokens to add to the tokenizer and the model")
    rope: dict[str, Any] = Field({}, description="RoPE scaling, as in config.json: {rope_type: yarn, factor: 4}")
    length: PositiveInt | None = Field(None, description="context length to scale RoPE to, if model.rope has no factor")
    trust_remote_code: Annotated[bool, Called(llama_factory=True)] = Field(
        False, description="run Python code that comes with the model"
    )


def _as_names(value: Any) -> Any:
    """Split `q_proj,v_proj` into names. Other text is a regular expression, or all-linear."""
    is_names = isinstance(value, str) and value != "all-linear" and re.fullmatch(r"\w[\w.]*(\s*,\s*\w[\w.]*)*", value)
    return tuple(name.strip() for name in value.split(",")) if is_names else value


class TuningOptions(FrozenOptions):
    """Which parts of the model are trained, and how."""

    method: Annotated[Method, Called(llama_factory="finetuning_type")] = Field(
        "lora",
        description="train a LoRA adapter, all weights, some layers, bottleneck adapters, or another adapter of PEFT",
    )
    rank: Annotated[PositiveInt, WITH_RANK, Called(llama_factory="lora_rank", swift="lora_rank")] = Field(
        8, description="rank of the adapter matrices, or width of a bottleneck"
    )
    activation: Annotated[
        Literal["gelu", "gelu_new", "relu", "silu", "tanh"],
        When("tuning.method", "bottleneck"),
        Called(swift="adapter_act"),
    ] = Field("gelu", description="function in the middle of a bottleneck adapter")
    peft: Annotated[dict[str, Any], ADAPTER] = Field(
        {}, description="more options of PEFT's configuration, such as {oft_block_size: 32}"
    )
    plus_ratio: Annotated[
        PositiveFloat | None, LORA, Called(llama_factory="loraplus_lr_ratio", swift="lorap_lr_ratio")
    ] = Field(None, description="LoRA+: ratio of the learning rates of the second and the first matrix of a pair")
    loss: Annotated[Literal["plain", "dft", "eaft", "asft"], TOKENS] = Field(
        "plain",
        description="how tokens are weighted: equally, by their probability (DFT) or by the model's entropy "
        "(EAFT); asft is DFT with a penalty for the distance from the initial model, a copy of "
        "which is kept in memory unless an adapter is trained",
    )
    reference_weight: Annotated[float, Field(ge=0), When("tuning.loss", "asft")] = Field(
        0.1, description="asft: weight of the penalty for the distance from the initial model"
    )
    loss_power: Annotated[float, Field(ge=0), When("tuning.loss", "eaft")] = Field(
        1.0, description="eaft: exponent of the entropy"
    )
    noise: Annotated[float, Field(ge=0), Called(transformers="neftune_noise_alpha")] = Field(
        0.0, description="NEFTune: size of the noise added to embeddings"
    )
    shifted_attention: Annotated[int | None, Field(ge=2)] = Field(
        None,
        description="LongLoRA: in training, attend inside of groups of so many tokens, which for half of the heads are "
        "shifted by half a group; for long rows",
    )
    alpha: Annotated[PositiveFloat | None, LORA, Called(llama_factory="lora_alpha")] = Field(
        None, description="scale of the adapter; twice the rank if empty"
    )
    dropout: Annotated[Fraction, LORA, Called(llama_factory="lora_dropout")] = Field(
        0.0, description="dropout on the adapter's input"
    )
    targets: Annotated[str | tuple[str, ...], BeforeValidator(_as_names), ADAPTER] = Field(
        "all-linear",
        description="names of modules, also together with all-linear; or a regular expression that matches full names",
    )
    rslora: Annotated[bool, LORA, Called(llama_factory="use_rslora", swift="use_rslora")] = Field(
        False, description="scale by the square root of the rank (rsLoRA)"
    )
    dora: Annotated[bool, LORA, Called(llama_factory="use_dora", swift="use_dora")] = Field(
        False, description="train magnitude and direction separately (DoRA)"
    )
    bias: Annotated[Literal["none", "all", "lora_only"], LORA, Called(swift="lora_bias")] = Field(
        "none", description="which biases are trained"
    )
    init: Annotated[str | bool, LORA] = Field(True, description="PEFT's init_lora_weights, such as pissa or lora_ga")
    init_rows: Annotated[PositiveInt, When("tuning.init", "lora_ga")] = Field(
        4, description="number of rows from whose gradients lora_ga initialises the adapter"
    )
    convert: Annotated[bool, LORA, Called(llama_factory="pissa_convert")] = Field(
        False,
        description="save an adapter whose init changed the model (pissa, olora) as a plain LoRA of twice the rank, "
        "for the model as it was; always done with lora_ga",
    )
    whole_tower: Annotated[bool, LORA] = Field(
        False,
        description="vision-language models: train all weights of the tower and the projector besides the adapter",
    )
    modules_to_save: Annotated[tuple[str, ...], ADAPTER] = Field(
        (), description="modules whose weights are trained in full"
    )
    layers: Annotated[int, FREEZE, Called(llama_factory="freeze_trainable_layers")] = Field(
        2, description="number of layers to train, counted from the last; if negative, from the first"
    )
    new_layers: Annotated[NonNegativeInt, FREEZE] = Field(
        0,
        description="add this many layers at equal distances, copies that change nothing yet, and train these "
        "alone (LLaMA-Pro)",
    )
    spread: Annotated[bool, FREEZE, Called(llama_factory="use_llama_pro")] = Field(
        False, description="train that many evenly spaced layers instead, such as those of an expanded model"
    )
    layer_modules: Annotated[tuple[str, ...], FREEZE] = Field(
        (), description="modules of these layers to train, such as mlp; all if empty"
    )

    freeze_vision_tower: Annotated[bool, Called(llama_factory=True, swift="freeze_vit")] = Field(
        True, description="vision-language models: do not train the vision tower"
    )
    vision_tower_rate: Annotated[PositiveFloat | None, Called(swift="vit_lr")] = Field(
        None, description="learning rate of the vision tower; training.learning_rate if empty"
    )
    projector_rate: Annotated[PositiveFloat | None, Called(swift="aligner_lr")] = Field(
        None, description="learning rate of the projector; training.learning_rate if empty"
    )
    freeze_projector: Annotated[bool, Called(llama_factory="freeze_multi_modal_projector", swift="freeze_aligner")] = (
        Field(True, description="do not train the projector, which maps image features to embeddings")
    )
    freeze_language_model: Annotated[bool, Called(llama_factory=True, swift="freeze_llm")] = Field(
        False, description="do not train the language model"
    )
    turns: Annotated[Literal["lisa", "badam"] | None, FULL] = Field(
        None,
        description="train a changing subset of the layers: randomly chosen ones, and all weights outside of "
        "layers (lisa); or one layer after the other, which needs optimizer states for one layer "
        "only (badam)",
    )
    turn_steps: Annotated[PositiveInt, FULL] = Field(20, description="steps before other layers are chosen")
    turn_layers: Annotated[PositiveInt, When("tuning.turns", "lisa")] = Field(
        2, description="number of layers chosen at a time"
    )
    turn_order: Annotated[Literal["ascending", "descending", "random"], When("tuning.turns", "badam")] = Field(
        "ascending", description="order in which badam trains the layers"
    )

    @property
    def converts(self) -> bool:
        """Whether the adapter is saved as its difference from the initial one (see finetune/convert.py)."""
        return self.method == "lora" and (self.convert or self.init == "lora_ga")

    @property
    def freezes_vision(self) -> bool:
        """Whether nothing that processes images is trained."""
        return self.freeze_vision_tower and self.freeze_projector and not self.whole_tower

    @property
    def is_adapter(self) -> bool:
        """Whether the model's own weights do not change."""
        return self.method not in ("full", "freeze")


class Source(FrozenOptions):
    """One data set."""

    PLURAL: ClassVar[str] = "data sets"

    path: str = Field(description="a file, a folder, a hub name, or a name in dataset_info.json; path#N uses N rows")
    format: Format = Field("auto", description="layout of the rows; auto recognises it from the first ones")
    weight: PositiveFloat | None = Field(None, description="share in a mix of several data sets; by size if empty")
    hub: Literal["huggingface", "modelscope"] | None = Field(
        None, description="hub on which the name is looked up; model.hub if empty"
    )
    split: str = Field("train", description="split of a data set on a hub")
    subset: str | None = Field(None, description="subset of a data set on a hub")
    columns: dict[str, str] = Field(
        {}, description="names of the columns in the data set, such as {instruction: question}"
    )
    fill: dict[str, tuple[str, ...]] = Field(
        {}, description="text for {{NAME}} in questions and answers, such as {NAME: [for rows tagged zh, for others]}"
    )
    question: str | None = Field(
        None, description="the question, as a template of columns such as 'Is {first} like {second}?'"
    )
    min_label: float | None = Field(None, description="skip rows whose label is below this (embed)")
    question_suffix: str | None = Field(None, description="text added to every question")
    answer_prefix: str | None = Field(None, description="text put before every answer")
    answer_until: str | None = Field(None, description="text at which every answer is cut, such as a separator")
    preset: str | None = Field(
        None,
        description="a known public data set, such as coco, whose rows need more than renamed columns",
    )
    archive: str | None = Field(
        None, description="zip file of a data set on a hub with the images, videos or audio that its rows name"
    )
    negatives: NonNegativeInt = Field(
        0, description="number of other rows' positives that rows without negatives get as negatives (rerank)"
    )


def _as_sources(value: Any) -> Any:
    """Turn a path into a data set, and a single data set into a list."""
    several = [value] if isinstance(value, str | dict | Source) else value
    if not isinstance(several, list | tuple):
        return value
    return tuple({"path": source} if isinstance(source, str) else source for source in several)


Sources = Annotated[
    tuple[Source, ...],
    BeforeValidator(_as_sources, json_schema_input_type=str | Source | list[str | Source]),
]


class DataOptions(FrozenOptions):
    """The data sets, and how their rows are prepared."""

    train: Sources = Field(description="data sets to train on; a single path is enough", min_length=1)
    validation: Sources | Annotated[float, Field(ge=0)] = Field(
        0.0, description="data sets to evaluate on, or a share (below 1) or number of training rows"
    )
    folder: Path = Field(
        Path("data"),
        description="folder of dataset_info.json and of files named without a path; REMOTE:owner/name is on a hub",
    )
    media_dir: Annotated[Path | None, Called(llama_factory=True)] = Field(
        None,
        description="folder of the images and videos that rows name; if empty, data.folder or the working directory",
    )
    image_min_pixels: Annotated[PositiveInt | None, Called(llama_factory=True)] = Field(
        None, description="images with fewer pixels are enlarged; as the model's image processor says if empty"
    )
    image_max_pixels: Annotated[PositiveInt | None, Called(llama_factory=True)] = Field(
        None, description="images with more pixels are scaled down, which means fewer tokens; see image_min_pixels"
    )
    image_scaled_pixels: PositiveInt | None = Field(
        None, description="images with more pixels are scaled down before all else, as by ms-swift's --max_pixels"
    )
    video_fps: Annotated[PositiveFloat | None, Called(llama_factory=True)] = Field(
        None, description="frames of a video to take per second; as the model's video processor says if empty, or 2"
    )
    video_max_frames: Annotated[PositiveInt | None, Called(llama_factory="video_maxlen")] = Field(
        None, description="maximum number of frames of a video; they are spread over its whole length"
    )
    video_min_pixels: Annotated[PositiveInt | None, Called(llama_factory=True)] = Field(
        None, description="frames of videos with fewer pixels are enlarged"
    )
    video_max_pixels: Annotated[PositiveInt | None, Called(llama_factory=True)] = Field(
        None, description="frames of videos with more pixels are scaled down, which means fewer tokens"
    )
    template: Annotated[str | None, CHAT] = Field(
        None, description="chat template, by name or as a Jinja file; the tokenizer's own if empty"
    )
    tokens: Literal["npukit", "llama_factory", "ms_swift"] = Field(
        "npukit", description="which tool's templates, tokens and labels to reproduce"
    )
    thinking: Annotated[bool | None, CHAT] = Field(
        True,
        description="LLaMA-Factory's enable_thinking: answers without reasoning begin with an empty one, which counts; "
        "false removes all reasoning; with false and null the empty one belongs to the question",
    )
    train_on_empty_thought: Annotated[bool, CHAT] = Field(
        True, description="compute the loss on an empty <think></think> before an answer (ms_swift tokens)"
    )
    tool_format: Annotated[str | None, CHAT, Called(llama_factory=True)] = Field(
        None,
        description="how tools and calls are written, by LLaMA-Factory's or ms-swift's name with their tokens; "
        "the template's own if empty",
    )
    weigh: Annotated[tuple[str, ...], CHAT] = Field(
        (), description="loss weights for parts of answers, by ms-swift's names of loss_scale (ms_swift tokens)"
    )
    system: Annotated[str | None, CHAT, Called(llama_factory="default_system")] = Field(
        None, description="system message for rows without one"
    )
    cutoff: Annotated[PositiveInt, Called(llama_factory="cutoff_len")] = Field(
        2048, description="maximum tokens in a row; longer ones are cut"
    )
    too_long: Literal["cut", "cut_start", "split", "drop"] = Field(
        "cut", description="what happens to longer rows; cut_start and split are for ms_swift tokens"
    )
    max_rows: Annotated[PositiveInt | None, Called(llama_factory="max_samples")] = Field(
        None, description="maximum rows of each data set"
    )
    seed: int | None = Field(
        None, description="seed for drawing rows, with llama_factory and ms_swift tokens; training.seed if empty"
    )
    train_on_prompt: Annotated[bool, CHAT, Called(llama_factory=True)] = Field(
        False, description="compute the loss on questions too, not only on answers"
    )
    last_answer_only: Annotated[bool, CHAT, Called(llama_factory="mask_history")] = Field(
        False, description="compute the loss only on the last answer of a conversation"
    )
    packing: bool = Field(True, description="pack several rows into one; they do not attend to each other")
    pack_length: Annotated[PositiveInt | None, When("data.packing", True), Called(swift="packing_length")] = Field(
        None, description="tokens in a packed row; cutoff if empty"
    )
    streaming: Annotated[bool, Called(llama_factory=True, swift=True)] = Field(
        False, description="read rows as they are needed; needs training.max_steps"
    )
    bad_rows: Literal["skip", "stop"] = Field("skip", description="what to do with rows that cannot be used")
    max_bad_rows: Fraction = Field(0.5, description="stop if more than this share of the rows cannot be used")
    preprocessing_workers: Annotated[
        NonNegativeInt | None, Called(llama_factory="preprocessing_num_workers", swift="dataset_num_proc")
    ] = Field(None, description="processes that tokenise; one per core if empty")
    cache: Annotated[bool, Called(swift="load_from_cache_file")] = Field(
        True, description="keep tokenised rows for later runs"
    )


class PreferenceOptions(FrozenOptions):
    """How preferences are learnt."""

    WHEN = When("task", partial(tasks.using, "preference"))

    loss: Literal["sigmoid", "hinge", "ipo", "orpo", "simpo", "cpo"] = Field(
        "sigmoid",
        description="of task dpo: DPO's sigmoid, or that of another method; orpo, simpo, cpo need no reference",
    )
    mix: dict[Literal["sigmoid", "hinge", "bco_pair", "sft"], NonNegativeFloat] = Field(
        {},
        description="several losses at once with their weights, instead of loss, such as {sigmoid: 0.8, sft: "
        "1.0} (MPO)",
    )
    beta: PositiveFloat = Field(0.1, description="strength of the constraint towards the reference model")
    gamma: float = Field(0.5, description="SimPO's margin of the rewards")
    label_smoothing: Fraction = Field(0.0, description="probability that a preference is wrong")
    sft_weight: Annotated[float, Field(ge=0)] = Field(
        0.0, description="weight of the plain loss on chosen answers (rpo_alpha, pref_ftx, cpo_alpha)"
    )
    sft_mean: Literal["answers", "rows", "all"] = Field(
        "answers",
        description="how the plain loss is averaged: over the tokens of chosen answers, per row and then over"
        " rows (LLaMA-Factory), or over all tokens of these rows (ORPO in TRL and ms-swift)",
    )
    desirable_weight: Annotated[float, Field(ge=0)] = Field(1.0, description="KTO's weight of good answers")
    undesirable_weight: Annotated[float, Field(ge=0)] = Field(1.0, description="KTO's weight of bad answers")


class HeadOptions(FrozenOptions):
    """Models that classify, embed or rank texts instead of writing them."""

    labels: Annotated[PositiveInt, CLASSIFY] = Field(2, description="number of classes, or of regression targets")
    problem: Annotated[Literal["one", "several", "number"], CLASSIFY] = Field(
        "one", description="one class per text, several classes per text, or a number per text (regression)"
    )
    similarity: Annotated[Literal["infonce", "cosine_similarity", "contrastive", "online_contrastive"], EMBED] = Field(
        "infonce", description="embedding loss; all but infonce need pairs with a label"
    )
    in_batch: Annotated[bool, EMBED] = Field(
        True, description="infonce: the texts of the other rows, on all devices, are negatives, too"
    )
    questions: Annotated[bool, EMBED] = Field(
        False, description="infonce, in_batch: the other questions are negatives, too"
    )
    documents: Annotated[bool, EMBED] = Field(
        False, description="infonce, in_batch: other positives are negatives, too"
    )
    fake_margin: Annotated[float | None, EMBED] = Field(
        None, description="infonce, in_batch: ignore negatives that are more similar than the positive by this margin"
    )
    ranking: Annotated[Literal["pointwise", "listwise"], RERANK] = Field(
        "pointwise",
        description="ranking loss: for each document alone, or for the positive among all documents of a question",
    )
    yes: Annotated[str | None, RERANK] = Field(
        None, description="score by the difference between the logits of this token and of `no`, without a new layer"
    )
    no: Annotated[str, RERANK] = Field("no", description="with yes: the token for a negative answer")
    positives: Annotated[PositiveInt, RERANK] = Field(1, description="positive documents per question in a step")
    negatives: Annotated[PositiveInt, RERANK] = Field(7, description="negative documents per positive one")
    temperature: Annotated[PositiveFloat, When("task", partial(tasks.using, "temperature"))] = Field(
        0.1, description="similarities (infonce) or scores (listwise) are divided by it"
    )


class EvaluationOptions(FrozenOptions):
    """What evaluations during training measure besides the loss."""

    WHEN = ANSWERS

    predict_with_generate: bool = Field(
        False,
        description="evaluations generate the last answer of each validation row and compare it with the row's own "
        "(ROUGE, BLEU, accuracy), instead of computing the loss",
    )
    max_new_tokens: Annotated[PositiveInt, When("evaluation.predict_with_generate", True)] = Field(
        64, description="maximum number of tokens of a generated answer"
    )


class Config(FrozenOptions):
    """The whole configuration of a training."""

    task: Annotated[str, Choices(tasks.summaries)] = Field("sft", description="what to train")
    model: ModelOptions
    tuning: TuningOptions = TuningOptions()
    data: DataOptions
    preference: PreferenceOptions = PreferenceOptions()
    head: HeadOptions = HeadOptions()
    grpo: GrpoOptions = GrpoOptions()
    rewards: RewardOptions = RewardOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    training: TrainOptions = TrainOptions()
