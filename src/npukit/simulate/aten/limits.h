// What CANN refuses of an op's arguments, as far as npukit.facts.aclnn knows it.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <bitset>
#include <string>
#include <vector>

namespace npusim {

struct Limit {
    std::string function;    // of CANN, which refuses
    std::string name;        // of the argument
    size_t argument = 0;     // its place
    std::bitset<64> refused; // by number of at::ScalarType
    std::string accepted;    // in CANN's words
    int64_t dimensions = 0;  // the most; 0: not known

    // `types` are those that it accepts, as npukit.facts writes them (fp32).
    Limit(std::string function, std::string name, const std::vector<std::string>& types, int64_t dimensions);
};

using Limits = std::vector<Limit>;

// Whether NPUKIT_SIM_REFUSALS is on.
bool refusing();

// With NPUKIT_SIM_REFUSALS=on: raises torch_npu's error with CANN's codes for the first tensor of another kind than
// CANN documents.
void check_limits(const Limits& limits, c10::ArrayRef<c10::IValue> arguments);

bool refuses(const Limits& limits, c10::ArrayRef<const c10::IValue> arguments);

} // namespace npusim
