// Random numbers that follow torch.npu's generators.
#pragma once

#include "older_torch.h"

#include <ATen/ATen.h>
#include <ATen/core/Generator.h>

namespace npusim {

// A CPU generator whose numbers depend on nothing but the NPU generator's seed and offset, which it advances:
// so seeds, saved states, forks and checkpointing act on the simulated NPU as torch_npu means them to.
// Without a generator the device's default one is used.
at::Generator draw_generator(const Maybe<at::Generator>& npu, c10::DeviceIndex device);

// A draw that was captured in a graph: torch_npu writes seed and offset to the device before every execution.
struct RecordedDraw {
    at::Tensor seed;
    at::Tensor offset;
    uint64_t step;
};
using RecordedDraws = std::vector<RecordedDraw>;

// While one lives, this thread's draws in a capture are noted.
class RecordDraws {
public:
    explicit RecordDraws(RecordedDraws& into);
    ~RecordDraws();
};

// While one lives, this thread draws what was noted, from the seed and offset that are on the device now.
class RepeatDraws {
public:
    explicit RepeatDraws(const RecordedDraws& draws);
    ~RepeatDraws();
};

// While one lives, CPU ops that take no generator draw from the device's default one.
class DefaultGeneratorFollowsDevice {
public:
    explicit DefaultGeneratorFollowsDevice(c10::DeviceIndex device);
    ~DefaultGeneratorFollowsDevice();

private:
    at::Generator saved_;
};

} // namespace npusim
