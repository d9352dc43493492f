#!/usr/bin/env bash
# The simulated NPU's C runtime, collectives and operators under gcc's sanitizers: address, undefined, thread.
#     python -m benchmarks sanitizers [address undefined thread]
# Prints the number of reports for each part, and fails if there is one, or if an error planted in each part (which
# shows that the sanitizer sees it) is not reported. The first run compiles everything once a sanitizer: minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cache=$("$python" -c 'from npukit.cache import cache_folder; print(cache_folder())')

# A copy of the sources with a function in each library that makes an error of each kind.
mkdir "$work/src" && cp -r src/npukit "$work/src/"
cat >"$work/planted" <<'C'
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
static int planted_count;
static void *planted_race(void *unused) {
    for (int i = 0; i < 1000; i++) {
        planted_count += i;
    }
    return unused;
}
#ifdef __cplusplus
extern "C"
#endif
__attribute__((visibility("default"))) void planted(const char *kind) {
    if (strcmp(kind, "address") == 0) {
        volatile char *memory = (char *)malloc(8);
        planted_count = memory[8];
        free((void *)memory);
    } else if (strcmp(kind, "undefined") == 0) {
        volatile int places = 40;
        planted_count = 1 << places;
    } else {
        pthread_t other;
        pthread_create(&other, NULL, planted_race, NULL);
        planted_race(NULL);
        pthread_join(other, NULL);
    }
}
C
for part in cann/runtime/planted.c cann/hccl/planted.c aten/planted.cpp; do
    cp "$work/planted" "$work/src/npukit/simulate/$part"
done

reports() { cat "$work"/log.* 2>/dev/null | grep -cE "ERROR: AddressSanitizer|runtime error:|WARNING: ThreadSanitizer" || true; }

# What each part is tried with; the first two need no torch.
sim() { (eval "$("$python" -m npukit sim env --devices 8)"; LD_PRELOAD=$library "$@"); }
plain() { sim env NPUKIT_SIM_OPERATORS= "$@"; }
try() {
    case $1 in
        RUNTIME) plain "$python" "$work/runtime.py" ;;
        HCCL) for scenario in every_type_and_operation v_forms one_process_with_several_cards two_ranks_in_one_process \
            sub_communicators issue_order_over_streams groups_of_sends_and_receives disagreement; do
            plain "$python" tests/simulated/hccl_functions.py "$scenario"
        done ;;
        OPERATORS) sim "$python" "$work/operators.py" ;;
    esac >"$work/output" 2>&1
}
call_planted='import ctypes, os, sys; ctypes.CDLL(sys.argv[1] or os.environ["NPUKIT_SIM_OPERATORS"]).planted(sys.argv[2].encode())'
plant() {
    case $1 in
        RUNTIME) plain "$python" -c "$call_planted" libascendcl.so "$kind" ;;
        HCCL) plain "$python" -c "$call_planted" libhccl.so "$kind" ;;
        OPERATORS) sim "$python" -c "import torch; $call_planted" "" "$kind" ;;
    esac >"$work/output" 2>&1
}
cat >"$work/runtime.py" <<'PY'
import ctypes, threading
acl = ctypes.CDLL("libascendcl.so")
pointer = ctypes.c_void_p
assert acl.aclInit(None) == 0
def work(number):
    assert acl.aclrtSetDevice(number % 2) == 0
    streams, event = [pointer() for _ in range(3)], pointer()
    for stream in streams:
        assert acl.aclrtCreateStream(ctypes.byref(stream)) == 0
    assert acl.aclrtCreateEvent(ctypes.byref(event)) == 0
    for turn in range(50):
        memory, size = pointer(), 4096 * (turn + 1)
        assert acl.aclrtMalloc(ctypes.byref(memory), ctypes.c_size_t(size), 0) == 0
        for stream in streams:
            assert acl.aclrtMemsetAsync(memory, ctypes.c_size_t(size), turn, ctypes.c_size_t(size), stream) == 0
            assert acl.aclrtRecordEvent(event, stream) == 0
            for other in streams:
                assert acl.aclrtStreamWaitEvent(other, event) == 0
        key = ctypes.create_string_buffer(128)
        assert acl.aclrtIpcMemGetExportKey(memory, ctypes.c_size_t(size), key, ctypes.c_size_t(128), ctypes.c_uint64(0)) == 0
        host = ctypes.create_string_buffer(size)
        assert acl.aclrtSynchronizeDevice() == 0
        assert acl.aclrtMemcpy(host, ctypes.c_size_t(size), memory, ctypes.c_size_t(size), 2) == 0
        assert set(host.raw) == {turn}
        assert acl.aclrtFree(memory) == 0
    for stream in streams:
        assert acl.aclrtDestroyStream(stream) == 0
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert acl.aclFinalize() == 0
PY
cat >"$work/operators.py" <<'PY'
import torch
from torch import nn
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for streams in (1, 3):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 32)).npu().to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(3):
            x = torch.randn(4, 3, 8, 8, device="npu", dtype=dtype)
            q = model(x).view(4, 2, 4, 4)
            loss = nn.functional.scaled_dot_product_attention(q, q, q).square().mean() + q.logsumexp(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        base = torch.arange(1 << 16, device="npu", dtype=dtype)
        done = []
        for number in range(streams):
            with torch.npu.stream(torch.npu.Stream()):
                part = base[number::3]
                done.append(torch.cat([part.sort(descending=True)[0], part.cumsum(0), part[part > 5]]))
                part.unsqueeze(1).expand(-1, 2).contiguous().add_(1).copy_(torch.zeros(len(part), 2))
        torch.npu.synchronize()
        empty = torch.empty(0, 4, device="npu", dtype=dtype)
        out = torch.empty(0, device="npu", dtype=dtype)
        torch.mm(empty.T, empty, out=out)
        print(loss.item(), [each.float().sum().item() for each in done], empty.sum().item(), out.shape)
graph = torch.npu.NPUGraph()
x = torch.ones(64, 64, device="npu")
with torch.npu.graph(graph):
    y = (x @ x).relu().sum()
for _ in range(3):
    graph.replay()
assert y.item() == 64.0 ** 3
PY

failed=0
export PYTHONPATH=$work/src OMP_NUM_THREADS=2 PYTHONMALLOC=malloc
printf '%-12s%-12s%10s%10s\n' sanitizer part reports planted
[ $# -gt 0 ] || set -- address undefined thread
for kind; do
    case $kind in address) library=libasan.so ;; undefined) library=libubsan.so ;; thread) library=libtsan.so ;; esac
    library="$(gcc -print-file-name=$library) $(gcc -print-file-name=libstdc++.so.6)" # which throws exceptions
    export NPUKIT_CACHE=$cache/sanitizers/$kind
    flags="-fsanitize=$kind -fno-omit-frame-pointer -g1"
    export CC="gcc $flags" CXX="g++ $flags -fno-sanitize=vptr" # vptr needs type information that torch_npu does not export
    export ASAN_OPTIONS=log_path=$work/log:detect_leaks=0:verify_asan_link_order=0:detect_odr_violation=0
    export UBSAN_OPTIONS=log_path=$work/log:print_stacktrace=1
    export TSAN_OPTIONS=log_path=$work/log:ignore_noninstrumented_modules=1:report_signal_unsafe=0
    mkdir -p "$NPUKIT_CACHE"
    [ -e "$NPUKIT_CACHE/torch_npu" ] || [ ! -e "$cache/torch_npu" ] || cp -al "$cache/torch_npu" "$NPUKIT_CACHE/"
    "$python" -m npukit sim setup >"$work/output" 2>&1 || { cat "$work/output"; exit 1; }
    for part in RUNTIME HCCL OPERATORS; do
        rm -f "$work"/log.*
        try $part || { echo "$part under $kind failed with $?:"; tail -40 "$work/output"; failed=1; }
        found=$(reports)
        [ "$found" = 0 ] || { failed=1; cat "$work"/log.* | head -60; }
        rm -f "$work"/log.*
        plant $part || true
        planted=$(reports)
        [ "$planted" -gt 0 ] || failed=1
        printf '%-12s%-12s%10s%10s\n' "$kind" "$part" "$found" "$([ "$planted" -gt 0 ] && echo found || echo MISSED)"
    done
done
exit $failed
