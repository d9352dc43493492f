"""GPT-2: learned positions, layer norms with biases, and transposed weight matrices (Conv1D)."""

from npukit.llm.families.family import Config, Dimensions, Family, Shapes


def dimensions(config: Config) -> Dimensions:
    """Read the sizes under GPT-2's own names."""
    hidden, heads = config["n_embd"], config["n_head"]
    inner = config.get("n_inner") or 4 * hidden
    return Dimensions(config["n_layer"], hidden, inner, heads, heads, hidden // heads, config["vocab_size"])


def shapes(config: Config) -> Shapes:
    """Return the shapes of the weights. The output layer is always the embedding."""
    sizes = dimensions(config)
    hidden = sizes.hidden
    shapes: Shapes = {
        "transformer.wte.weight": (sizes.vocabulary, hidden),
        "transformer.wpe.weight": (config.get("n_positions", 1024), hidden),
        "transformer.ln_f.weight": (hidden,),
        "transformer.ln_f.bias": (hidden,),
    }
    matrices = {"attn.c_attn": (hidden, 3 * hidden), "attn.c_proj": (hidden, hidden)}
    matrices |= {"mlp.c_fc": (hidden, sizes.intermediate), "mlp.c_proj": (sizes.intermediate, hidden)}
    for number in range(sizes.layers):
        layer = f"transformer.h.{number}."
        for name, shape in matrices.items():
            shapes |= {f"{layer}{name}.weight": shape, f"{layer}{name}.bias": shape[1:]}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{layer}{name}.weight": (hidden,), f"{layer}{name}.bias": (hidden,)}
    return shapes


FAMILY = Family(dimensions=dimensions, shapes=shapes)
