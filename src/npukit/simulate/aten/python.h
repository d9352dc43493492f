// What is written in Python (npukit.simulate.in_process): the ops' traits, and the kernels of those without a CPU kernel.
#pragma once

#include "kernel.h"

#include <string>
#include <unordered_map>

namespace npusim {

class PythonSide {
public:
    PythonSide(); // imports npukit.simulate.in_process

    // An op's traits, and the body that calls its Python kernel; the body is empty if there is none.
    std::pair<Traits, Body> find(const c10::OperatorHandle& op) const;

private:
    std::unordered_map<std::string, Body> bodies_;
    std::unordered_map<std::string, Traits> traits_;
};

} // namespace npusim
