#include "sparse.h"

#include "memory.h"
#include "stream.h"

namespace npusim {
namespace {

at::Tensor coalesce(const at::Tensor& self) {
    const auto device = self.device();
    wait_for_stream(device.index());
    const auto host =
        at::_sparse_coo_tensor_unsafe(cpu_view(self._indices()), cpu_view(self._values()), self.sizes()).coalesce();
    return at::_sparse_coo_tensor_unsafe(host._indices().to(device), host._values().to(device), self.sizes())
        ._coalesced_(true);
}

// The values of a dense tensor at the places of a sparse one.
at::Tensor sparse_mask(const at::Tensor& dense, const at::Tensor& mask) {
    const auto device = dense.device();
    wait_for_stream(device.index());
    const auto host = cpu_view(dense).sparse_mask(
        at::_sparse_coo_tensor_unsafe(cpu_view(mask._indices()), cpu_view(mask._values()), mask.sizes())
            ._coalesced_(mask.is_coalesced()));
    return at::_sparse_coo_tensor_unsafe(mask._indices(), host._values().to(device), mask.sizes())
        ._coalesced_(mask.is_coalesced());
}

} // namespace

void install_sparse(torch::Library& sparse) {
    sparse.impl("_coalesce", coalesce);
    sparse.impl("sparse_mask", sparse_mask);
}

} // namespace npusim
