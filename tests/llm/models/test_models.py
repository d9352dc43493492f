"""Packed rows and the chunked loss compute what transformers computes row by row."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import nn
from torch._functorch import config as functorch_config
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    GlmConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from npukit.errors import NpukitError
from npukit.llm.config.options import ModelOptions, TuningOptions
from npukit.llm.data.collate import Collator
from npukit.llm.data.rows import packed_row
from npukit.llm.models import attention
from npukit.llm.models import loss as losses
from npukit.llm.models.flops import flops_per_token
from npukit.llm.models.forward import return_loss
from npukit.llm.models.loading import load_model
from npukit.llm.models.loss import cross_entropy_of, give_loss, sampled_log_probabilities
from npukit.llm.models.quantized import QuantizedLinear, quantize
from npukit.llm.models.tuning import compute_again, rate_groups, tune
from npukit.llm.tasks.losses.tokens import loss_of

LLAMA_LIKE = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GPT2 = GPT2Config(vocab_size=101, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)
SHAPES = {
    "qwen2": Qwen2Config(**LLAMA_LIKE),
    "qwen3": Qwen3Config(**LLAMA_LIKE, head_dim=8),
    "llama": LlamaConfig(**LLAMA_LIKE),
    "mistral": MistralConfig(**LLAMA_LIKE, sliding_window=3),
    "glm": GlmConfig(**LLAMA_LIKE, head_dim=8),
    "gpt2": GPT2,
    **{kind: AutoConfig.for_model(kind, **LLAMA_LIKE) for kind in ("olmo2", "phi3", "smollm3")},
    **{
        kind: AutoConfig.for_model(kind, **LLAMA_LIKE, head_dim=8) for kind in ("ernie4_5", "gemma", "glm4", "seed_oss")
    },
    **{kind: AutoConfig.for_model(kind, **LLAMA_LIKE, **EXPERTS) for kind in ("mixtral", "qwen2_moe", "qwen3_moe")},
}


def make(config: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    return model.eval()  # no dropout, of which GPT-2 has some


def packed(rows: list[torch.Tensor], length: int) -> dict[str, Any]:
    row = packed_row([row.numpy() for row in rows], length, pad_id=0)
    batch: dict[str, Any] = Collator(True, 0, length, finds_labels=True)([row])
    return batch


def teach(model: Any) -> Any:
    attention.register()
    model.set_attn_implementation(attention.NAME)
    return_loss(model)
    return model


@pytest.mark.parametrize("lengths", [(5, 9, 3), (8, 8)], ids=["rows of three lengths", "rows alike"])
@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_packed_rows_have_the_loss_and_gradients_of_rows_alone(config: Any, lengths: tuple[int, ...]) -> None:
    expected_model = make(config)
    model = teach(copy.deepcopy(expected_model))
    rows = [torch.randint(1, 101, (length,)) for length in lengths]
    losses = [expected_model(input_ids=row[None], labels=row[None]).loss * (len(row) - 1) for row in rows]
    expected = sum(losses) / (sum(lengths) - len(rows))
    expected.backward()
    full = sum(lengths) + (0 if len(set(lengths)) == 1 else 4)  # with padding, and without
    loss = loss_of(model, packed(rows, full), longest=full)
    loss.backward()
    assert abs(loss.item() - expected.item()) < 1e-5
    for (name, ours), theirs in zip(model.named_parameters(), expected_model.parameters(), strict=True):
        torch.testing.assert_close(
            ours.grad, theirs.grad, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("key_heads", [2, 1])
def test_heads_attend_inside_of_groups_half_of_which_are_shifted(key_heads: int) -> None:
    """In training alone; beside transformers' own forward with such a mask, of one row at a time."""
    config = AutoConfig.for_model("llama", **LLAMA_LIKE | {"num_key_value_heads": key_heads})
    expected_model = make(config)
    model = teach(copy.deepcopy(expected_model)).train()
    rows, size = [torch.randint(1, 101, (length,)) for length in (13, 3, 8)], 4
    losses = []
    for row in rows:
        place = torch.arange(len(row))
        groups = torch.stack([place // size] * 2 + [(place + size // 2) // size] * 2)
        sees = (groups[:, :, None] == groups[:, None]) & (place[:, None] >= place)
        losses.append(expected_model(row[None], attention_mask=sees[None], labels=row[None]).loss * (len(row) - 1))
    expected = sum(losses) / sum(len(row) - 1 for row in rows)
    expected.backward()
    batch = Collator(True, 0, 28, group=size)([packed_row([row.numpy() for row in rows], 28, pad_id=0)])
    loss = loss_of(model, batch, longest=28)
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    for ours, theirs in zip(model.parameters(), expected_model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)
    whole = loss_of(model.eval(), packed(rows, 28), longest=28)
    assert loss_of(model, batch, longest=28).item() == whole.item() != pytest.approx(loss.item(), abs=1e-3)


class AsksTheDevice(TorchDispatchMode):
    """Counts the operators for whose result the host waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._opname in {"_local_scalar_dense", "equal", "nonzero", "unique", "masked_select"}:
            self.asked.append(func._opname)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_the_host_waits_for_nothing_in_a_step(config: Any) -> None:
    model = teach(make(config))
    batch = packed([torch.randint(1, 101, (length,)) for length in (5, 9, 3)], 20)
    with AsksTheDevice() as watch:
        loss_of(model, batch, longest=20).backward()
    assert watch.asked == []


def test_no_row_sees_another() -> None:
    model = teach(make(SHAPES["qwen2"]))
    first, second = torch.randint(1, 101, (6,)), torch.randint(1, 101, (7,))
    other = first.clone()
    other[2] = (other[2] + 1) % 100 + 1
    batches = [packed([row, second], 13) for row in (first, other)]
    for batch in batches:
        batch["labels"][:, :6] = -100  # the second row's loss alone
    same = [loss_of(model, batch, longest=13).item() for batch in batches]
    assert same[0] == same[1]
    batch = packed([torch.cat([other, second])], 13)
    batch["labels"][:, :7] = -100
    assert abs(loss_of(model, batch, longest=13).item() - same[0]) > 1e-4, "as one row, the second would see the first"


def test_a_model_with_a_scaled_head_keeps_it() -> None:
    config = Gemma2Config(**LLAMA_LIKE, head_dim=8, final_logit_softcapping=0.1)
    expected, model = make(config), make(config)
    return_loss(model)
    row = torch.randint(1, 101, (1, 9))
    torch.testing.assert_close(model(input_ids=row, labels=row), expected(input_ids=row, labels=row).loss)


def test_without_labels_a_taught_model_still_answers() -> None:
    expected, model = make(SHAPES["llama"]), make(SHAPES["llama"])
    return_loss(model)
    row = torch.randint(1, 101, (1, 9))
    torch.testing.assert_close(model(input_ids=row).logits, expected(input_ids=row).logits)


@pytest.mark.parametrize("words", [64, 101])
def test_the_chunked_loss_is_the_loss(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npukit.llm.models.loss.CHUNK", 7 * words)
    hidden = torch.randn(30, 16, requires_grad=True)
    weight = torch.randn(words, 16, requires_grad=True)
    labels = torch.randint(0, words, (30,))
    labels[::3] = -100
    ours = torch.autograd.grad(cross_entropy_of(hidden, weight, labels) * 3, (hidden, weight))
    expected = torch.autograd.grad(F.cross_entropy(hidden @ weight.T, labels) * 3, (hidden, weight))
    torch.testing.assert_close(ours, expected)
    places = (labels != -100).nonzero().flatten()
    at_places = cross_entropy_of(hidden, weight, labels, places)
    torch.testing.assert_close(torch.autograd.grad(at_places * 3, (hidden, weight)), expected)
    of_some = cross_entropy_of(hidden, weight, labels, places[:4])
    torch.testing.assert_close(of_some, F.cross_entropy((hidden @ weight.T)[places[:4]], labels[places[:4]]))
    for none in (None, places[:0]):
        nothing = cross_entropy_of(hidden, weight, torch.full_like(labels, -100), none)
        assert nothing.item() == 0 and not torch.autograd.grad(nothing, hidden)[0].any()


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("words", [64, 70])
def test_log_probabilities_and_entropies_of_samples(
    words: int, is_trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that is not trained makes its logits once: its gradient is computed while they are there."""
    monkeypatch.setattr(losses, "CHUNK", 8 * words)
    head = nn.Linear(16, words, bias=False).requires_grad_(is_trained)
    give_loss(head)
    made: list[int] = []
    compute = losses.likelihood_and_gradient

    def counted(logits: Any, *more: Any) -> Any:
        made.append(len(logits))
        return compute(logits, *more)

    monkeypatch.setattr(losses, "likelihood_and_gradient", counted)
    hidden, labels = torch.randn(30, 16, requires_grad=True), torch.randint(0, words, (30,))
    logprobs, entropies = sampled_log_probabilities(head, hidden, labels, 0.7)
    exact = hidden.detach().double().requires_grad_()
    expected = (exact @ head.weight.double().T / 0.7).log_softmax(-1)
    torch.testing.assert_close(logprobs.double(), expected[torch.arange(30), labels], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies.double(), -(expected.exp() * expected).sum(-1), atol=1e-5, rtol=1e-5)
    assert not entropies.requires_grad and made == ([] if is_trained else [8, 8, 8, 6])
    factors = torch.randn(30)
    (logprobs * factors).sum().backward()
    (expected[torch.arange(30), labels] * factors).sum().backward()
    assert hidden.grad is not None and exact.grad is not None and (head.weight.grad is not None) == is_trained
    torch.testing.assert_close(hidden.grad.double(), exact.grad, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(sampled_log_probabilities(head, hidden, labels, 0.7)[0], logprobs)


def test_small_gradients_survive_fp16() -> None:
    """Each of 60,000 tokens has a share of the mean that fp16 does not have, unless the loss is scaled first."""
    hidden = torch.randn(60000, 4).half().requires_grad_()
    weight = torch.randn(64, 4).half() * 1e-2
    labels = torch.randint(0, 64, (60000,))
    (cross_entropy_of(hidden, weight, labels) * 65536).backward()
    precise = hidden.detach().float().requires_grad_()
    (F.cross_entropy(precise @ weight.float().T, labels) * 65536).backward()
    assert hidden.grad is not None and precise.grad is not None
    torch.testing.assert_close(hidden.grad.float(), precise.grad, atol=1e-4, rtol=2e-2)


def options(**tuning: Any) -> tuple[TuningOptions, ModelOptions]:
    return TuningOptions(**tuning), ModelOptions(path="made here")


def test_an_adapter_is_trained_alone_and_the_head_may_be_trained_whole() -> None:
    model = make(SHAPES["qwen2"])
    return_loss(model)
    tuned = tune(model, *options(rank=4, modules_to_save=["lm_head"]))
    row = torch.randint(1, 101, (1, 9))
    tuned(input_ids=row, labels=row).backward()
    trained = {name for name, parameter in tuned.named_parameters() if parameter.grad is not None}
    assert any("lm_head" in name for name in trained), "the copy of the head that is trained must be the one in use"
    assert all("lora_" in name or "lm_head" in name for name in trained)
    assert sum("lora_A" in name for name in trained) == 14, "seven linear layers in each of two layers"


def test_what_is_trained_beside_an_adapter_is_trained_in_fp32() -> None:
    model = make(GPT2).to(torch.bfloat16)
    return_loss(model)
    tuned = tune(model, *options(bias="all", modules_to_save=["lm_head"]))
    trained = {p.dtype for p in tuned.parameters() if p.requires_grad}
    kept = {p.dtype for p in tuned.parameters() if not p.requires_grad and p.dim() > 1}
    assert (trained, kept) == ({torch.float32}, {torch.bfloat16})
    row = torch.randint(1, 101, (1, 9))
    with torch.autocast("cpu", torch.bfloat16):
        tuned(input_ids=row, labels=row).backward()


def test_an_adapter_on_the_head_counts_too() -> None:
    model = make(SHAPES["qwen2"])
    return_loss(model)
    tuned = tune(model, *options(targets=["lm_head"]))
    row = torch.randint(1, 101, (1, 9))
    tuned(input_ids=row, labels=row).backward()
    assert any("lm_head" in name for name, weight in tuned.named_parameters() if weight.grad is not None)


def test_freezing_trains_the_last_layers() -> None:
    model = tune(make(SHAPES["qwen2"]), *options(method="freeze", layers=1))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith("model.layers.1.")}
    with pytest.raises(NpukitError, match="has 2 layers"):
        tune(model, *options(method="freeze", layers=3))


def test_targets_that_are_not_there_are_named_with_those_that_are() -> None:
    with pytest.raises(NpukitError, match=r"down_proj, gate_proj, .*q_proj"):
        tune(make(SHAPES["qwen2"]), *options(targets=["query_key_value"]))


def test_the_work_of_a_token_is_counted() -> None:
    model = make(SHAPES["qwen2"])
    body = sum(p.numel() for name, p in model.named_parameters() if p.dim() > 1 and "embed" not in name)
    assert flops_per_token(model) == 6 * body
    model.requires_grad_(False)
    assert flops_per_token(model) == 4 * body


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("oft", {"oft_block_size": 8}),
        ("boft", {"boft_block_size": 4}),
        ("fourierft", {"n_frequency": 50}),
        ("adalora", {"init_r": 4, "target_r": 2}),
        *((name, {}) for name in ("vera", "loha", "lokr", "ia3", "miss", "hra")),
    ],
)
def test_other_adapters_of_peft_learn(method: str, more: dict[str, Any]) -> None:
    model = make(SHAPES["qwen2"])
    return_loss(model)
    targets = ["q_proj", "o_proj"]  # VeRA's matrices are shared by all
    tuned = tune(model, *options(method=method, rank=4, targets=targets, peft=more))
    ids = torch.randint(0, 60, (2, 8))
    optimizer = torch.optim.SGD([parameter for parameter in tuned.parameters() if parameter.requires_grad], lr=1.0)
    losses = []
    for _ in range(3):
        loss = tuned(input_ids=ids, labels=ids)
        losses.append(float(loss))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]
    frozen = [name for name, value in tuned.named_parameters() if not value.requires_grad]
    assert any("q_proj" in name for name in frozen)


def test_a_body_with_another_name_than_the_model_says() -> None:
    """Llama 4's language model alone."""
    experts = {"num_local_experts": 4, "moe_layers": [1], "intermediate_size_mlp": 48, "no_rope_layers": [1, 0]}
    model = make(AutoConfig.for_model("llama4_text", **LLAMA_LIKE, **experts, head_dim=8))
    ids = torch.randint(1, 100, (2, 9))
    expected = model(input_ids=ids, labels=ids).loss
    return_loss(model)
    torch.testing.assert_close(model(input_ids=ids, labels=ids), expected)


@pytest.mark.parametrize("joined", [True, False])
def test_the_largest_score_of_attention_is_noted(joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    attention.register()
    model, bounds, plain = make(SHAPES["qwen3"]), [], F.scaled_dot_product_attention
    model.set_attn_implementation(attention.NAME if joined else "sdpa")
    attention.watch_scores(model, torch.device("cpu"))

    def noting(query: Any, key: Any, *args: Any, **options: Any) -> Any:
        bounds.append(query.norm(dim=-1).max() * key.norm(dim=-1).max() * options["scale"])
        return plain(query, key, *args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noting)
    rows = [torch.arange(1, 9), torch.arange(20, 28)]
    batch = packed(rows, 16) if joined else {"input_ids": torch.stack(rows)}
    batch.pop("labels", None)
    largest = model.model.layers[0].self_attn.largest_score
    model(**batch)
    assert largest == 0  # outside of training
    bounds.clear()
    model.train()(**batch)
    torch.testing.assert_close(largest, max(bounds).detach())


def test_an_option_that_the_adapter_does_not_have() -> None:
    with pytest.raises(NpukitError, match="PEFT's oft has no option block"):
        tune(make(SHAPES["qwen2"]), *options(method="oft", peft={"block": 8}))


def test_first_layers_parts_of_layers_and_noise() -> None:
    model = tune(make(SHAPES["qwen2"]), *options(method="freeze", layers=-1, layer_modules=["mlp"], noise=5.0))
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained and all(".layers.0.mlp." in name for name in trained)
    table, ids = model.get_input_embeddings(), torch.tensor([[1, 2, 3]])
    model.train()
    noisy, size = table(ids) - table.weight[ids], 5.0 / (3 * table.weight.shape[1]) ** 0.5
    assert 0 < float(noisy.abs().max()) <= size
    model.eval()
    assert torch.equal(table(ids), table.weight[ids])


def test_new_layers_change_nothing_until_they_are_trained() -> None:
    model, ids = make(SHAPES["qwen2"]), torch.randint(0, 60, (2, 8))
    before = model(ids).logits
    grown = tune(model, *options(method="freeze", new_layers=2))
    assert torch.equal(grown(ids).logits, before) and grown.config.num_hidden_layers == 4
    trained = {name.split(".")[2] for name, value in grown.named_parameters() if value.requires_grad}
    assert trained == {"1", "3"} and len(grown.config.layer_types) == 4
    with pytest.raises(NpukitError, match="divide"):
        tune(make(SHAPES["qwen2"]), *options(method="freeze", new_layers=3))


def test_adalora_counts_how_far_it_is_from_orthogonal() -> None:
    model, ids = make(SHAPES["qwen2"]), torch.randint(0, 60, (2, 8))
    return_loss(model)
    plain = float(model(input_ids=ids, labels=ids))
    tuned = tune(model, *options(method="adalora", peft={"orth_reg_weight": 0.5}))
    matrices = [value for name, value in tuned.named_parameters() if "lora_A" in name or "lora_B" in name]
    squares = [matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix for matrix in matrices]
    away = sum(float(torch.linalg.norm(square - torch.eye(len(square)))) for square in squares) / len(squares)
    assert float(tuned(input_ids=ids, labels=ids)) == pytest.approx(plain + 0.5 * away, rel=1e-4)


def test_stretched_positions(tmp_path: Path) -> None:
    make(SHAPES["qwen2"]).save_pretrained(tmp_path)
    wanted = ModelOptions(path=str(tmp_path), rope={"rope_type": "yarn"}, length=100)
    stretched, enough = (
        load_model(wanted.model_copy(update={"length": length}), str(tmp_path), torch.float32, None)
        for length in (100, 64)
    )
    assert stretched.config.max_position_embeddings == 128 and stretched.config.rope_parameters["factor"] == 2.0
    assert enough.config.rope_parameters["rope_type"] == "default"
    slowest = [float(model.model.rotary_emb.inv_freq[-1]) for model in (stretched, enough)]
    assert slowest[0] == pytest.approx(slowest[1] / 2, rel=1e-3)


def test_lora_plus_has_a_rate_for_each_matrix() -> None:
    tuned = tune(make(SHAPES["qwen2"]), *(chosen := options(rank=4, plus_ratio=16.0)))
    groups = rate_groups(tuned, chosen[0], 1e-3, 0.1)
    assert groups and {group["lr"] for group in groups} == {1e-3, 16e-3}
    assert sum(len(group["params"]) for group in groups) == sum(
        parameter.requires_grad for parameter in tuned.parameters()
    )


def test_experts_are_balanced_as_transformers_does() -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 60}
    config = Qwen3MoeConfig(**small, **heads, num_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.5)
    model = Qwen3MoeForCausalLM(config)
    ids = torch.randint(0, 60, (2, 8))
    expected = model(input_ids=ids, labels=ids, output_router_logits=True).loss
    return_loss(model, balance_experts=0.5)
    assert torch.allclose(model(input_ids=ids, labels=ids), expected, atol=1e-5)


@pytest.mark.parametrize(("kind", "error"), [("nf4", 0.16), ("int8", 0.008), ("hqq", 0.1)])
def test_quantised_weights_below_an_adapter(kind: Any, error: float) -> None:
    """Weights come back within their step, and a layer's gradients are those of the weight that came back."""
    torch.manual_seed(0)
    layer, hidden = torch.nn.Linear(70, 30), torch.randn(5, 70, requires_grad=True)
    small = QuantizedLinear(layer, kind)
    weight = small.unpacked(torch.float32)
    assert float((weight - layer.weight.detach()).abs().max() / layer.weight.detach().abs().max()) < error
    wanted = F.linear(hidden, weight, layer.bias)
    assert torch.allclose(small(hidden), wanted, atol=1e-5)
    (gradient,) = torch.autograd.grad(small(hidden).square().sum(), hidden)
    assert torch.allclose(gradient, torch.autograd.grad(wanted.square().sum(), hidden)[0], atol=1e-4)
    model = make(SHAPES["qwen2"])
    whole = sum(parameter.numel() * parameter.element_size() for parameter in model.model.layers.parameters())
    quantize(model, kind, torch.device("cpu"))
    kept = sum(parameter.numel() * parameter.element_size() for parameter in model.model.layers.parameters())
    assert kept < whole * {"nf4": 0.2, "int8": 0.3, "hqq": 0.2}[kind]
    return_loss(model)
    tuned = tune(model, *options(rank=4))
    ids = torch.randint(0, 60, (2, 8))
    tuned(input_ids=ids, labels=ids).backward()
    assert any(parameter.grad is not None and float(parameter.grad.abs().sum()) for parameter in tuned.parameters())


def test_a_compiled_layer_keeps_no_unpacked_weight() -> None:
    """QLoRA saves memory also where layers are compiled: only the packed weights wait for the backward pass."""
    layer = QuantizedLinear(torch.nn.Linear(64, 128, bias=False), "nf4")
    hidden, sizes = torch.randn(4, 64, requires_grad=True), []

    def keep(value: torch.Tensor) -> torch.Tensor:
        sizes.append(value.nbytes)
        return value

    compiled = torch.compile(lambda value: layer(value).relu(), backend="aot_eager_decomp_partition")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        compiled(hidden).sum().backward()
    assert max(sizes) <= layer.weight.nbytes
    wanted = torch.autograd.grad(layer(hidden).relu().sum(), hidden)[0]
    assert torch.allclose(hidden.grad, wanted)


def test_a_compiled_layer_computes_activations_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under an adapter only what the two large products gave is kept of the feed-forward part, not what follows."""
    for name in ("used_far_apart", "long_fusible_chains", "materialized_backward"):  # put back after the test
        monkeypatch.setattr(functorch_config, f"ban_recompute_{name}", True)
    model = make(SHAPES["qwen2"])
    layer = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")).base_model.model.model.layers[0].mlp
    wide, tokens, sizes = model.config.intermediate_size, 5, []

    def keep(value: torch.Tensor) -> torch.Tensor:
        sizes.append(tuple(value.shape))
        return value

    compute_again()
    compiled = torch.compile(layer, backend="aot_eager_decomp_partition")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        compiled(torch.randn(1, tokens, model.config.hidden_size, requires_grad=True)).sum().backward()
    assert len([size for size in sizes if size[-2:] == (tokens, wide)]) == 2
