// What differs in the versions of torch that are supported.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/version.h>

#define NPUSIM_TORCH_BEFORE(major, minor) \
    (TORCH_VERSION_MAJOR < (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR < (minor)))

namespace npusim {

// An optional value as operators take it: c10::optional in older versions, std::optional in newer ones.
template <typename Value>
using Maybe = decltype(std::declval<const c10::IValue&>().toOptional<Value>());

} // namespace npusim
