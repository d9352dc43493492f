#include "recovery.h"

#include "memory.h"
#include "older_torch.h"
#include "values.h"

#if !NPUSIM_TORCH_BEFORE(2, 7) // older versions of torch_npu keep these functions to themselves
#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>
#include <torch_npu/csrc/core/npu/NPURecovery.h>

namespace npusim {

bool may_be_unsafe() {
    return c10_npu::get_npu_data_unsafe_flag();
}

void check_safe(c10::ArrayRef<c10::IValue> arguments) {
    if (C10_LIKELY(!may_be_unsafe())) {
        return;
    }
    for (const auto& argument : arguments) {
        visit_tensors(argument, [](const at::Tensor& tensor) {
            if (is_npu(tensor)) {
                c10_npu::check_npu_tensor_is_safe(tensor);
            }
        });
    }
}

void check_safe_copy(const at::Tensor& to, const at::Tensor& from) {
    if (C10_LIKELY(!may_be_unsafe())) {
        return;
    }
    check_safe({from});
    if (is_npu(to)) {
        c10_npu::NPUCachingAllocator::updateBlockToSafe(to.storage().data_ptr());
    }
}

} // namespace npusim

#else

namespace npusim {

bool may_be_unsafe() {
    return false;
}

void check_safe(c10::ArrayRef<c10::IValue>) {}

void check_safe_copy(const at::Tensor&, const at::Tensor&) {}

} // namespace npusim

#endif
