// What the profiler records of kernels: their names, and the shapes and types of their arguments and results.
#pragma once

#include "../cann/npusim.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

namespace npusim {

// One kernel from the moment it was asked for. Costs next to nothing while the profiler is off.
class ProfiledKernel {
public:
    ProfiledKernel(const std::string& name, bool product, c10::ArrayRef<c10::IValue> arguments);
    ProfiledKernel(const std::string& name, const at::Tensor& argument);

    void start(); // the stream has come to it
    void end(void* stream, c10::ArrayRef<c10::IValue> results);
    void end(void* stream, const at::Tensor& result);
    void host_waited(); // its result was needed at once

private:
    void describe(bool product, c10::ArrayRef<c10::IValue> arguments);

    const std::string& name_;
    npusim_moment issued_;
    npusim_moment started_{};
    std::string fields_;
};

} // namespace npusim
