// What differs in the versions of torch that are supported.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <torch/version.h>

#define NPUSIM_TORCH_BEFORE(major, minor) \
    (TORCH_VERSION_MAJOR < (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR < (minor)))

namespace npusim {

// An optional value as operators take it: c10::optional in older versions, std::optional in newer ones.
template <typename Value>
using Maybe = decltype(std::declval<const c10::IValue&>().toOptional<Value>());

// torch_npu 2.1 replaces operators that torch makes of others, such as dropout or softmax, where autograd does not see
// it, and calls CANN's kernels from there; it differentiates the parts. Here the parts are torch's own.
constexpr bool kReplacesComposites = NPUSIM_TORCH_BEFORE(2, 2);

struct Reader;

} // namespace npusim

// An operator shows its kernels to classes of this name only; torch has a public way from 2.9 on.
template <>
class c10::TypedOperatorHandle<npusim::Reader> {
public:
    static c10::KernelFunction kernel(const c10::OperatorHandle& op, c10::DispatchKey key) {
        return op.operatorDef_->op.lookup(c10::DispatchKeySet(key));
    }
};

namespace npusim {

inline c10::KernelFunction kernel_of(const c10::OperatorHandle& op, c10::DispatchKey key) {
    return c10::TypedOperatorHandle<Reader>::kernel(op, key);
}

} // namespace npusim
