#include "half.h"

#include "values.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace npusim {
namespace {

bool bf16_is_left_to_cpu = false;

bool is_widened(at::ScalarType type) {
    return type == at::kHalf || (type == at::kBFloat16 && !bf16_is_left_to_cpu);
}

#if defined(__aarch64__)
void convert(const float* from, float16_t* to, int64_t count) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        vst1_f16(to + i, vcvt_f16_f32(vld1q_f32(from + i)));
    }
    for (; i < count; i++) {
        to[i] = static_cast<float16_t>(from[i]);
    }
}

void convert(const float16_t* from, float* to, int64_t count) {
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        vst1q_f32(to + i, vcvt_f32_f16(vld1_f16(from + i)));
    }
    for (; i < count; i++) {
        to[i] = static_cast<float>(from[i]);
    }
}

// PyTorch converts fp16 number by number here, ten times slower than the CPU can.
bool converted(const at::Tensor& to, const at::Tensor& from) {
    if (to.sizes() != from.sizes() || to.strides() != from.strides() || !to.is_non_overlapping_and_dense()) {
        return false;
    }
    if (from.scalar_type() == at::kFloat && to.scalar_type() == at::kHalf) {
        convert(from.const_data_ptr<float>(), static_cast<float16_t*>(to.mutable_data_ptr()), to.numel());
        return true;
    }
    if (from.scalar_type() == at::kHalf && to.scalar_type() == at::kFloat) {
        convert(static_cast<const float16_t*>(from.const_data_ptr()), to.mutable_data_ptr<float>(), to.numel());
        return true;
    }
    return false;
}
#else
bool converted(const at::Tensor&, const at::Tensor&) {
    return false;
}
#endif

} // namespace

void copy_values(const at::Tensor& to, const at::Tensor& from) {
    if (!converted(to, from)) {
        to.copy_(from);
    }
}

std::optional<at::ScalarType> half_to_widen(c10::ArrayRef<c10::IValue> arguments, bool cpu_lacks_it) {
    std::optional<at::ScalarType> found;
    bool mixed = false;
    for (const auto& argument : arguments) {
        visit_tensors(argument, [&](const at::Tensor& tensor) {
            if (tensor.defined() && tensor.is_floating_point()) {
                mixed = mixed || (found && *found != tensor.scalar_type());
                found = tensor.scalar_type();
            }
        });
    }
    return found && !mixed && (is_widened(*found) || (cpu_lacks_it && *found == at::kBFloat16)) ? found : std::nullopt;
}

void leave_bf16_to_cpu() {
    bf16_is_left_to_cpu = true;
}

} // namespace npusim
