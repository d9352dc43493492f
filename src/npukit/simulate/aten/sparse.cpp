#include "sparse.h"

#include "memory.h"
#include "stream.h"

namespace npusim {
namespace {

at::Tensor coalesce(const at::Tensor& self) {
    const auto device = self.device();
    wait_for_stream(device.index());
    const auto host = at::_sparse_coo_tensor_unsafe(
                          cpu_view(self._indices()), cpu_view(self._values()), self.sizes())
                          .coalesce();
    return at::_sparse_coo_tensor_unsafe(host._indices().to(device), host._values().to(device), self.sizes())
        ._coalesced_(true);
}

} // namespace

void install_sparse(torch::Library& sparse) {
    sparse.impl("_coalesce", coalesce);
}

} // namespace npusim
