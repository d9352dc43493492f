// Lets torch_npu load beside a CUDA build of torch.
//
// From 2.12 on both name the settings that their allocators read, in one list in libc10, and torch_npu aborts where a
// name is there already. This library, loaded after CUDA's part of torch and before torch_npu, takes CUDA's names out
// again. On a machine with NPUs nobody does this: there a build of torch for the CPU is needed.
#include <c10/core/AllocatorConfig.h>
#include <dlfcn.h>

namespace {

using Names = std::unordered_set<std::string>;

const int forgotten = [] {
    // CUDAAllocatorConfig::getKeys()::keys; torch's header for it needs CUDA's own headers.
    constexpr auto kKeys = "_ZZN3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig7getKeysB5cxx11EvE4keys";
    void* const cuda = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    const auto* const names = cuda ? static_cast<const Names*>(dlsym(cuda, kKeys)) : nullptr;
    for (const auto& name : names ? *names : Names()) {
        c10::CachingAllocator::AcceleratorAllocatorConfig::getMutableKeys().erase(name);
    }
    return 0;
}();

} // namespace
