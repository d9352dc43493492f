#include "profile.h"

#include "values.h"

namespace npusim {
namespace {

// [[[2, 3], "Float"], ...]
std::string described(c10::ArrayRef<c10::IValue> values) {
    std::string out = "[";
    for (const auto& value : values) {
        visit_tensors(value, [&](const at::Tensor& tensor) {
            if (!tensor.defined()) {
                return;
            }
            out += out.size() > 1 ? ", [[" : "[[";
            const char* separator = "";
            for (const auto size : tensor.sizes()) {
                out += separator + std::to_string(size);
                separator = ", ";
            }
            out += std::string("], \"") + c10::toString(tensor.scalar_type()) + "\"]";
        });
    }
    return out + "]";
}

} // namespace

ProfiledKernel::ProfiledKernel(const std::string& name, bool product, c10::ArrayRef<c10::IValue> arguments)
    : name_(name), issued_(npusim_moment_now()) {
    if (C10_UNLIKELY(issued_.time)) {
        describe(product, arguments);
    }
}

ProfiledKernel::ProfiledKernel(const std::string& name, const at::Tensor& argument)
    : name_(name), issued_(npusim_moment_now()) {
    if (C10_UNLIKELY(issued_.time)) {
        describe(/*product=*/false, c10::IValue(argument));
    }
}

void ProfiledKernel::describe(bool product, c10::ArrayRef<c10::IValue> arguments) {
    fields_ = std::string("\"product\": ") + (product ? "true" : "false") + ", \"inputs\": " + described(arguments);
}

void ProfiledKernel::start() {
    started_ = npusim_moment_now();
}

void ProfiledKernel::end(void* stream, c10::ArrayRef<c10::IValue> results) {
    if (C10_UNLIKELY(issued_.time)) {
        const auto fields = fields_ + ", \"outputs\": " + described(results);
        npusim_profile_work(stream, "kernel", name_.c_str(), issued_, started_, fields.c_str());
    }
}

void ProfiledKernel::end(void* stream, const at::Tensor& result) {
    if (C10_UNLIKELY(issued_.time)) {
        end(stream, c10::IValue(result));
    }
}

void ProfiledKernel::host_waited() {
    npusim_profile_call("aclrtSynchronizeStreamWithTimeout", issued_);
}

} // namespace npusim
