/* libacl_op_compiler.so: options are kept and answered; the operators it would compile are replaced above the runtime,
 * so compiling one is refused. The exceptions are those that torch_npu itself runs past the dispatcher: its collectives
 * pad tensors of an odd size, and loading a checkpoint gives tensors the memory layout that they had. */
#include <stdatomic.h>
#include <string.h>

#include "acl/acl_op_compiler.h"
#include "acl/acl_rt.h"
#include "npusim.h"

enum { OPTION_COUNT = 64, VALUE_SIZE = 256 };

static char values[OPTION_COUNT][VALUE_SIZE] = {[ACL_OP_JIT_COMPILE] = "disable"};

aclError aclSetCompileopt(aclCompileOpt option, const char *value) {
    if ((unsigned)option >= OPTION_COUNT || !value || strlen(value) >= VALUE_SIZE) {
        return npusim_error(ACL_ERROR_INVALID_PARAM, "aclSetCompileopt cannot keep option %d.", (int)option);
    }
    strcpy(values[option], value);
    return ACL_SUCCESS;
}

size_t aclGetCompileoptSize(aclCompileOpt option) {
    return (unsigned)option < OPTION_COUNT ? strlen(values[option]) + 1 : 0;
}

aclError aclGetCompileopt(aclCompileOpt option, char *value, size_t length) {
    if ((unsigned)option >= OPTION_COUNT || !value || length <= strlen(values[option])) {
        return npusim_error(ACL_ERROR_INVALID_PARAM, "aclGetCompileopt: no room for option %d.", (int)option);
    }
    strcpy(value, values[option]);
    return ACL_SUCCESS;
}

/* Declared with the runtime, but looked up here by torch_npu. */
static atomic_llong parameters[OPTION_COUNT];

aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
    if ((unsigned)option >= OPTION_COUNT) {
        return npusim_error(ACL_ERROR_INVALID_PARAM, "aclrtSetSysParamOpt does not know option %d.", (int)option);
    }
    atomic_store(&parameters[option], value);
    return ACL_SUCCESS;
}

aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t *value) {
    if ((unsigned)option >= OPTION_COUNT || !value) {
        return npusim_error(ACL_ERROR_INVALID_PARAM, "aclrtGetSysParamOpt does not know option %d.", (int)option);
    }
    *value = atomic_load(&parameters[option]);
    return ACL_SUCCESS;
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) {
    return aclrtSetSysParamOpt(option, value);
}

typedef struct {
    size_t dimensions, element;
    int64_t shape[32];
    char *data;
} tensor;

static tensor view(const aclTensorDesc *description, const aclDataBuffer *buffer, size_t element) {
    tensor tensor = {
        .dimensions = aclGetTensorDescNumDims(description),
        .element = element,
        .data = aclGetDataBufferAddr(buffer),
    };
    for (size_t i = 0; i < tensor.dimensions; i++) {
        aclGetTensorDescDimV2(description, i, &tensor.shape[i]);
    }
    return tensor;
}

static void fill(const tensor *out, const char *value) {
    int64_t count = 1;
    for (size_t i = 0; i < out->dimensions; i++) {
        count *= out->shape[i];
    }
    for (int64_t i = 0; i < count; i++) {
        memcpy(out->data + (size_t)i * out->element, value, out->element);
    }
}

/* Copies the input into the output, larger by paddings[2d] before and paddings[2d + 1] after each dimension. */
static void copy_within(const tensor *in, const tensor *out, const int32_t *paddings, size_t dimension, size_t from,
                        size_t to) {
    if (dimension == in->dimensions) {
        memcpy(out->data + to * out->element, in->data + from * in->element, in->element);
        return;
    }
    size_t rows = (size_t)in->shape[dimension];
    from *= rows;
    to = to * (size_t)out->shape[dimension] + (size_t)paddings[2 * dimension];
    if (dimension + 1 == in->dimensions) {
        memcpy(out->data + to * out->element, in->data + from * in->element, rows * in->element);
        return;
    }
    for (size_t row = 0; row < rows; row++) {
        copy_within(in, out, paddings, dimension + 1, from + row, to + row);
    }
}

/* From one memory layout to another: the numbers stay where they are, see format_cast in aten/copy.cpp. */
static aclError copy_all(const aclDataBuffer *input, aclDataBuffer *output, aclrtStream stream) {
    size_t bytes = aclGetDataBufferSizeV2(input), room = aclGetDataBufferSizeV2(output);
    return aclrtMemcpyAsync(aclGetDataBufferAddr(output), room, aclGetDataBufferAddr(input),
                            bytes < room ? bytes : room, ACL_MEMCPY_DEVICE_TO_DEVICE, stream);
}

static aclError execute(const char *type, const aclTensorDesc *const *input_descriptions,
                        const aclDataBuffer *const *inputs, const aclTensorDesc *const *output_descriptions,
                        aclDataBuffer *const *outputs, aclrtStream stream) {
    if (strcmp(type, "Identity") == 0 || strcmp(type, "TransData") == 0) {
        return copy_all(inputs[0], outputs[0], stream);
    }
    bool fills = strcmp(type, "Fill") == 0;
    if (!fills && strcmp(type, "PadV3") != 0) {
        return npusim_error(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "The CANN operator %s is not simulated.", type);
    }
    int error = npusim_stream_drain(stream);
    if (error || npusim_shapes_only()) {
        return error;
    }
    const aclDataBuffer *value = inputs[fills ? 1 : 2];
    size_t element = aclGetDataBufferSizeV2(value);
    tensor out = view(output_descriptions[0], outputs[0], element);
    fill(&out, aclGetDataBufferAddr(value));
    if (!fills) {
        tensor in = view(input_descriptions[0], inputs[0], element);
        copy_within(&in, &out, aclGetDataBufferAddr(inputs[1]), 0, 0, 0);
    }
    return ACL_SUCCESS;
}

#pragma GCC diagnostic ignored "-Wunused-parameter"

aclError aclopCompileAndExecute(const char *type, int input_count, const aclTensorDesc *const input_descriptions[],
                                const aclDataBuffer *const inputs[], int output_count,
                                const aclTensorDesc *const output_descriptions[], aclDataBuffer *const outputs[],
                                const aclopAttr *attributes, aclopEngineType engine, aclopCompileType compile_flag,
                                const char *path, aclrtStream stream) {
    return execute(type, input_descriptions, inputs, output_descriptions, outputs, stream);
}

aclError aclopCompileAndExecuteV2(const char *type, int input_count, aclTensorDesc *input_descriptions[],
                                  aclDataBuffer *inputs[], int output_count, aclTensorDesc *output_descriptions[],
                                  aclDataBuffer *outputs[], aclopAttr *attributes, aclopEngineType engine,
                                  aclopCompileType compile_flag, const char *path, aclrtStream stream) {
    return execute(type, (const aclTensorDesc *const *)input_descriptions, (const aclDataBuffer *const *)inputs,
                   (const aclTensorDesc *const *)output_descriptions, outputs, stream);
}

aclError aclopSetCompileFlag(aclOpCompileFlag flag) {
    return ACL_SUCCESS;
}
