"""npukit chat"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npukit.cli.options import CardOption, DeviceOption
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted

if TYPE_CHECKING:
    from npukit.llm.config.use import Use


def chat(use: Use, device: DeviceOption = Wanted.auto, card: CardOption = DEFAULT_CARD) -> None:
    """Chat with a language model in the terminal.

    For a LoRA adapter or a training run, npukit finds the base model itself. In the conversation, /help lists the
    commands. Options that are not given come from the model's generation_config.json; without one, the likeliest token
    is always chosen. LLaMA-Factory's `chat` YAML and options work unchanged.

    Examples:
        npukit chat Qwen/Qwen2-0.5B-Instruct
        npukit chat run/checkpoint-100 --temperature 0.7  # a LoRA adapter, with its base model
    """
    from npukit.inference.start import start
    from npukit.launch.devices import choose

    start("chat", use, choose(device, 1, card))
