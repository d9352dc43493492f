// The reference kernels written in Python (npukit.simulate.ops), for the ops that have no CPU kernel.
#pragma once

#include "kernel.h"

#include <string>
#include <unordered_map>

namespace npusim {

class PythonKernels {
public:
    PythonKernels(); // imports npukit.simulate.in_process

    // The body that calls the Python kernel of an op; empty if there is none.
    Body find(const c10::OperatorHandle& op) const;

private:
    std::unordered_map<std::string, Body> bodies_;
};

} // namespace npusim
