"""Vision-language models: image features in place of embeddings, and a tower that runs in few operators.

The differences from transformers are the places where the host would wait for the device. Positions and boundaries of
images come with the batch, features are written to known positions instead of those that a mask selects, and attention
over the segments of many images is one call instead of one for each. The patch embedding, a convolution whose stride
equals its size, is a matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npukit.launch.abilities import abilities
from npukit.llm import families
from npukit.llm.families.vision import GridVision, Vision
from npukit.llm.models.attention import varlen_on_cuda, varlen_on_npu
from npukit.llm.models.body import body_of, give_body

Features = tuple[Tensor, Sequence[Tensor]]  # features of images [tokens, width], and those for deeper layers
# Towers with segments pass on their boundaries only if the name of the attention contains "flash".
NAME = "npukit_flash_segments"
HIDDEN = -1e4  # added to a score so that the softmax is 0, and finite in half precision


def register() -> None:
    """Register the tower's attention with transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, segment_attention)


def see_images(model: Any, vision: Vision) -> None:
    """Make the body of the model accept pixel_values, image_at and tower, as `npukit.llm.images` creates them; or,
    instead of pixels, precomputed features.
    """
    give_body(model)
    body = body_of(model)
    body.forward = partial(_forward, body, vision)
    if isinstance(vision, GridVision):
        body.get_submodule(vision.tower[0].removeprefix("model.")).config._attn_implementation = NAME
    if vision.audio:
        body.audio_tower.config._attn_implementation = NAME
    if hasattr(body.language_model, "_deepstack_process"):
        body.language_model._deepstack_process = _add_at
    for module in model.modules():
        convolution = getattr(module, "proj", None)
        if isinstance(convolution, nn.Conv3d) and convolution.kernel_size == convolution.stride:
            module.forward = partial(_patches, convolution)


def language_model(model: Any) -> Any:
    """The part of a model that reads tokens: all of it, or everything except its tower."""
    return model.base_model.language_model if families.vision_of(model.config) else model


def _forward(
    body: Any,
    vision: Vision,
    input_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    pixel_values: Tensor | None = None,
    image_at: Tensor | None = None,
    tower: Mapping[str, Any] | None = None,
    features: Features | None = None,
    token_type_ids: Tensor | None = None,
    cross: Mapping[str, Any] | None = None,
    audio: Mapping[str, Any] | None = None,
    **batch: Any,
) -> Any:
    embedded: Tensor = body.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
    if pixel_values is not None:
        tower = tower or {}
        if pixel_values.is_cuda:  # its attention needs boundaries on the device; compiled layers are made for numbers
            tower = {name: value for name, value in tower.items() if name != "segment_ends"}
        features = vision.features(body, pixel_values, tower)
    if cross is not None:
        batch |= _crossing(features, cross, embedded.dtype)
    elif features is not None and image_at is not None:
        first, deeper = features
        embedded = _put_at(embedded, image_at, first)
        if deeper:
            batch |= {"visual_pos_masks": image_at, "deepstack_visual_embeds": deeper}
    if audio is not None:
        assert vision.audio
        heard = audio.get("features")
        if heard is None:
            heard, _ = vision.audio.features(body, audio["pixel_values"], audio["tower"])
        embedded = _put_at(embedded, audio["image_at"], heard)
    if input_ids is not None:
        batch |= vision.language_inputs(body, input_ids)
    if token_type_ids is not None:  # the model's own code turns them into masks
        batch[vision.token_types_name] = token_type_ids
        return type(body).forward(body, inputs_embeds=embedded, **batch)
    outputs = body.language_model(inputs_embeds=embedded, **batch)
    outputs.image_hidden_states = outputs.audio_hidden_states = None  # some models' own code returns them
    return outputs


def _crossing(features: Features | None, cross: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """The inputs of layers that attend to images. A row's result does not depend on other rows: without images of its
    own, these layers add nothing to it. Tokens before the first image attend to all images of their row, as in
    transformers. Without features, those in the cache are used.
    """
    images, sees = cross["images"], cross["sees"]  # [rows, images], [rows, tokens, images, tiles]
    is_there = images >= 0
    none = ~sees.flatten(2).any(-1)
    seen = sees | (none[:, :, None, None] & is_there[:, None, :, None])
    bias = torch.where(seen, 0.0, HIDDEN).to(dtype).repeat_interleave(cross["patches"], dim=3)
    made = {"cross_attention_mask": bias.flatten(2)[:, None]}
    made["full_text_row_masked_out_mask"] = (~none)[:, None, :, None].to(dtype)
    if features is not None:
        states = features[0][images.clamp(min=0)] * is_there[..., None, None]
        made["cross_attention_states"] = states.flatten(1, 2).to(dtype)
    return made


def _put_at(embedded: Tensor, places: Tensor, features: Tensor) -> Tensor:
    """Replace embeddings by features. A blank image has no position: it only lets all ranks run the same code."""
    flat, features = embedded.flatten(0, 1), features.to(embedded.dtype)
    count = len(places)
    if count:
        flat = flat.index_copy(0, places, features[:count])
    if count < len(features):
        flat = flat + 0 * features[count:].sum()
    return flat.view_as(embedded)


def _add_at(hidden: Tensor, places: Tensor, features: Tensor) -> Tensor:
    """Features for a deeper layer of the language model, added at the positions of image tokens."""
    flat, features = hidden.flatten(0, 1), features.to(hidden.dtype)
    count = len(places)
    flat = flat.index_add(0, places, features[:count]) if count else flat + 0 * features.sum()
    return flat.view_as(hidden)


def _patches(convolution: nn.Conv3d, pixels: Tensor) -> Tensor:
    weight = convolution.weight
    return F.linear(pixels.view(-1, weight[0].numel()).to(weight.dtype), weight.flatten(1), convolution.bias)


def segment_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    segment_ends: Sequence[tuple[int, ...]] = (),
    **_: Any,
) -> tuple[Tensor, None]:
    """Bidirectional attention within each segment, from [1, heads, patches, size] to [1, patches, heads, size].

    `segment_ends` has the boundaries of images and, if there are any, of windows, as numbers on the host. Their count
    tells which of the two a layer uses: windows lie inside images, so equal counts mean equal boundaries.
    """
    if cu_seq_lens_q is None:  # a tower for images of one size
        attended = F.scaled_dot_product_attention(query, key, value, scale=scaling, dropout_p=dropout)
        return attended.transpose(1, 2), None
    query, key, value = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
    able = abilities(query.device)
    if able.flash_attention:
        result = varlen_on_cuda(query, key, value, cu_seq_lens_q, max_length_q, scaling, dropout, causal=False)
        return result.unsqueeze(0), None
    alike = (ends for ends in segment_ends if len(ends) + 1 == len(cu_seq_lens_q))
    ends = next(alike, None) or tuple(cu_seq_lens_q[1:].tolist())  # a tower that passes on no further arguments
    if able.torch_npu and query.dtype != torch.float32:
        return varlen_on_npu(query, key, value, ends, scaling, dropout, causal=False).unsqueeze(0), None
    return _by_length(query, key, value, ends, scaling, dropout).unsqueeze(0), None


def _by_length(
    query: Tensor, key: Tensor, value: Tensor, ends: tuple[int, ...], scale: float, dropout: float
) -> Tensor:
    """Process segments of equal length as a batch: one call per length, of which windows and images have few."""
    starts = (0, *ends[:-1])
    groups: dict[int, list[int]] = {}
    for start, end in zip(starts, ends, strict=True):
        groups.setdefault(end - start, []).append(start)
    result = torch.empty_like(query)
    for length, begins in groups.items():
        at = (torch.tensor(begins)[:, None] + torch.arange(length)).to(query.device)
        q, k, v = (part[at].transpose(1, 2) for part in (query, key, value))
        attended = F.scaled_dot_product_attention(q, k, v, scale=scale, dropout_p=dropout).transpose(1, 2)
        result = result.index_copy(0, at.flatten(), attended.flatten(0, 1))
    return result
