"""npukit chat"""

from __future__ import annotations

from npukit.cli import using
from npukit.cli.options import CardOption, DeviceOption
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted


def chat(
    model: using.ModelArgument,
    adapter: using.AdapterOption = None,
    system: using.SystemOption = None,
    chat_template: using.TemplateOption = None,
    enable_thinking: using.ThinkingOption = None,
    temperature: using.TemperatureOption = None,
    top_p: using.TopPOption = None,
    top_k: using.TopKOption = None,
    min_p: using.MinPOption = None,
    repetition_penalty: using.RepetitionOption = None,
    max_new_tokens: using.TokensOption = using.DEFAULT_TOKENS,
    stop: using.StopOption = None,
    seed: using.SeedOption = 0,
    max_model_len: using.LongestOption = None,
    prompt_lookup: using.LookupOption = 0,
    dtype: using.DtypeOption = "auto",
    trust_remote_code: using.RemoteCodeOption = False,
    allow_pickles: using.PicklesOption = False,
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
) -> None:
    """Talk with a language model in the terminal.

    The folder of a LoRA adapter or a training run names its base model itself. In the conversation, /help lists the
    commands. Options that are not given come from the model's generation_config.json; without one, the likeliest
    token is always chosen. LLaMA-Factory's `chat` YAML and options work unchanged.
    """
    from npukit.inference import task
    from npukit.launch.devices import choose

    wanted = task.Wanted(
        model, tuple(adapter or ()), dtype, chat_template, system, trust_remote_code, allow_pickles, enable_thinking
    )
    sampling = using.sampling(temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens)
    stops = tuple(stop or ())
    wish = task.Task(
        "chat", wanted, sampling=sampling, stops=stops, seed=seed, longest=max_model_len, lookup=prompt_lookup
    )
    task.start(wish, choose(device, 1, card))
