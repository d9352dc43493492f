#include "limits.h"

#include "memory.h"
#include "values.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace npusim {
namespace {

struct Type {
    const char* fact;
    const char* cann;
    at::ScalarType torch;
};

constexpr Type kTypes[] = {
    {"fp32", "DT_FLOAT", at::kFloat},
    {"fp16", "DT_FLOAT16", at::kHalf},
    {"bf16", "DT_BFLOAT16", at::kBFloat16},
    {"fp64", "DT_DOUBLE", at::kDouble},
    {"int8", "DT_INT8", at::kChar},
    {"int16", "DT_INT16", at::kShort},
    {"int32", "DT_INT32", at::kInt},
    {"int64", "DT_INT64", at::kLong},
    {"uint8", "DT_UINT8", at::kByte},
    {"bool", "DT_BOOL", at::kBool},
    {"complex64", "DT_COMPLEX64", at::kComplexFloat},
    {"complex128", "DT_COMPLEX128", at::kComplexDouble},
};

const char* cann_name(at::ScalarType type) {
    for (const auto& known : kTypes) {
        if (known.torch == type) {
            return known.cann;
        }
    }
    return "DT_UNDEFINED";
}

bool refuses_type(const Limit& limit, const at::Tensor& tensor) {
    return limit.refused[static_cast<size_t>(tensor.scalar_type())];
}

bool refuses_shape(const Limit& limit, const at::Tensor& tensor) {
    return limit.dimensions && tensor.dim() > limit.dimensions;
}

[[noreturn]] void refuse(const std::string& function, const std::string& reason) {
    const char* const rank = std::getenv("RANK");
    const auto device = c10::impl::VirtualGuardImpl(kNPU).getDevice();
    C10_THROW_ERROR(
        Error,
        c10::str(
            "NPU function error: call ", function, " failed, error code is 161002\n[ERROR] (PID:", getpid(),
            ", Device:", static_cast<int>(device.index()), ", RankID:", rank ? rank : "-1",
            ") ERR00100 PTA call acl api failed.\n[PID: ", getpid(), "] AclNN_Parameter_Error(EZ1001): ", reason,
            " (simulated NPU with NPUKIT_SIM_REFUSALS=on)"));
}

} // namespace

Limit::Limit(std::string function, std::string name, const std::vector<std::string>& types, int64_t dimensions)
    : function(std::move(function)), name(std::move(name)), dimensions(dimensions) {
    for (const auto& type : kTypes) {
        if (std::find(types.begin(), types.end(), type.fact) == types.end()) {
            refused.set(static_cast<size_t>(type.torch));
        } else {
            accepted += std::string(accepted.empty() ? "" : ",") + type.cann;
        }
    }
}

bool refusing() {
    static const char* const setting = std::getenv("NPUKIT_SIM_REFUSALS");
    static const bool on = setting && std::strcmp(setting, "on") == 0;
    return on;
}

void check_limits(const Limits& limits, c10::ArrayRef<c10::IValue> arguments) {
    if (limits.empty() || !refusing()) {
        return;
    }
    for (const auto& limit : limits) {
        visit_tensors(arguments[limit.argument], [&](const at::Tensor& tensor) {
            if (!is_npu(tensor)) {
                return;
            }
            if (refuses_type(limit, tensor)) {
                refuse(
                    limit.function,
                    c10::str(
                        "Tensor ", limit.name, " not implemented for ", cann_name(tensor.scalar_type()),
                        ", should be in dtype support list [", limit.accepted, "]."));
            }
            if (refuses_shape(limit, tensor)) {
                refuse(
                    limit.function,
                    c10::str(
                        "The ", limit.name, " tensor cannot be larger than ", limit.dimensions, " dimensions, and has ",
                        tensor.dim(), "."));
            }
        });
    }
}

bool refuses(const Limits& limits, c10::ArrayRef<const c10::IValue> arguments) {
    bool found = false;
    for (const auto& limit : limits) {
        if (limit.argument < arguments.size()) {
            visit_tensors(arguments[limit.argument], [&](const at::Tensor& tensor) {
                found = found || (is_npu(tensor) && (refuses_type(limit, tensor) || refuses_shape(limit, tensor)));
            });
        }
    }
    return found;
}

} // namespace npusim
