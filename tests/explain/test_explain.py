from __future__ import annotations

import html
import io
import json
import tracemalloc
from collections.abc import Callable

import pytest
import torch
from tests.explain.corpus import answers

from npukit.explain import Search, explain, explain_logs, log_lines
from npukit.explain.nearest import nearest
from npukit.explain.structure import SUBJECTS
from npukit.explain.wrappings import CHAINED, statements
from npukit.facts.errors import KnownError, known_errors, named_errors

ENTRIES = list(known_errors().values())
NAMED = [row.error for subject in SUBJECTS for row in named_errors(subject)]


def search(log: bytes) -> Search:
    search_ = Search()
    search_.read("", io.BytesIO(log))
    return search_


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_every_known_error_is_found_in_a_log(entry: KnownError) -> None:
    log = f"2026-11-14 10:11:12,345 step 100000 of 507015 loss 2.31\n{entry.example}\nTraceback ends here\n"
    explanations = {explanation.code: explanation for explanation in explain(log)}
    assert entry.code in explanations, f"found only {list(explanations)}"
    assert explanations[entry.code].number == 2
    assert "507015" not in explanations or entry.code == "507015", "a step number is no return code"


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.code)
def test_every_row_about_a_name_is_found_first_in_its_example(row: KnownError) -> None:
    reported = "\nRuntimeError: Engine core initialization failed." if row.kind == "unknown" else ""
    explanation = explain(row.example + reported)[0]
    assert explanation.code == row.code
    assert "{" not in f"{explanation.meaning}{explanation.causes}{explanation.remedies}", "a name was not filled in"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("ImportError: libcublasLt.so.13: cannot open shared object file", "cuda-library-missing"),
        ("ImportError: libascend_protobuf.so.9: cannot open shared object file", "cann-library-missing"),
        ("ModuleNotFoundError: No module named 'grouped_gemm_cuda'", "cuda-module-missing"),
        ("ModuleNotFoundError: No module named 'detectron2._C'", "extension-not-built"),
        ("ModuleNotFoundError: No module named 'my_own_module'", "module-missing"),
        ("ERROR: No matching distribution found for nvidia-nccl-cu12==2.21.5", "cuda-package"),
        ("RuntimeError: operator torchaudio::sox_io does not exist", "torchvision-mismatch"),
    ],
)
def test_names_that_are_in_no_row_are_read_by_their_shape(message: str, code: str) -> None:
    assert explain(message)[0].code == code


@pytest.mark.parametrize(
    ("message", "code"),
    [
        # Python names the first part that is missing: what has a dot is there, and lacks a part.
        ("ModuleNotFoundError: No module named 'triton.language.target_info'", "triton-cuda-parts"),
        ("ModuleNotFoundError: No module named 'triton.language.extra.cann'", "triton-release"),
        ("ModuleNotFoundError: No module named 'apex.contrib'", "versions-apart"),
        ("ModuleNotFoundError: No module named 'apex'", "apex-missing"),
        # What a package lacks of its own is no question of two packages' releases.
        (
            "File \"/opt/site-packages/vllm/a.py\", line 4\nImportError: cannot import name 'b' from 'vllm.c'",
            "package-incomplete",
        ),
        (
            "File \"/opt/site-packages/trl/a.py\", line 4\nImportError: cannot import name 'b' from 'vllm.c'",
            "versions-apart",
        ),
        # "should be" in a sentence that compares versions is no setting.
        ("ValueError: the option should be removed since foo's version 1.35.2 is >= 1.34.0", "versions-apart"),
        (
            "[ERROR] the socversion Ascend910B1 of package x does not match the device's Ascend310P3",
            "card-not-supported",
        ),
        (
            "EZ9999  [InferShape] The n-axis of a(6) and b(9) tensors must be the same\nresult = 500002",
            "shape-mismatch",
        ),
        ("AssertionError: Prefix caching is not compatible with my pool", "not-together"),
        ("my plugin: ret code: -8012", "dcmi-code"),
        # What asking for the message of an error says is no error of its own, and other fails have their own codes.
        (
            "rtGetDevMsg execute failed, reason=[context pointer null]\nGet physical device number failed",
            "driver-not-loaded",
        ),
        ("reason=[feature not support]\nCreate stream failed, ret:207000", "207000"),
        ("serve: error: argument --kind/-k: invalid choice: 'a' (choose from 'b')", "argument-value"),
        ("aivec error, errorStr: Illegal instruction, unaligned", "aicore-fault"),
        ("ERROR Cannot use version 2 of it: only on devices with compute capability >= 8", "cuda-wanted"),
        ("ModuleNotFoundError: No module named 'megatron.bridge'", "megatron-missing"),
        ("E40021: Failed to compile Op [A]. msg is fatal error: 'a/b.h' file not found", "header-missing"),
        ("E0 Connect timeout, increase the MY_TIMEOUT variable\nKV cache transfer failed", "kv-transfer"),
        # A code that is called one, and a file's name that is no sentence.
        (
            "RuntimeError: ({'errCode': 'E80007', 'op_name': 'x'}, \"the parameter[y]'s type should be [str]\")",
            "E80007",
        ),
        ("[ERROR] [op_info_utils.cc:17] Load op info json failed, version: Ascend310P3", "card-not-supported"),
        # The warning of a fallback goes on after this; where the sentence ends, there is none.
        (
            "RuntimeError: CAUTION: The operator 'aten::addmm' is not currently supported on the NPU backend.",
            "not-implemented-on-npu",
        ),
        # What a code's sentence says comes before the code.
        ("error code is 161002\nEZ1001: Tensor scale not implemented for DT_FLOAT16", "dtype-unsupported"),
        ("EZ1001: Io input dtype or format is not supported, input info is x(DT_BFLOAT16, ND)", "bf16-unsupported"),
    ],
)
def test_what_only_looks_like_another_error(message: str, code: str) -> None:
    assert explain(message)[0].code == code


def test_where_to_look_is_nothing_to_do() -> None:
    explanation = explain(
        "AssertionError: A is not compatible with B. Please track https://example.org/1 for updates."
    )[0]
    assert not any("track" in remedy for remedy in explanation.remedies)


def test_what_a_message_says_to_do_is_the_first_remedy_where_it_is_only_read() -> None:
    message = (
        "ValueError: the bucket is too small for this.\nPlease increase bucket_megabytes in the settings.\n  File x"
    )
    assert "increase bucket_megabytes" in explain(message)[0].remedies[0]
    assert "increase" not in explain("RuntimeError: NPU out of memory. Please increase it.")[0].remedies[0]


@pytest.mark.parametrize(
    ("message", "never"),
    [
        ("AssertionError: max_position_embeddings must be >= decoder_seq_length", "unreadable"),
        ("NotImplementedError: Sparse `parse` modes are not here", "unreadable"),
        ("ValueError: choose room_size for the bloom filter", "memory-short"),
    ],
)
def test_a_part_of_a_word_or_of_a_name_is_no_phrase(message: str, never: str) -> None:
    assert all(explanation.code != never for explanation in explain(message))


def test_an_unknown_exception_comes_before_what_reports_it_and_is_no_answer_of_its_own() -> None:
    raised = "(Worker pid=1) QuuxError: it is so"
    reported = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    assert explain(raised) == []
    assert [error.kind for error in explain(f"{reported}\n{raised}")] == ["unknown", "wrapper"]
    assert [error.code for error in explain(f"{raised}\nRuntimeError: NPU out of memory.")] == ["out-of-memory"]


@pytest.mark.parametrize(
    ("message", "strength", "words"),
    [
        ("RuntimeError: NPU out of memory. Tried to allocate 2 GiB", "exact", "NPU out of memory"),
        ("ValueError: `pack_rows` must be one of (1, 2)", "reading", "must be one of"),
        ("ValueError: the bucket is incompatible", "nearest", "incompatible"),
        ('  File "/opt/site-packages/verl/run.py", line 9, in run\nKeyError: "colour"', "nearest", "KeyError"),
        ("EZ1001", "exact", "EZ1001"),
        ("call aclnnCat failed\nEZ1001: the weather is bad", "reading", "EZ1001"),
        ("AttributeError: 'Fork' object has no attribute 'tines'", "nearest", "Fork.tines"),
        (
            '  File "/opt/site-packages/verl/run.py", line 9, in run\n'
            "AttributeError: 'Fork' object has no attribute 'tines'",
            "reading",
            "Fork.tines",
        ),
    ],
)
def test_an_answer_says_how_strong_it_is_and_from_which_words_it_comes(message: str, strength: str, words: str) -> None:
    first = explain(message)[0]
    assert (first.strength, first.words) == (strength, words)


def test_lines_that_only_inform_are_no_errors() -> None:
    informing = (
        "[INFO] HCCL(8,):2026-11-02-07:42:50.708.882 [x.cc:372] [8]HCCL_CONNECT_TIMEOUT set by default to [120]s\n"
        "2026-11-02 07:42:51 - INFO - trainer - the option `fused` must be set for more speed\n"
        "I1102 07:42:52.801054 8 transport.cpp:9] the socket is not initialized, error code 507015\n"
    )
    assert explain(informing) == []
    failing = "(Worker pid=8) ERROR 11-02 07:42:53 [x.py:1] ValueError: the option `fused` must be set"
    assert [error.number for error in explain(informing + failing)] == [4]


def test_what_a_warning_misses_did_not_end_the_program() -> None:
    warned = "WARNING 11-02 07:42:53 [x.py:20] no xformers: cannot import name 'foo' from 'bar'\n"
    missing = "WARNING 11-02 07:42:53 [x.py:20] no attention: No module named 'flash_attn'\n"
    assert [error.kind for error in explain(missing)] == ["warning"]
    assert explain(warned)[0].strength == "nearest"
    raised = explain(warned + "QuuxError: it is so")
    assert [(error.line, error.strength) for error in raised[:1]] == [("QuuxError: it is so", "nearest")]
    again = explain(warned + "ImportError: cannot import name 'foo' from 'bar'")
    assert [(error.number, error.kind) for error in again] == [(2, "reading")]


def test_that_two_releases_are_apart_is_only_inferred() -> None:
    for message in (
        "TypeError: fold() got an unexpected keyword argument 'corner'",
        "AttributeError: module 'paper' has no attribute 'fold'",
        "ImportError: cannot import name 'fold' from 'paper.corners' (/usr/lib/paper/corners.py)",
    ):
        assert (explain(message)[0].code, explain(message)[0].strength) == ("versions-apart", "reading")
    assert explain("UserWarning: the library doesn't support folding yet")[0].strength == "nearest"


def test_that_something_failed_is_said_only_where_nothing_else_is_known() -> None:
    failed = "RuntimeError: the checkpoint writer did not finish"
    assert explain(failed)[0].kind == "hint"
    assert [error.kind for error in explain(f"{failed}\nRuntimeError: NPU out of memory.")] == ["cause"]


def test_a_package_that_scripts_need_as_well_is_cann_s_only_where_cann_is_about() -> None:
    missing = "ModuleNotFoundError: No module named 'scipy'"
    compiling = 'File "/usr/local/Ascend/ascend-toolkit/latest/python/site-packages/tbe/dsl/api.py", line 3\n'
    assert explain(f'File "/home/me/project/utils.py", line 2, in <module>\n{missing}')[0].code == "module-missing"
    assert explain(compiling + missing)[0].code == "compiler-module-missing"


def test_the_package_that_asked_is_named() -> None:
    log = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
  File "/usr/lib/python3.11/site-packages/verl/trainer/main.py", line 9, in <module>
ModuleNotFoundError: No module named 'transformers.models.qwen9'
"""
    assert any("verl" in text for text in explain(log)[0].causes)


def test_the_sentence_beside_a_code_comes_before_the_code() -> None:
    for sentence, code in (
        ("EE1001: The argument is invalid.Reason: set ASCEND_RT_VISIBLE_DEVICES:9 error", "visible-devices-wrong"),
        (
            "EE1001: The argument is invalid.Reason: invalid device, drv device=9, valid device range is [0, 8)",
            "107001",
        ),
        ("error code is 561002\nEZ9999[PID: 7]  key layout do not support PA_BSND.", "unsupported-value"),
        ("E19999 The opp version of the model does not match the current opp run package", "om-version"),
        ("ERR02002 DIST invalid type: Tensors must be contiguous", "not-contiguous"),
        ("EZ9903: support for Ascend310P3 is not implemented", "card-not-supported"),
        ("EZ1001: the driver and firmware packages do not match", "driver-firmware-apart"),
        ("E90003: Compile operator failed\n  bfloat16 of tbe.dsl.cast is not supported.", "bf16-unsupported"),
        ("error code is 161002\nEZ1001: Expected index shape 2 smaller than self shape 1", "shape-mismatch"),
        ("RuntimeError: rotary_mode only support half\n[ERROR] ERR01003 OPS invalid value", "unsupported-value"),
        ("EE1001: it failed.\n  rtSetDevice, invalid device=6, input visible devices:6", "visible-devices-wrong"),
    ):
        assert explain(sentence)[0].code == code


def test_an_exception_that_nobody_knows_is_read_by_its_class_and_by_who_raised_it() -> None:
    log = """Traceback (most recent call last):
  File "/vllm-workspace/vllm-ascend/vllm_ascend/worker/model_runner_v1.py", line 12, in run
ZeroDivisionError: division by zero
"""
    (only,) = explain(log)
    assert (only.code, only.kind) == ("framework-fault", "class") and "vllm_ascend" in only.meaning
    assert [explanation.code for explanation in explain(f"{log}NPU out of memory")] == ["out-of-memory"]
    assert explain("    assert x.is_npu\nAssertionError")[0].code == "assertion"
    assert not only.is_known and explain("NPU out of memory")[0].is_known


def test_what_is_near_is_a_hint_and_no_explanation() -> None:
    message = "RuntimeError: the HCCL watchdog thread gave up"
    assert explain(message) == []
    near = nearest(message)
    assert near[0].code == "watchdog-ended" and 0 < near[0].likeness < 1
    assert nearest("ZeroDivisionError: division by zero") == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)
def test_every_known_error_says_why_and_what_to_do(entry: KnownError) -> None:
    assert entry.meaning and entry.causes and entry.remedies
    assert all(text.endswith((".", "`.")) for text in (*entry.causes, *entry.remedies))
    assert not entry.meaning.endswith(".")


def test_at_least_150_codes_are_known() -> None:
    assert sum(not entry.pattern for entry in ENTRIES) >= 150


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if not entry.pattern], ids=lambda entry: entry.code)
def test_a_code_alone_is_enough(entry: KnownError) -> None:
    asked = entry.code if not entry.code.startswith("HCCL") else entry.name
    assert [explanation.code for explanation in explain(asked)] == [entry.code]


def test_codes_without_a_row_are_read_by_their_parts() -> None:
    (unknown,) = explain("[ERROR] ERR02009 DIST resource unavailable")
    assert "distributed" in unknown.meaning and "not available" in unknown.meaning
    (unknown,) = explain("EK9876: something new")
    assert explain("[ERROR] foo E89999 bar")[0].code == "E89999"
    assert "the profiler" in unknown.meaning
    assert explain("serial number 77-EK9876-2") == []


def test_what_is_said_in_more_detail_comes_before_the_general() -> None:
    log = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
RuntimeError: operator():NPUStream.cpp:411 NPU function error: aclrtSynchronizeStream, error code is 507015
[ERROR] 2026-11-14-10:11:12 (PID:411, Device:0, RankID:-1) ERR00100 PTA call acl api failed
EE9999: Inner Error!
"""
    codes = [explanation.code for explanation in explain(log)]
    assert codes == ["507015", "EE9999", "ERR00100"]


def test_a_message_comes_before_the_return_code_that_it_explains() -> None:
    """Wherever it was printed: what the launcher leads with is the cause, not how it ended."""
    log = "NPU warning, error code is 507049\nERR00100 PTA call acl api failed\nEI0005: rank 1 has AllReduce"
    assert [explanation.code for explanation in explain(log)] == ["EI0005", "507049", "ERR00100"]


def test_the_corpus_of_messages_that_people_met() -> None:
    """benchmarks/corpora/explain_corpus.py prints which are not known."""
    answers_ = answers()
    assert len(answers_) >= 507
    assert sum(answer.given == answer.wanted for answer in answers_) >= 492


def test_a_rank_that_waited_in_vain_is_a_consequence_whatever_wraps_it() -> None:
    log = """RuntimeError: HCCL function error: HcclAllreduce, error code is 15
[ERROR] 2026-11-15-05:49:33 (PID:1, Device:1, RankID:1) ERR02200 DIST call hccl api failed.
EI0002: The wait for a notification timed out: rank [1] has not heard from remote rank [0].
"""
    assert [explanation.code for explanation in explain(log)] == ["EI0002", "HCCL 15", "ERR02200"]
    assert explain(log)[0].kind == "consequence"


def test_among_ranks_the_first_cause_comes_before_what_followed() -> None:
    waiting = "2026-11-14 10:30:00,000 [rank0]: EI0002: The wait execution of the Notify register times out."
    failed = (
        "2026-11-14 10:05:00,000 step 7\n[rank3]: torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2 GiB"
    )
    later = "2026-11-14 10:06:00,000 x\nRuntimeError: aclrtMalloc, error code is 207018"
    first = explain_logs({"rank0.log": waiting, "rank1.log": later, "rank3.log": failed})[0]
    assert (first.code, first.source, first.rank, first.number) == ("out-of-memory", "rank3.log", 3, 2)


def test_ranks_are_read_from_names_of_logs() -> None:
    assert explain_logs({"logs/attempt_0/5/stderr.log": "libhccl.so: cannot open shared object file"})[0].rank == 5
    assert explain_logs({"plog/plog-4711_20261118030201.log": "NPU out of memory"})[0].rank is None
    assert explain("[default2]:NPU out of memory")[0].rank == 2


def test_times_of_cann_torch_and_glog_compare() -> None:
    cann = "[ERROR] RUNTIME(4,python):2026-11-15-05:08:10.123.457 [a.cc:1] NPU out of memory"
    glog = "[rank1]:[E1115 05:08:10.123456 ProcessGroup.cpp:1] x\nEI0005: ranks disagree"
    assert [explanation.code for explanation in explain_logs({"a": cann, "b": glog})] == ["EI0005", "out-of-memory"]


def test_lines_of_one_log_keep_their_order_though_some_times_are_cut_to_seconds() -> None:
    log = """[W1115 05:42:29.060688496 NPUStream.cpp:750] Warning: NPU warning, error code is 507015[Error]:
[ERROR] 2026-11-15-05:42:29 (PID:1, Device:0, RankID:-1) ERR00100 PTA call acl api failed.
[Error]: The aicore execution is abnormal.
"""
    assert [explanation.code for explanation in explain(log)] == ["507015", "aicore-fault", "ERR00100"]


def test_what_torch_npu_writes_after_any_exception_explains_nothing() -> None:
    after = "[ERROR] 2026-11-15-05:42:59 (PID:1, Device:0, RankID:-1) ERR99999 UNKNOWN applicaiton exception"
    assert explain(f"ZeroDivisionError: division by zero\n{after}") == []


def test_nothing_known_gives_nothing_but_the_line_can_be_found() -> None:
    log = "Traceback (most recent call last):\n  File 'x.py', line 1\nZeroDivisionError: division by zero\n"
    assert explain(log) == []
    assert search(log.encode()).first_error_line == "ZeroDivisionError: division by zero"
    assert search(b"step 1\n[ERROR] HCCL(12): broken\n").first_error_line == "[ERROR] HCCL(12): broken"
    assert search(b"all is well\n").first_error_line is None


def test_a_large_log_with_an_endless_line_is_read() -> None:
    steps = (f"2026-11-14 10:11:12,345 step {step} loss 2.31 lr 0.001 tokens/s 123456\n" for step in range(200_000))
    log = "".join(steps) + "x" * 10_000_000 + "\n"
    assert explain(log + "NPU out of memory")[0].number == 200_002


@pytest.mark.parametrize("window", [64, 200, 1000])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_where_a_log_is_cut_to_be_read_changes_nothing(
    window: int, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"2026-11-14 10:30:0{second},000 [rank{second % 2}]: step {second}" for second in range(9)]
    lines[5:5] = ["EI0002: timed out", "\x1b[31mRuntimeError: NPU out of memory\x1b[0m", "RuntimeError: 507015"]
    log = "\r\n".join(lines).encode(encoding)
    whole = search(log).explanations
    assert (whole[0].code, whole[0].number) == ("out-of-memory", 7)
    monkeypatch.setattr(log_lines, "WINDOW", window)
    assert search(log).explanations == whole


def test_memory_does_not_grow_with_a_log() -> None:
    class Endless(io.RawIOBase):
        left = 10

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"" if self.left < 0 else b"".join(b"line %d of many, and more\n" % n for n in range(30_000))

    tracemalloc.start()
    try:
        search_ = Search()
        search_.read("", Endless())
        assert tracemalloc.get_traced_memory()[1] < 15e6
    finally:
        tracemalloc.stop()


def test_lines_that_differ_in_a_code_are_all_read() -> None:
    log = "error code 100000\n507011\nerror code 507015\n107002\nEI0001: a\nEI0002: a\n"
    codes = {explanation.number: explanation.code for explanation in explain(log)}
    assert codes == {1: "100000", 2: "507011", 3: "507015", 4: "107002", 5: "EI0001", 6: "EI0002"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "gb18030"])
def test_logs_in_other_encodings_and_in_chinese(encoding: str) -> None:
    log = "训练开始\r\nRuntimeError: a kernel failed, see below\r\nerror code 507015\r\n".encode(encoding)
    assert [(explanation.code, explanation.number) for explanation in search(log).explanations] == [("507015", 3)]
    assert explain("错误码:507015算子执行失败")[0].code == "507015"


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.cuda.set_device(0),
        lambda: torch.cuda.reset_peak_memory_stats(),
        lambda: torch.ones(1).cuda(),
        lambda: torch.cuda.Stream(),
        lambda: torch.cuda.Event().record(),
        lambda: torch.cuda.CUDAGraph(),
        lambda: torch.Generator(device="cuda"),
        lambda: torch.cuda.nvtx.range_push("step"),
    ],
)
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_whatever_a_torch_without_cuda_says_is_explained_as_that(call: Callable[[], object]) -> None:
    with pytest.raises((AssertionError, AttributeError, RuntimeError)) as raised:
        call()
    assert [explanation.code for explanation in explain(f"{raised.type.__name__}: {raised.value}")] == ["no-cuda"]


def test_of_wrappers_the_library_whose_call_failed_comes_first() -> None:
    log = """RuntimeError: Engine core initialization failed. See root cause above.
HCCL function error: HcclAllreduce, error code is 4
[ERROR] ERR02200 DIST call hccl api failed.
"""
    assert [explanation.code for explanation in explain(log)] == ["HCCL 4", "vllm-wrapper", "ERR02200"]


def test_a_sentence_is_read_only_where_nothing_else_explains_its_line() -> None:
    assert explain("ValueError: tp (3) must be less than heads (2)")[0].kind == "reading"
    known = explain("RuntimeError: Expected all tensors to be on the same device: cpu is not supported here")
    assert [explanation.code for explanation in known] == ["cpu-npu-mixed"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("ImportError: my_transport.so: cannot open shared object file", "system-library-missing"),
        ("ModuleNotFoundError: No module named '_speedups'", "extension-not-built"),
        ("KeyError: 'CUDA_VISIBLE_DEVICES'", "visible-devices-unset"),
        ("AttributeError: 'FullyShardedDataParallel' object has no attribute 'score'", "model-wrapped"),
        ("AttributeError: 'GlmConfig' object has no attribute 'n_routed'", "config-attribute"),
        ("TypeError: Engine.__init__() got multiple values for argument 'seed'", "argument-twice"),
        ("train: error: argument --lr: invalid float value: 'one'", "argument-value"),
        ("IndexError: pop from an empty list", "index-out-of-range"),
        ("RuntimeError: Set changed size during iteration", "library-fault"),
    ],
)
def test_kinds_of_names_and_values_are_told_apart(message: str, code: str) -> None:
    assert explain(message)[0].code == code


def test_gloo_that_reached_every_rank_is_no_error() -> None:
    line = "[Gloo] Rank 0 is connected to {} peer ranks. Expected number of connected peer ranks is : 7"
    assert "gloo-mesh" not in {error.code for error in explain(line.format(7))}
    assert explain(line.format(3))[0].code == "gloo-mesh"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("RuntimeError: gather(): Expected out.dtype to be equal to self.dtype", "dtype-mismatch"),
        ("AssertionError: Expects weight to be on npu:3, was on npu:0", "device-mixed"),
        ("RuntimeError: the block must be below 4096", "condition-unmet"),
        ("ValueError: the option `pack_rows` must be set", "settings-contradict"),
        ("TypeError: step() missing 2 required positional arguments: 'closure' and 'x'", "versions-apart"),
        ("RuntimeError: npu::npu_swiglu() is missing value for argument 'dim'.", "versions-apart"),
        ("ModuleNotFoundError: No module named 'imghdr'", "python-too-new"),
        (
            "ImportError: libx.so: symbol cudaMallocAsync version libcudart.so.11.0 not defined in file",
            "cuda-library-missing",
        ),
        ("AssertionError: the bucket has already been reduced", "gradient-twice"),
        ("x.cpp:9: MY_ASSERT(rows == 3) failed\nAborted (core dumped)", "assertion"),
        ("AttributeError: 'BatchPlan' object has no attribute 'rows'", "versions-apart"),
        ("AssertionError: libcudart.so.12 cannot be found", "cuda-library-missing"),
        ("/bin/bash: line 3: /usr/local/sbin/npu-smi: No such file or directory", "driver-command-missing"),
        ("x.cpp:(.text+0x1c): undefined reference to `f()'\ncollect2: error: ld returned 1 exit status", "link-failed"),
        ("hcclComm: HcclPrepare fail, ret: 0x9", "HCCL 9"),
    ],
)
def test_a_sentence_is_read_by_what_it_is_about(message: str, code: str) -> None:
    assert explain(message)[0].code == code


def test_what_is_not_there_is_a_path_only_where_the_sentence_names_one() -> None:
    assert explain("ValueError: the shard of layer 3 was not found")[0].code == "path-missing"
    assert explain("AssertionError: the fused branch was not found")[0].code == "not-there"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("RuntimeError: found at least two devices, npu:1 and npu:3!", "two-cards"),
        ("RuntimeError: tensors, but found at least two devices, npu:1 and cpu!", "cpu-npu-mixed"),
        (
            "NotImplementedError: Could not run 'aten::sum' with arguments from the 'QuantizedNPU' backend",
            "not-implemented-on-npu",
        ),
        ("ModuleNotFoundError: No module named 'mindspeed.core.other'", "versions-apart"),
        ("TypeError: put_ is only implemented on CPU tensors", "unsupported-value"),
    ],
)
def test_devices_and_parts_of_packages_are_told_apart(message: str, code: str) -> None:
    assert explain(message)[0].code == code


def test_a_report_of_a_failure_is_no_instruction() -> None:
    assert "message-says" not in {error.code for error in explain("RuntimeError: SET WatchdogSwitch Failed.")}


def each_line(prefix: str) -> Callable[[str], str]:
    return lambda message: "\n".join(f"{prefix}{line}" for line in message.split("\n"))


@pytest.mark.parametrize(
    "wrap",
    [
        each_line("[rank3]: "),
        each_line("[rank3]:[E1115 05:08:10.123456789 ProcessGroupHCCL.cpp:12] "),
        each_line("12: "),
        each_line("node-7: "),
        each_line("[1,12]<stderr>:"),
        each_line("Mon Sep 11 14:31:16 2017[1,37]<stderr>:"),
        each_line("[36m(WorkerDict pid=1234, ip=10.1.2.3)[0m "),
        each_line("^[[1;36m(EngineCore pid=1)^[[0;0m "),
        each_line("36m(EngineCore pid=1)0m ERROR 11-02 07:42:53 [core.py:720] "),
        each_line("(EngineCore_DP0 pid=1) ERROR 11-02 07:42:53 [core.py:720] "),
        each_line("2025-11-02T07:42:53.123456789Z stderr F "),
        each_line("2025-11-02 07:42:53.123 | ERROR    | trainer.core:run:123 - "),
        each_line("E20251111 12:28:58.504206 2719 collective_service.cc:37] "),
        lambda message: "\n".join(f"\u2502 {line:<150} \u2502" for line in message.split("\n")),
        lambda message: json.dumps({"level": "error", "rank": 3, "msg": message}),
        lambda message: f"RuntimeError: Worker failed with error {message!r}, please check the stack trace above",
        lambda message: f"Process failed: {[repr(message)]!r}",
        lambda message: html.escape(message),
        lambda message: f"{message}\n\n{CHAINED}:\n\nRuntimeError: the model is not found at its path",
    ],
)
@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("AttributeError: module 'torch_npu' has no attribute '_npu_rotary_embedding'", "torch-npu-attribute"),
        (
            "RuntimeError: it failed, error code is 561002\nEZ9999[PID: 7]  key layout do not support PA_BSND.",
            "unsupported-value",
        ),
        ("    return x\n    assert x.is_npu\nAssertionError", "assertion"),
        ("ImportError: cannot import name 'b' from 'vllm.c' (unknown location)", "shadowed-package"),
    ],
)
def test_a_message_is_the_same_whatever_is_written_around_it(
    message: str, code: str, wrap: Callable[[str], str]
) -> None:
    assert explain(message)[0].code == code
    assert explain(wrap(message))[0].code == code


def test_the_line_that_is_shown_of_escaped_ones_is_the_one_that_tells() -> None:
    first = explain(json.dumps({"msg": "step 3\nValueError: NPU out of memory"}))[0]
    assert (first.line, first.number) == ("ValueError: NPU out of memory", 1)


def test_paths_of_windows_are_no_escapes() -> None:
    assert [each.text for each in statements(r"open C:\models\new\tensors failed")] == [
        r"open C:\models\new\tensors failed"
    ]


def test_an_exception_elsewhere_comes_before_those_who_waited_in_vain_for_its_rank() -> None:
    waited = "2026-11-14 10:30:00,000 [rank0]: EI0002: The wait execution of the Notify register times out."
    raised = "2026-11-14 10:05:00,000 step 7\n[rank3]: QuuxError: it is so"
    first = explain_logs({"rank0.log": waited, "rank3.log": raised})[0]
    assert (first.kind, first.rank) == ("unknown", 3)
    first = explain_logs({"rank0.log": waited, "rank3.log": raised.replace("10:05", "10:31")})[0]
    assert first.code == "EI0002"


def test_the_rank_that_torchrun_saw_fail_first_comes_first() -> None:
    log = """[rank1]: RuntimeError: shape '[1, 2]' is invalid for input of size 3
[rank3]: RuntimeError: NPU out of memory. Tried to allocate 2 GiB
Failures:
[1]:
  time      : 2025-01-02_01:01:01
  rank      : 1 (local_rank: 1)
Root Cause (first observed failure):
[0]:
  time      : 2025-01-02_01:01:01
  rank      : 3 (local_rank: 3)
"""
    assert [error.rank for error in explain(log)][:2] == [3, 1]
    assert [error.rank for error in explain(log.replace("rank      : 3", "rank      : 1"))][:2] == [1, 3]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("ERROR 11-02 07:42:53 [x.py:1]", "[ERROR] 2025-11-02-07:42:54.000.001"),
        ("E20251102 07:42:53.504206 9 a.cc:1]", "[rank0]:[E1102 07:42:54.504206 a.cpp:1]"),
        ("11/02/2025 07:42:53 - ERROR -", "2025/11/02 07:42:54 ERROR"),
    ],
)
def test_times_of_more_formats_compare(earlier: str, later: str) -> None:
    logs = {"a": f"{later} NPU out of memory", "b": f"{earlier} EI0005: ranks disagree"}
    assert [error.code for error in explain_logs(logs)] == ["EI0005", "out-of-memory"]


def test_glog_s_and_mindspore_s_levels_are_levels_of_errors() -> None:
    assert (
        explain("E20251111 12:28:58.504206 2719 service.cc:37] the bucket must be below 4096")[0].code
        == "condition-unmet"
    )
    critical = "[CRITICAL] DEVICE(7,ffff9,python):2024-01-03-10:44:02.123.456 [a/b.cc:1] Launch] the block is broken"
    assert search(critical.encode()).first_error_line == critical
