// Copies between host and device, and between devices.
#pragma once

#include <torch/library.h>

namespace npusim {

// Replaces copy_, zero_, contiguous and the format casts: copies inside a device happen as operators do; copies between host and
// device are torch_npu's own, on its streams, once both sides are plain memory of the same type.
void install_copy(torch::Library& aten, torch::Library& npu);

} // namespace npusim
