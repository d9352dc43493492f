"""How a model is used, as people write it: our words, LLaMA-Factory's and ms-swift's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from npukit.errors import NpukitError
from npukit.inference.server.vllm import vllm_command
from npukit.llm.config.dialects.use import DIALECTS
from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import Mistakes
from npukit.llm.config.schema import options
from npukit.llm.config.use import USED, EngineOptions, Use, Verb
from npukit.llm.reading.read import predicts
from npukit.llm.reading.read_use import own_names, read_use


@pytest.fixture
def run(folder: Path) -> Path:
    """What `npukit train` leaves: an adapter with its tokenizer in a checkpoint, and the record of the run."""
    checkpoint = folder / "run" / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    (checkpoint / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "models/tiny"}))
    (checkpoint / "tokenizer_config.json").write_text("{}")
    data = {"train": "rows.jsonl", "validation": 0.1, "template": "qwen2_5", "system": "Be brief."}
    config = Config(model={"path": "models/tiny"}, data=data, training={"seed": 7})
    (folder / "run" / "npukit.yaml").write_text(yaml.safe_dump(json.loads(config.model_dump_json())))
    return Path("run/checkpoint-5")


def use(verb: Verb, *words: str, **environ: str) -> Use:
    return read_use(verb, words, environ).use


def test_a_folder_whose_name_is_not_utf8_is_served_under_a_name_that_json_can_hold() -> None:
    names = [
        Use(model={"path": f"models/{name}"}).ready_to_serve().serve.served_model_name for name in ("模型", "a\udce9")
    ]
    assert names == [("模型",), ("a\ufffd",)]


def test_our_own_words(folder: Path) -> None:
    used = use("chat", "models/tiny", "--temperature", "0.7", "--max-new-tokens", "64", "--stop", "a", "b")
    assert used.model.path == "models/tiny"
    assert (used.sampling.temperature, used.sampling.max_new_tokens, used.sampling.stop) == (0.7, 64, ("a", "b"))
    assert used.sampling.top_p is None, "as the model's generation_config.json says"


def test_one_name_means_what_the_verb_writes(folder: Path) -> None:
    assert use("infer", "models/tiny", "rows.jsonl", "--output", "out.jsonl").data.output == Path("out.jsonl")
    exported = use("export", "models/tiny", "--output", "out", "--dtype", "bfloat16").export
    assert (exported.output, exported.dtype) == (Path("out"), "bfloat16")


def test_our_own_file(folder: Path) -> None:
    (folder / "x.yaml").write_text("model: {path: models/tiny}\nchat: {system: Be brief.}\nserve: {port: 9000}\n")
    used = use("serve", "x.yaml", "--host", "0.0.0.0")
    assert (used.chat.system, used.serve.port, used.serve.host) == ("Be brief.", 9000, "0.0.0.0")


def test_llama_factory_chat_of_seed_002(folder: Path, run: Path) -> None:
    words = f"--model_name_or_path models/tiny --adapter_name_or_path {run} --template qwen --finetuning_type lora"
    reading = read_use("chat", words.split(), {})
    used = reading.use
    assert reading.dialect == "LLaMA-Factory"
    assert (used.model.path, [adapter.path for adapter in used.adapters]) == ("models/tiny", [str(run)])
    assert used.chat.template == "qwen2_5" and used.chat.tokenizer == str(run)
    sampling = used.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens) == (0.95, 0.7, 50, 1024)


def test_llama_factory_files(folder: Path) -> None:
    (folder / "x.yaml").write_text(
        "model_name_or_path: models/tiny\nadapter_name_or_path: a/b,c/d\ntemplate: llama3\ninfer_backend: huggingface\n"
        "trust_remote_code: true\ndo_sample: false\nexport_dir: out\nexport_size: 2\nexport_device: cpu\nlora_rank: 8\n"
    )
    reading = read_use("export", ["x.yaml", "export_legacy_format=false"], {})
    used = reading.use
    assert [adapter.path for adapter in used.adapters] == ["a/b", "c/d"]
    assert (used.export.output, used.export.shard_size) == (Path("out"), "2GB")
    assert used.sampling.temperature == 0 and used.model.trust_remote_code
    assert any(note.startswith("lora_rank: ") for note in reading.notes), "a key of training is named"


def test_llama_factorys_server_is_set_up_by_variables(folder: Path) -> None:
    words = ("--model_name_or_path", "models/tiny", "--template", "qwen3")
    options = use("serve", *words, API_HOST="0.0.0.0", API_PORT="9", API_KEY="k", API_MODEL_NAME="m").serve
    assert (options.host, options.port, options.api_key, options.served_model_name) == ("0.0.0.0", 9, ("k",), ("m",))
    assert use("serve", *words).serve.host == "127.0.0.1", "nobody is let in by default"


def test_swift_commands_of_seed_004(folder: Path, run: Path) -> None:
    plain = use("infer", "--model", "Qwen/Qwen2-7B-Instruct")
    assert (plain.model.path, plain.model.hub, plain.data.input) == ("Qwen/Qwen2-7B-Instruct", "modelscope", ())
    answered = use("infer", "--adapters", str(run), "--load_data_args", "true")
    assert answered.model.path == "models/tiny", "from the adapter's own file"
    assert answered.data.run and answered.data.run.validation == 0.1 and answered.data.run_seed == 7
    assert (answered.chat.template, answered.chat.system) == ("qwen2_5", "Be brief.")
    assert answered.data.output == run / "infer_result.jsonl", "the merged model's answers have a file of their own"
    merged = use("export", "--adapters", str(run), "--merge_lora", "true")
    assert merged.export.merge_lora and merged.export.output == Path(f"{run}-merged")
    served = use("serve", "--adapters", str(run), "--load_data_args", "true")
    assert [adapter.path for adapter in served.adapters] == [str(run)]


def test_a_runs_folder_is_enough(folder: Path, run: Path) -> None:
    used = use("chat", str(run))
    assert (used.model.path, [adapter.path for adapter in used.adapters]) == ("models/tiny", [str(run)])
    assert used.chat.system == "Be brief."
    assert use("chat", str(run), "--from-run", "false").chat.system is None


def test_swifts_own_record(folder: Path) -> None:
    checkpoint = folder / "v0" / "checkpoint-9"
    checkpoint.mkdir(parents=True)
    (checkpoint / "adapter_config.json").write_text("{}")
    args = {"model": "models/tiny", "template": "qwen3", "system": None, "seed": 3}
    (checkpoint / "args.json").write_text(json.dumps(args))
    (checkpoint / "val_dataset.jsonl").write_text("{}")
    used = use("infer", "--adapters", str(checkpoint), "--load_data_args", "true")
    assert (used.model.path, used.chat.template) == ("models/tiny", "qwen3")
    assert used.data.run and used.data.run.train[0].path.endswith("val_dataset.jsonl")
    (checkpoint / "args.json").write_text(json.dumps({**args, "template": "its_own"}))
    reading = read_use("infer", ["--adapters", str(checkpoint)], {})
    assert reading.use.chat.template is None and any("its_own" in note for note in reading.notes)


def test_swift_flags(folder: Path, run: Path) -> None:
    words = "--adapters one={0} two={0} --infer_backend vllm --vllm_max_model_len 4096 --served_model_name m --port 9"
    used = use("serve", "--model", "models/tiny", *words.format(run).split(), "--stop_words", "x", "--stream", "true")
    assert [(adapter.name, adapter.path) for adapter in used.adapters] == [("one", str(run)), ("two", str(run))]
    assert (used.engine.engine, used.engine.max_model_len) == ("vllm", 4096)
    assert (used.serve.served_model_name, used.serve.port, used.sampling.stop) == (("m",), 9, ("x",))
    data = use(
        "infer", "--model", "models/tiny", "--val_dataset", "rows.jsonl#5", "--metric", "rouge", "--use_hf", "true"
    )
    assert [source.path for source in data.data.input] == ["rows.jsonl#5"]
    assert (data.data.metrics, data.model.hub) == (("rouge", "bleu"), "huggingface")


def test_what_stands_among_vllms_options_and_is_one_of_ours(folder: Path) -> None:
    Path("api.yaml").write_text(
        "model_name_or_path: models/tiny\ntemplate: default\nvllm_config: {kv_cache_dtype: fp8}"
    )
    swift = ["--model", "models/tiny", "--vllm_engine_kwargs", '{"kv_cache_dtype": "fp8", "swap_space": 2}']
    used = [use("serve", "api.yaml"), use("serve", *swift)]
    assert [each.engine.kv_cache_dtype for each in used] == ["fp8", "fp8"]
    assert [each.engine.extra for each in used] == [{}, {"swap_space": 2}]
    with pytest.raises(NpukitError, match="kv_cache_dtype must be one of auto, fp8"):
        use("serve", "--model", "models/tiny", "--vllm_engine_kwargs", '{"kv_cache_dtype": "fp7"}')


def test_vllms_json_for_guessing_tokens_means_our_options(folder: Path) -> None:
    written = {
        '{"method": "mtp", "num_speculative_tokens": 2}': ("mtp", None, 0, 2),
        '{"method": "glm4_moe_mtp"}': ("mtp", None, 0, 4),
        '{"model": "small", "num_speculative_tokens": 3}': (None, "small", 0, 3),
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}': (None, None, 5, 4),
    }
    for text, meant in written.items():
        engine = use("serve", "--model", "models/tiny", "--vllm_speculative_config", text).engine
        plain = engine.with_speculative_config()
        ways = (plain.speculative_method, plain.speculative_model, plain.prompt_lookup, plain.num_speculative_tokens)
        assert ways == meant, text
    for text, match in {
        "mtp": "JSON object",
        '{"method": "eagle3", "num_speculative_tokens": 2}': "--engine vllm",
        '{"method": "mtp", "num_speculative_tokens": 0}': "from 1 to 64",
        '{"method": "mtp", "disable_by_batch_size": 4}': "no disable_by_batch_size",
    }.items():
        with pytest.raises(NpukitError, match=match):
            EngineOptions(speculative_config=text)
    with pytest.raises(NpukitError, match="choose one"):
        EngineOptions(prompt_lookup=3, speculative_config={"method": "mtp"}).with_speculative_config()


def test_vllm_is_told_how_to_guess_tokens() -> None:
    for chosen, told in (
        ({"speculative_config": '{"method": "eagle3", "model": "m"}'}, {"method": "eagle3", "model": "m"}),
        ({"speculative_method": "mtp"}, {"method": "mtp", "num_speculative_tokens": 4}),
        ({"speculative_model": "small"}, {"model": "small", "num_speculative_tokens": 4}),
        ({"prompt_lookup": 2}, {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}),
        ({}, None),
    ):
        asked = Use(model={"path": "m"}, engine={"engine": "vllm", **chosen})
        argv = vllm_command(asked, Path("/opt/vllm/bin/python"), False, {}).argv
        given = [json.loads(argv[at + 1]) for at, word in enumerate(argv) if word == "--speculative-config"]
        assert given == [told] * (told is not None)


def test_what_has_no_effect_is_named(folder: Path) -> None:
    reading = read_use("chat", ["models/tiny", "--port", "9", "--shard-size", "1GB"], {})
    assert [note for note in reading.notes if "--port" in note and "--shard-size" in note]


BROKEN: dict[str, tuple[Verb, list[str], list[str]]] = {
    "misspelt": ("chat", ["models/tiny", "--temprature", "1"], ["--temprature", "temperature"]),
    "misspelt of theirs": (
        "infer",
        ["--model", "models/tiny", "--max_new_token", "1"],
        ["did you mean max_new_tokens?"],
    ),
    "usual name": ("chat", ["models/tiny", "sampling.max_gen_len=1"], ["did you mean max_new_tokens?"]),
    "not a number": ("chat", ["models/tiny", "--temperature", "warm"], ["--temperature must be a number", "'warm'"]),
    "not supported": ("infer", ["--model", "models/tiny", "--num_beams", "4"], ["--num_beams is not supported"]),
    "another engine": ("serve", ["--model", "models/tiny", "--infer_backend", "sglang"], ["sglang is not supported"]),
    "no such model": ("chat", ["models/tinny"], ["there is no folder models/tinny: did you mean models/tiny?"]),
    "no such adapter": ("chat", ["models/tiny", "--adapter", "./nowhere"], ["there is no folder ./nowhere"]),
    "no model": ("chat", [], ["model is missing"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_mistakes_are_told(case: str, folder: Path) -> None:
    verb, words, expected = BROKEN[case]
    with pytest.raises(Mistakes) as raised:
        read_use(verb, words, {})
    assert all(part in str(raised.value) for part in expected), raised.value


def test_a_file_tells_its_line(folder: Path) -> None:
    (folder / "x.yaml").write_text("model_name_or_path: models/tiny\ntemplate: qwen3\ntop_pp: 1\n")
    with pytest.raises(Mistakes, match=r"x.yaml:3: LLaMA-Factory has no top_pp: did you mean top_p\?"):
        read_use("chat", ["x.yaml"], {})


def test_no_record_of_data(folder: Path) -> None:
    with pytest.raises(NpukitError, match="no record"):
        read_use("infer", ["--model", "models/tiny", "--load_data_args", "true"], {})


def test_a_file_that_predicts_instead_of_training(folder: Path, run: Path, npukit: Any) -> None:
    keys = {"stage": "sft", "do_predict": True, "eval_dataset": "identity", "output_dir": "answers/new"}
    file = folder / "predict.yaml"
    file.write_text(yaml.safe_dump({**keys, "adapter_name_or_path": str(run), "overwrite_output_dir": True}))
    assert predicts(file, []) and not predicts(file, ["do_train=true"])
    used = use("infer", str(file))
    assert (used.model.path, used.data.force) == ("models/tiny", True)
    assert used.data.output == Path("answers/new/generated_predictions.jsonl")
    completed = npukit("train", str(file), "adapter_name_or_path=nowhere")
    assert completed.returncode == 2 and "there is no folder nowhere" in completed.stderr


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_row_leads_somewhere(dialect: Any) -> None:
    for key, row in dialect.rows.items():
        assert sum([bool(row.to), bool(row.ignored), bool(row.unsupported)]) == 1, key
        assert set(row.to) <= {*options(Use), "adapters"}, key
        assert not row.by or row.by in dialect.functions, key


@pytest.mark.parametrize("verb", USED)
def test_flags_lead_to_options(verb: Verb) -> None:
    assert set(own_names(verb).values()) <= {*options(Use), "adapters"}
