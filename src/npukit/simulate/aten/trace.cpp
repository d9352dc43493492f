#include "trace.h"

#include "memory.h"

#include <ATen/record_function.h>
#include <torch/csrc/python_headers.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

namespace npusim {
namespace {

struct Trace {
    std::string file;
    std::unordered_set<std::string> not_simulated;
    std::unordered_map<std::string, Limits> limits;
    std::mutex mutex;
    std::map<std::string, uint64_t> counts;           // an op's JSON fields, without the count
    std::unordered_map<int64_t, std::string> forward; // autograd's sequence number to the line of the forward op
};

Trace* trace = nullptr;
thread_local std::vector<std::string> backward_lines;

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
        }
        out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return out + '"';
}

bool is_frameworks_own(const char* file) {
    return std::strstr(file, "/torch/") || std::strstr(file, "/torch_npu/") || file[0] == '<';
}

// The innermost Python line outside of torch and torch_npu; empty on a thread without Python frames.
std::string python_line() {
    const auto state = PyGILState_Ensure();
    std::string line;
    PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame) {
        PyCodeObject* const code = PyFrame_GetCode(frame);
        const char* const file = PyUnicode_AsUTF8(code->co_filename);
        const bool found = file && !is_frameworks_own(file);
        if (found) {
            line = std::string(file) + ":" + std::to_string(PyFrame_GetLineNumber(frame));
        }
        Py_DECREF(code);
        PyFrameObject* const caller = found ? nullptr : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = caller;
    }
    PyGILState_Release(state);
    return line;
}

void append_tensor(std::ostringstream& out, const at::Tensor& tensor, bool& on_device, bool& first) {
    if (!tensor.defined()) {
        return;
    }
    on_device = on_device || is_npu(tensor);
    out << (first ? "" : ", ") << R"({"shape": [)";
    for (int64_t i = 0; i < tensor.dim(); i++) {
        out << (i ? ", " : "") << tensor.size(i);
    }
    out << R"(], "dtype": ")" << c10::toString(tensor.scalar_type()) << R"("})";
    first = false;
}

std::string describe_inputs(c10::ArrayRef<const c10::IValue> inputs, bool& on_device) {
    std::ostringstream out;
    bool first = true;
    for (const auto& input : inputs) {
        if (input.isTensor()) {
            append_tensor(out, input.toTensor(), on_device, first);
        } else if (input.isTensorList()) {
            for (const at::Tensor& tensor : input.toTensorVector()) {
                append_tensor(out, tensor, on_device, first);
            }
        } else if (input.isDevice()) {
            on_device = on_device || input.toDevice().type() == kNPU;
        }
    }
    return out.str();
}

// How torch_npu runs the op; empty for ops that are made of others, which are seen themselves. That an op is not
// simulated shows only when its kernel is reached: torch_npu's autograd kernels make many of them of others.
std::string support(const c10::OperatorName& name) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || trace->not_simulated.count(toString(name))) {
        return "";
    }
    if (op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
        return "npu";
    }
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
        return "";
    }
    const bool composite = op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
    return composite ? "composite" : "cpu_fallback";
}

// What CANN says to these arguments; unknown where npukit has no facts about the op.
const char* card(const c10::OperatorName& name, c10::ArrayRef<const c10::IValue> inputs) {
    const auto found = trace->limits.find(toString(name));
    if (found == trace->limits.end() || found->second.empty()) {
        return "unknown";
    }
    return refuses(found->second, inputs) ? "not documented" : "documented";
}

void count(
    const c10::OperatorName& name, const std::string& how, c10::ArrayRef<const c10::IValue> inputs,
    const std::string& described, int64_t sequence_number) {
    const bool backward = !backward_lines.empty();
    const auto line = backward ? backward_lines.back() : python_line();
    const auto fields = R"("op": )" + quoted(toString(name)) + R"(, "support": ")" + how + R"(", "card": ")" +
        card(name, inputs) + R"(", "line": )" + quoted(line) + R"(, "backward": )" + (backward ? "true" : "false") +
        R"(, "inputs": [)" + described + "]";
    const std::lock_guard<std::mutex> lock(trace->mutex);
    trace->counts[fields]++;
    if (!backward && sequence_number >= 0) {
        trace->forward[sequence_number] = line;
    }
}

void record(const at::RecordFunction& function, const c10::OperatorName& name) {
    bool on_device = false;
    const auto described = describe_inputs(function.inputs(), on_device);
    const auto how = on_device ? support(name) : "";
    if (!how.empty()) {
        count(name, how, function.inputs(), described, function.seqNr());
    }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
    if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
        const std::lock_guard<std::mutex> lock(trace->mutex);
        const auto found = trace->forward.find(function.seqNr());
        backward_lines.push_back(found == trace->forward.end() ? "" : found->second);
    } else if (const auto name = function.operator_name()) {
        record(function, *name);
    }
    return nullptr;
}

void on_end(const at::RecordFunction& function, at::ObserverContext*) {
    if (function.scope() == at::RecordScope::BACKWARD_FUNCTION && !backward_lines.empty()) {
        backward_lines.pop_back();
    }
}

void write() {
    const std::lock_guard<std::mutex> lock(trace->mutex);
    const auto unfinished = trace->file + ".part";
    std::FILE* const out = std::fopen(unfinished.c_str(), "w");
    if (!out) {
        std::fprintf(stderr, "npukit: the trace of ops could not be written to %s.\n", unfinished.c_str());
        return;
    }
    std::fprintf(out, "{\"version\": 1, \"ops\": [");
    const char* separator = "\n";
    for (const auto& [fields, count] : trace->counts) {
        std::fprintf(out, "%s  {%s, \"count\": %llu}", separator, fields.c_str(), (unsigned long long)count);
        separator = ",\n";
    }
    std::fprintf(out, "\n]}\n");
    std::fclose(out);
    std::rename(unfinished.c_str(), trace->file.c_str());
}

// Every rank writes its own file: trace.json, trace.rank1.json, …
std::string file_of_this_rank(std::string file) {
    const char* const rank = std::getenv("RANK");
    if (rank && std::string(rank) != "0") {
        const auto dot = file.rfind('.');
        const auto end = dot == std::string::npos || file.find('/', dot) != std::string::npos ? file.size() : dot;
        file.insert(end, std::string(".rank") + rank);
    }
    return file;
}

} // namespace

void trace_not_simulated(const c10::OperatorHandle& op, c10::ArrayRef<const c10::IValue> inputs) {
    if (trace) {
        bool on_device = true;
        count(op.operator_name(), "not_simulated", inputs, describe_inputs(inputs, on_device), -1);
    }
}

void install_trace(std::unordered_set<std::string> not_simulated, std::unordered_map<std::string, Limits> limits) {
    const char* const file = std::getenv("NPUKIT_SIM_TRACE");
    if (!file || !*file) {
        return;
    }
    trace = new Trace; // kept to the end: other threads may still record while the process exits
    trace->file = file_of_this_rank(file);
    trace->not_simulated = std::move(not_simulated);
    trace->limits = std::move(limits);
    at::addGlobalCallback(
        at::RecordFunctionCallback(on_start, on_end)
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
    std::atexit(write);
}

} // namespace npusim
