#include "python.h"

#include "../cann/npusim.h"
#include "half.h"
#include "quiet.h"
#include "random.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

namespace npusim {
namespace {

// Held for the life of the process: the interpreter may be gone when static objects are destroyed.
using Function = py::handle;

// Where nothing depends on a result, autograd hands on no gradient of it, even where the schema asks for one.
bool lacks_gradient(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> given) {
    if (!torch::autograd::get_current_node()) {
        return false;
    }
    for (size_t i = 0; i < given.size(); i++) {
        if (schema.arguments()[i].type()->kind() == c10::TypeKind::TensorType && given[i].isTensor() &&
            !given[i].toTensor().defined()) {
            return true;
        }
    }
    return false;
}

void call(Function function, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const auto first = stack->size() - schema.arguments().size();
    if (C10_UNLIKELY(lacks_gradient(schema, c10::ArrayRef<c10::IValue>(*stack).slice(first)))) {
        stack->resize(first);
        stack->insert(stack->end(), schema.returns().size(), at::Tensor());
        return;
    }
    const py::gil_scoped_acquire gil;
    py::list positional;
    py::dict named;
    for (size_t i = 0; i < schema.arguments().size(); i++) {
        const auto& argument = schema.arguments()[i];
        auto value = torch::jit::toPyObject(std::move((*stack)[first + i]));
        if (argument.kwarg_only()) {
            named[argument.name().c_str()] = value;
        } else {
            positional.append(value);
        }
    }
    stack->resize(first);
    try {
        const py::object result = function(*positional, **named);
        const auto& returns = schema.returns();
        if (returns.empty()) {
            return;
        }
        if (returns.size() == 1) {
            stack->push_back(torch::jit::toIValue(result, returns[0].type()));
            return;
        }
        const auto results = py::cast<py::tuple>(result);
        TORCH_CHECK( // in older versions an operator may return less
            results.size() >= returns.size(), "The simulated kernel of ", schema.name(), " returned ", results.size(),
            " values instead of ", returns.size(), ".");
        for (size_t i = 0; i < returns.size(); i++) {
            stack->push_back(torch::jit::toIValue(results[i], returns[i].type()));
        }
    } catch (py::error_already_set& error) {
        error.restore();
        python_error raised;
        raised.persist();
        throw raised;
    }
}

// Finds the arguments of limits in a schema; in another version of torch_npu some may not be there.
void place(Limits& limits, const c10::FunctionSchema& schema) {
    const auto absent = [&schema](Limit& limit) {
        const auto found = schema.argumentIndexWithName(limit.name);
        limit.argument = found ? static_cast<size_t>(*found) : 0;
        return !found;
    };
    limits.erase(std::remove_if(limits.begin(), limits.end(), absent), limits.end());
}

} // namespace

PythonSide::PythonSide() {
    const py::gil_scoped_acquire gil;
    const auto in_process = py::module_::import("npukit.simulate.in_process");
    in_process.attr("run_compiled_graphs_eagerly")();
    in_process.attr("set_generator_source")(py::cpp_function([](const py::object& given) {
        const auto device = c10::impl::VirtualGuardImpl(c10::DeviceType::PrivateUse1).getDevice();
        const auto npu =
            given.is_none() ? Maybe<at::Generator>() : Maybe<at::Generator>(py::cast<at::Generator>(given));
        return draw_generator(npu, device.index());
    }));
    keep_from_stderr(py::cast<std::vector<std::string>>(in_process.attr("quiet").attr("NATIVE")));
    // Kernels in Python may be what a thread waits for that holds the interpreter.
    npusim_around_waiting(
        [] { return static_cast<void*>(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr); },
        [](void* token) {
            if (token) {
                PyEval_RestoreThread(static_cast<PyThreadState*>(token));
            }
        });
    if (py::cast<bool>(in_process.attr("cpu_multiplies_bf16")())) {
        leave_bf16_to_cpu();
    }
    for (const auto& [name, function] : py::cast<py::dict>(in_process.attr("kernels"))) {
        const Function kept = function;
        kept.inc_ref();
        bodies_[py::cast<std::string>(name)] = [kept](const c10::OperatorHandle& op, torch::jit::Stack* stack) {
            call(kept, op, stack);
        };
    }
    for (const auto& [name, of] : py::cast<py::dict>(in_process.attr("traits"))) {
        const auto has = [&of](const char* trait) { return py::cast<bool>(of.attr(trait)); };
        Limits limits;
        for (const auto& limit : of.attr("limits")) {
            limits.emplace_back(
                py::cast<std::string>(limit.attr("function")), py::cast<std::string>(limit.attr("argument")),
                py::cast<std::vector<std::string>>(limit.attr("types")), py::cast<int64_t>(limit.attr("dimensions")));
        }
        traits_[py::cast<std::string>(name)] = {has("host_tensors"), has("host_indices"), has("values"),
                                                has("product"),      has("labels"),       has("kept"),
                                                std::move(limits)};
    }
}

std::pair<Traits, Body> PythonSide::find(const c10::OperatorHandle& op) const {
    const auto& name = op.operator_name();
    const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    const auto body = bodies_.find(full);
    auto traits = traits_.find(full);
    traits = traits == traits_.end() && body == bodies_.end() ? traits_.find(name.name) : traits;
    auto found = traits == traits_.end() ? Traits{} : traits->second;
    place(found.limits, op.schema());
    return {std::move(found), body == bodies_.end() ? Body{} : body->second};
}

} // namespace npusim
