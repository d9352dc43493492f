// The one operator on sparse tensors that torch_npu leaves to CANN; all others it puts together from dense ones.
#pragma once

#include <torch/library.h>

namespace npusim {

// Replaces _coalesce. `sparse` registers for sparse NPU tensors.
void install_sparse(torch::Library& sparse);

} // namespace npusim
