// The tensors in an operator's arguments and results: alone, in lists, in lists with gaps.
#pragma once

#include "older_torch.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <algorithm>

namespace npusim {

// A list of tensors and Nones; scripts (torch.jit) give it no more exact type than "list".
inline bool holds_optional_tensors(const c10::IValue& value) {
    const auto may = [](const c10::IValue& item) { return item.isNone() || item.isTensor(); };
    return value.isList() && !value.toListRef().empty() &&
        std::all_of(value.toListRef().begin(), value.toListRef().end(), may);
}

// A value with another tensor in the place of each of its tensors.
template <typename Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
    if (value.isTensor()) {
        const auto& tensor = value.toTensor();
        return tensor.defined() ? change(tensor) : tensor;
    }
    if (value.isTensorList()) {
        c10::List<at::Tensor> changed;
        for (const at::Tensor& tensor : value.toTensorVector()) {
            changed.push_back(tensor.defined() ? change(tensor) : tensor);
        }
        return changed;
    }
    if (holds_optional_tensors(value)) {
        c10::List<Maybe<at::Tensor>> changed;
        for (const c10::IValue& item : value.toListRef()) {
            const bool is_there = item.isTensor() && item.toTensor().defined();
            changed.push_back(is_there ? Maybe<at::Tensor>(change(item.toTensor())) : Maybe<at::Tensor>());
        }
        return changed;
    }
    return value;
}

template <typename Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
    if (value.isTensor()) {
        visit(value.toTensor());
    } else if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) {
            visit(tensor);
        }
    } else if (holds_optional_tensors(value)) {
        for (const c10::IValue& item : value.toListRef()) {
            if (item.isTensor()) {
                visit(item.toTensor());
            }
        }
    }
}

// Visits two values of the same structure tensor by tensor.
template <typename Visit>
void visit_pairs(const c10::IValue& one, const c10::IValue& other, const Visit& visit) {
    if (one.isTensor() && other.isTensor()) {
        visit(one.toTensor(), other.toTensor());
    } else if (one.isTensorList() && other.isTensorList()) {
        const auto ones = one.toTensorVector();
        const auto others = other.toTensorVector();
        for (size_t i = 0; i < ones.size(); i++) {
            visit(ones[i], others[i]);
        }
    }
}

} // namespace npusim
