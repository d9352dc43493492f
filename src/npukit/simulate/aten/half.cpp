#include "half.h"

#include "values.h"

namespace npusim {
namespace {

bool bf16_is_left_to_cpu = false;

bool is_widened(at::ScalarType type) {
    return type == at::kHalf || (type == at::kBFloat16 && !bf16_is_left_to_cpu);
}

} // namespace

std::optional<at::ScalarType> half_to_widen(c10::ArrayRef<c10::IValue> arguments) {
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
    return found && !mixed && is_widened(*found) ? found : std::nullopt;
}

void leave_bf16_to_cpu() {
    bf16_is_left_to_cpu = true;
}

} // namespace npusim
