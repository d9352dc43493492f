/* Descriptions of tensors, buffers and attributes that torch_npu builds for CANN's compiled operators. They are kept
 * faithfully; the operators themselves (aclopCompileAndExecute) are replaced above the runtime and not run here. */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { MAX_DIMENSIONS = 32 };

struct aclTensorDesc {
    aclDataType type;
    aclFormat format;
    size_t dimensions;
    int64_t shape[MAX_DIMENSIONS];
};

struct aclDataBuffer {
    void *data;
    size_t size;
};

static aclError set_shape(aclTensorDesc *description, int dimensions, const int64_t *shape) {
    if (!description || dimensions < 0 || dimensions > MAX_DIMENSIONS || (dimensions && !shape)) {
        return npusim_error(ACL_ERROR_INVALID_PARAM, "A tensor description has 0 to %d dimensions.", MAX_DIMENSIONS);
    }
    description->dimensions = (size_t)dimensions;
    memcpy(description->shape, shape, (size_t)dimensions * sizeof *shape);
    return ACL_SUCCESS;
}

aclTensorDesc *aclCreateTensorDesc(aclDataType type, int dimensions, const int64_t *shape, aclFormat format) {
    aclTensorDesc *description = calloc(1, sizeof *description);
    if (description && set_shape(description, dimensions, shape) != ACL_SUCCESS) {
        free(description);
        return NULL;
    }
    if (description) {
        description->type = type;
        description->format = format;
    }
    return description;
}

void aclDestroyTensorDesc(const aclTensorDesc *description) {
    free((void *)description);
}

aclDataType aclGetTensorDescType(const aclTensorDesc *description) {
    return description ? description->type : ACL_DT_UNDEFINED;
}

aclFormat aclGetTensorDescFormat(const aclTensorDesc *description) {
    return description ? description->format : ACL_FORMAT_UNDEFINED;
}

size_t aclGetTensorDescNumDims(const aclTensorDesc *description) {
    return description ? description->dimensions : 0;
}

aclError aclGetTensorDescDimV2(const aclTensorDesc *description, size_t index, int64_t *size) {
    REQUIRE(description && size && index < description->dimensions, "aclGetTensorDescDimV2");
    *size = description->shape[index];
    return ACL_SUCCESS;
}

void aclSetTensorDescName(aclTensorDesc *description, const char *name) {
    (void)description, (void)name;
}

/* The storage layout, which only compiled operators look at. */
aclError aclSetTensorFormat(aclTensorDesc *description, aclFormat format) {
    (void)format;
    REQUIRE(description, "aclSetTensorFormat");
    return ACL_SUCCESS;
}

aclError aclSetTensorShape(aclTensorDesc *description, int dimensions, const int64_t *shape) {
    (void)dimensions, (void)shape;
    REQUIRE(description, "aclSetTensorShape");
    return ACL_SUCCESS;
}

aclError aclSetTensorPlaceMent(aclTensorDesc *description, aclMemType memory) {
    (void)memory;
    REQUIRE(description, "aclSetTensorPlaceMent");
    return ACL_SUCCESS;
}

aclDataBuffer *aclCreateDataBuffer(void *data, size_t size) {
    aclDataBuffer *buffer = malloc(sizeof *buffer);
    if (buffer) {
        *buffer = (aclDataBuffer){data, size};
    }
    return buffer;
}

void *aclGetDataBufferAddr(const aclDataBuffer *buffer) {
    return buffer ? buffer->data : NULL;
}

size_t aclGetDataBufferSizeV2(const aclDataBuffer *buffer) {
    return buffer ? buffer->size : 0;
}

aclError aclDestroyDataBuffer(const aclDataBuffer *buffer) {
    free((void *)buffer);
    return ACL_SUCCESS;
}

/* Attributes of compiled operators: nobody reads them here. */
struct aclopAttr {
    char unread;
};

aclopAttr *aclopCreateAttr(void) {
    return calloc(1, sizeof(aclopAttr));
}

void aclopDestroyAttr(const aclopAttr *attributes) {
    free((void *)attributes);
}

#define SET_ATTRIBUTE(kind, ...) \
    aclError aclopSetAttr##kind(aclopAttr *attributes, const char *name, __VA_ARGS__) { \
        REQUIRE(attributes && name, "aclopSetAttr" #kind); \
        return ACL_SUCCESS; \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
SET_ATTRIBUTE(Bool, uint8_t value)
SET_ATTRIBUTE(Int, int64_t value)
SET_ATTRIBUTE(Float, float value)
SET_ATTRIBUTE(String, const char *value)
SET_ATTRIBUTE(DataType, aclDataType value)
SET_ATTRIBUTE(ListBool, int count, const uint8_t *values)
SET_ATTRIBUTE(ListInt, int count, const int64_t *values)
SET_ATTRIBUTE(ListFloat, int count, const float *values)
SET_ATTRIBUTE(ListListInt, int lists, const int *counts, const int64_t *const values[])
#pragma GCC diagnostic pop
