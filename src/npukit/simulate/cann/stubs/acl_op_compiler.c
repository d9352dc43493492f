/* libacl_op_compiler.so: options are kept and answered; the operators it would compile are replaced above the runtime,
 * so compiling one is refused. */
#include <stdatomic.h>
#include <string.h>

#include "acl/acl_op_compiler.h"
#include "npusim.h"

enum { OPTION_COUNT = 64, VALUE_SIZE = 256 };

static char values[OPTION_COUNT][VALUE_SIZE];

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

#pragma GCC diagnostic ignored "-Wunused-parameter"

aclError aclopCompileAndExecute(const char *type, int input_count, const aclTensorDesc *const input_descriptions[],
                                const aclDataBuffer *const inputs[], int output_count,
                                const aclTensorDesc *const output_descriptions[], aclDataBuffer *const outputs[],
                                const aclopAttr *attributes, aclopEngineType engine, aclopCompileType compile_flag,
                                const char *path, aclrtStream stream) {
    return npusim_error(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "The CANN operator %s is not simulated.", type);
}

aclError aclopCompileAndExecuteV2(const char *type, int input_count, aclTensorDesc *input_descriptions[],
                                  aclDataBuffer *inputs[], int output_count, aclTensorDesc *output_descriptions[],
                                  aclDataBuffer *outputs[], aclopAttr *attributes, aclopEngineType engine,
                                  aclopCompileType compile_flag, const char *path, aclrtStream stream) {
    return npusim_error(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "The CANN operator %s is not simulated.", type);
}

aclError aclopSetCompileFlag(aclOpCompileFlag flag) {
    return ACL_SUCCESS;
}
