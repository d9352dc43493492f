"""Token ids and labels of LLaMA-Factory's and ms-swift's own code beside npukit's, row by row, template by template.

Two tokenizers are made on the spot, one byte-level (as Qwen's and Llama 3's) and one that marks words with a leading
space (as Llama 2's and Gemma's); both have every control token of the templates.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from npukit.llm.chat.peers import llama_factory, ms_swift
from npukit.llm.chat.peers.data import BadTurns, table
from npukit.llm.chat.peers.tools import names

TEXTS = (
    "Hello", "", " ", " leading", "trailing ", "\nline\n", "two\n\nlines", "你好\u3000世界", "emoji 🎉", "tab\tand  2",
    "a" * 300, "1 + 1 = 2", "<think>\nsome\n</think>\n\nanswer", "<think>\n\n</think>\n\nempty",
    "{{content}} {{QUERY}}", "end<|im_end|>", "x</s>", "ünïcode ß", "def f(x):\n    return x", "\u200bzero width",
)  # fmt: skip
CONTROL = re.compile(r"<[^\s<>{}]{1,40}>|\[/?(?:INST|gMASK|SYSTEM_PROMPT|AVAILABLE_TOOLS)\]|\[gMASK\]")
CORPUS = [
    "a a a a a a a a",
    "Hello world, this is a question and an answer. 你好世界",
    "def f(x): return x + 1\n\n",
    *TEXTS,
]


def rows() -> list[list[dict[str, str]]]:
    """Sixty odd conversations: every text as question and as answer, with and without system, one to three rounds."""
    drawn = []
    for number, text in enumerate(TEXTS):
        other = TEXTS[(number * 7 + 3) % len(TEXTS)]
        drawn.append([user(text), assistant(other)])
        drawn.append([system(other or "Be brief."), user("Why?"), assistant(text)])
        drawn.append([user("Hi"), assistant(text), user(text), assistant(other), user("Go on"), assistant("Done.")])
    return drawn


def described(name: str, **parameters: dict[str, Any]) -> dict[str, Any]:
    about = {"type": "object", "properties": parameters, "required": sorted(parameters)[:1]}
    return {"name": name, "description": f'Does {name}: "now".', "parameters": about}


WEATHER = described(
    "weather", city={"type": "string", "description": "城市 🎉"}, unit={"type": "string", "enum": ["C", "F"]}
)
ADD = described("add", numbers={"type": "array", "items": {"type": "number"}, "description": "what to add"})
NOTHING = described("nothing")
TOOLS_OF_ROWS: tuple[list[dict[str, Any]], ...] = (
    [WEATHER],
    [{"type": "function", "function": WEATHER}, {"type": "function", "function": ADD}],
    [ADD, WEATHER, NOTHING],
    [{"type": "function", "function": {**ADD, "strict": True}}],
    [],
)
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"city": "北京 \"west\""}, {}, {"numbers": [1, 2.5, -3], "exact": True, "of": None},
    {"q": "a<b & c\nd", "deep": {"x": [1, {"y": "z"}]}},
)  # fmt: skip


def agent_rows() -> list[list[dict[str, str]]]:
    """Thirty conversations with tools: one call, several at once, several rounds, with words or a thought before."""
    drawn = []
    for number in range(30):
        called = [
            json.dumps({"name": f"tool_{at}", "arguments": ARGUMENTS[(number + at) % 4]}, ensure_ascii=number % 2 == 0)
            for at in range(3)
        ]
        text = TEXTS[(number * 3 + 1) % len(TEXTS)]
        begin = [{"role": "tools", "content": json.dumps(TOOLS_OF_ROWS[number % 5], ensure_ascii=False)}]
        begin += [system(text or "Be brief.")] if number % 3 == 0 else []
        begin += [user(TEXTS[number % len(TEXTS)])]
        end = [assistant(TEXTS[(number * 7) % len(TEXTS)])]
        call, second, third = ({"role": "call", "content": content} for content in called)
        results = [{"role": "result", "content": content} for content in ('{"t": 21}', text or "none", "two\n")]
        kinds = [
            [call, results[0]],
            [call, results[1], *end, user("And now?"), second, results[0]],
            [{"role": "call", "content": f"<think>\nhm\n</think>\n\n{called[0]}"}, results[2]],
            [{"role": "call", "content": f"[{called[0]}, {called[1]}]"}, results[0], third, results[1]],
            [assistant("Let me see.\nAction: look\nAction Input: {}"), results[0], assistant("Hm."), results[1]],
        ]
        drawn.append([*begin, *kinds[number // 6], *end])
    return drawn


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def tokenizer(kind: str, control: list[str]) -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if kind == "letters":  # the same everywhere, for what is recorded
        made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    else:
        made = Tokenizer(models.BPE(unk_token=None if kind == "bytes" else "<unk>"))
    if kind == "words":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    if kind != "letters":
        start = alphabet if kind == "bytes" else []
        trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"], initial_alphabet=start)
        made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens([AddedToken(token, normalized=False) for token in ["<s>", "</s>", *control]])
    if kind == "words":
        bos = made.token_to_id("<s>")
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    whole = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    whole.user_token_id, whole.bot_token_id = 5, 6  # telechat's tokenizer has such
    return whole


def control_tokens(tool: Any) -> list[str]:
    stops = {word for template in table(tool)["templates"].values() for word in template.get("stop_words", ())}
    return sorted({*CONTROL.findall(json.dumps(table(tool)["templates"], ensure_ascii=False)), *stops})


Encode = Callable[[list[dict[str, str]]], tuple[list[int], list[int]] | None]


def of_llama_factory(name: str, given: Any, cutoff: int, **options: Any) -> tuple[Encode, Encode]:
    from llamafactory.data.mm_plugin import get_mm_plugin
    from llamafactory.data.processor.supervised import SupervisedDatasetProcessor
    from llamafactory.data.template import TEMPLATES

    template = copy.deepcopy(TEMPLATES[name])
    template.mm_plugin = get_mm_plugin("base")
    template.enable_thinking = options.get("thinking", True)
    own = copy.deepcopy(given)
    template.fix_special_tokens(own)
    arguments = SimpleNamespace(
        cutoff_len=cutoff,
        mask_history=options.get("last_answer_only", False),
        train_on_prompt=options.get("train_on_prompt", False) and not template.efficient_eos,
    )
    processor = SupervisedDatasetProcessor(template, own, None, arguments)

    def theirs(turns: list[dict[str, str]]) -> tuple[list[int], list[int]] | None:
        tools, text = (
            "".join(turn["content"] for turn in turns if turn["role"] == role) for role in ("tools", "system")
        )
        names = {"call": "function", "result": "observation"}
        rest = [{**turn, "role": names.get(turn["role"], turn["role"])} for turn in turns]
        rest = [turn for turn in rest if turn["role"] not in ("tools", "system")]
        try:
            encoded: tuple[list[int], list[int]] = processor._encode_data_example(
                rest[:-1], rest[-1:], text, tools, [], [], []
            )
        except (ValueError, RuntimeError, KeyError):  # a run of it ends here
            return None
        return encoded

    slots = llama_factory.slots_named(name)
    assert slots
    options["train_on_prompt"] = arguments.train_on_prompt
    return theirs, _or_none(llama_factory.Writer(slots, copy.deepcopy(given), cutoff, **options).row)


def _or_none(write: Callable[[Any], Any]) -> Encode:
    def ours(turns: list[dict[str, str]]) -> Any:
        try:
            return write(turns)
        except BadTurns:
            return None

    return ours


def of_ms_swift(
    name: str, given: Any, cutoff: int, agent: str | None = None, weigh: str = "", **options: Any
) -> tuple[Encode, Encode]:
    from swift.template import TEMPLATE_MAPPING

    meta = TEMPLATE_MAPPING[name]
    own = copy.deepcopy(given)
    own.model_info = SimpleNamespace(task_type="causal_lm", config=None, max_model_len=None)
    own.model_meta = SimpleNamespace(is_multimodal=False, is_reward=False)
    base = "last_round" if options.get("last_answer_only") else "all" if options.get("train_on_prompt") else "default"
    scale = base if options.get("train_on_empty_thought", True) else f"{base}+ignore_empty_think"
    scale = f"{scale}+{weigh}" if weigh else scale
    thinks = options.get("thinking")
    template = meta.template_cls(own, meta, loss_scale=scale, enable_thinking=thinks, agent_template=agent)
    template.set_mode("train")
    if template._agent_template:  # otherwise results are written as ChatML until a row with tools has come
        template.agent_template.template_meta = meta

    def theirs(turns: list[dict[str, str]]) -> Any:
        names = {"call": "tool_call", "result": "tool"}
        messages = [{**turn, "role": names.get(turn["role"], turn["role"])} for turn in turns]
        row: dict[str, Any] = {"messages": [turn for turn in messages if turn["role"] != "tools"]}
        if turns[0]["role"] == "tools":
            row["tools"] = json.loads(turns[0]["content"])
        try:
            encoded = template.encode(row)
        except (AssertionError, ValueError, TypeError, KeyError, AttributeError):
            return None
        weights = encoded.get("loss_scale") or [label != -100 for label in encoded["labels"]]
        return encoded["input_ids"], encoded["labels"], *([[int(weight) for weight in weights]] if weigh else [])

    known = ms_swift.meta_named(name)
    assert known
    known = dataclasses.replace(known, agent=agent or known.agent)
    writer = ms_swift.Writer(known, given, weigh=[weigh] if weigh else [], **options)
    return theirs, _or_none(writer.weighed_row if weigh else writer.row)


TOOLS = {"llama_factory": of_llama_factory, "ms_swift": of_ms_swift}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "llama_factory": [
        {},
        {"last_answer_only": True},
        {"thinking": False},
        {"thinking": None},
        {"train_on_prompt": True},
    ],
    "ms_swift": [{}, {"last_answer_only": True}, {"train_on_prompt": True}, {"train_on_empty_thought": False}],
}


# Of rows with tools: LLaMA-Factory's own format of each template; ms-swift's agents with a template of each kind.
AGENTS = [{"agent": agent} for agent in names("ms_swift")]
WEIGHED = [
    {"agent": agent, "weigh": weigh}
    for agent, weigh in (
        ("react_en", "react"),
        ("hermes", "hermes"),
        ("qwen_en", "qwen"),
        ("toolbench", "alpha_umi"),
        ("hermes", "ignore_think_prefix"),
    )
]
TOOL_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "llama_factory": [{}, {"last_answer_only": True}, {"thinking": False}],
    "ms_swift": [{}, {"last_answer_only": True}, *AGENTS, *WEIGHED],
}
RECORDED = {
    "llama_factory": ("alpaca", "deepseek3", "gemma2", "glm4", "llama2", "llama3", "mistral", "phi4", "qwen", "qwen3"),
    "ms_swift": ("chatml", "deepseek_r1", "gemma3_text", "llama", "llama3", "mistral_nemo", "qwen2_5", "qwen3"),
}


RECORDED_TOOLS = {
    "llama_factory": ("alpaca", "gemma4", "glm4", "glm4_moe", "mistral", "phi4_mini", "qwen3", "seed_oss"),
    "ms_swift": ("chatml", "llama3", "qwen3"),
}


def in_short(row: Any, tokenizer: Any) -> dict[str, Any]:
    """What holds a long row: its text, and a digest of its ids, labels and weights."""
    if row is None:
        return {"text": None, "digest": None}
    numbers = json.dumps([list(map(int, part)) for part in row])
    return {"text": tokenizer.decode(row[0]), "digest": hashlib.sha256(numbers.encode()).hexdigest()[:16]}


def record(tool: str) -> list[dict[str, Any]]:
    """What the tool makes of some rows, for CI, which has no such tool."""
    recorded = []
    made = tokenizer("letters", control_tokens(tool))
    for name in RECORDED[tool]:
        for options, number in itertools.product(OPTIONS[tool][:3], (1, 19, 38)):
            theirs, _ = TOOLS[tool](name, made, 48, **options)
            turns = rows()[number]
            recorded.append({"tool": tool, "template": name, "options": options, "turns": turns, "row": theirs(turns)})
    for name, (number, turns) in itertools.product(RECORDED_TOOLS[tool], enumerate(agent_rows()[::4])):
        options = TOOL_OPTIONS[tool][(number * 5) % len(TOOL_OPTIONS[tool])]
        theirs, _ = TOOLS[tool](name, made, 2048, **options)
        case = {"tool": tool, "template": name, "options": options, "tools_row": number * 4}
        recorded.append({**case, **in_short(theirs(turns), made)})
    return recorded


def compare(tool: str, with_tools: bool, only: str) -> Iterator[tuple[str, int, int, str]]:
    control = control_tokens(tool)
    kinds = {kind: tokenizer(kind, control) for kind in ("bytes", "words")}
    for name in table(tool)["templates"] if not only else [only]:
        same = total = 0
        first = ""
        options_of = TOOL_OPTIONS if with_tools else OPTIONS
        for (kind, made), options, cutoff in itertools.product(kinds.items(), options_of[tool], (2048, 64)):
            if cutoff < 2048 and tool == "ms_swift":
                continue  # it drops such rows, which is not this module's
            theirs, ours = TOOLS[tool](name, made, cutoff, **options)
            for number, turns in enumerate(agent_rows() if with_tools else rows()):
                expected, actual = theirs(turns), ours(turns)
                total += 1
                same += expected == actual
                if expected != actual and not first:
                    first = f"{kind} {options} cutoff {cutoff} row {number}\n   {expected}\n   {actual}"
        yield name, same, total, first


def show(tool: str, with_tools: bool, only: str, details: bool) -> None:
    """Compare, and print which templates differ; `details` adds the first row that does."""
    templates = same_rows = all_rows = same_templates = 0
    for name, same, total, first in compare(tool, with_tools, only):
        templates, same_templates = templates + 1, same_templates + (same == total)
        same_rows, all_rows = same_rows + same, all_rows + total
        if same < total:
            print(f"{name}: {same} of {total} rows equal", first if details else "", sep="\n   ", flush=True)
    print(f"{tool}: {same_templates} of {templates} templates agree in every row; {same_rows:,} of {all_rows:,} rows")
