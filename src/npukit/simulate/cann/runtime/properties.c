/* What a simulated card says of itself, and how many of its cores a program may use. */
#include <stdio.h>
#include <string.h>

#include "stream.h"

static const int64_t l2_bytes = 192 << 20;

const char *aclrtGetSocName(void) {
    return npusim_the_machine()->soc;
}

aclError aclGetDeviceCapability(uint32_t device, aclDeviceInfo what, int64_t *value) {
    REQUIRE(value, "aclGetDeviceCapability");
    int error = npusim_check_device(device);
    if (error) {
        return error;
    }
    switch (what) {
    case ACL_DEVICE_INFO_AI_CORE_NUM:
        *value = npusim_the_machine()->cube_cores;
        return ACL_SUCCESS;
    case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
        *value = npusim_the_machine()->vector_cores;
        return ACL_SUCCESS;
    case ACL_DEVICE_INFO_L2_SIZE:
        *value = l2_bytes;
        return ACL_SUCCESS;
    default:
        return npusim_error(ACL_ERROR_INVALID_PARAM, "aclGetDeviceCapability does not know item %d.", (int)what);
    }
}

aclError aclrtGetDeviceInfo(uint32_t device, aclrtDevAttr attribute, int64_t *value) {
    REQUIRE(value, "aclrtGetDeviceInfo");
    int error = npusim_check_device(device);
    if (error) {
        return error;
    }
    const npusim_machine *machine = npusim_the_machine();
    switch ((int)attribute) {
    case ACL_DEV_ATTR_AICPU_CORE_NUM:
        *value = 6;
        return ACL_SUCCESS;
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
    case ACL_DEV_ATTR_CUBE_CORE_NUM:
        *value = machine->cube_cores;
        return ACL_SUCCESS;
    case ACL_DEV_ATTR_VECTOR_CORE_NUM:
        *value = machine->vector_cores;
        return ACL_SUCCESS;
    case ACL_DEV_ATTR_UBUF_PER_VECTOR_CORE:
        *value = 192 << 10;
        return ACL_SUCCESS;
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
        *value = (int64_t)machine->memory;
        return ACL_SUCCESS;
    case ACL_DEV_ATTR_L2_CACHE_SIZE:
        *value = l2_bytes;
        return ACL_SUCCESS;
    case ACL_DEV_ATTR_PHY_CHIP_ID:
        *value = npusim_physical_device((int)device);
        return ACL_SUCCESS;
    case ACL_DEV_ATTR_SMP_ID:
    case ACL_DEV_ATTR_IS_VIRTUAL:
    case ACL_DEV_ATTR_CUST_OP_PRIVILEGE:
        *value = 0;
        return ACL_SUCCESS;
    default:
        return npusim_error(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "Attribute %d of a card is not simulated.",
                            (int)attribute);
    }
}

aclError aclrtDeviceGetUuid(int32_t device, aclrtUuid *uuid) {
    REQUIRE(uuid, "aclrtDeviceGetUuid");
    int error = npusim_check_device(device);
    if (error) {
        return error;
    }
    memcpy(uuid->bytes, "npukit-simulated", sizeof uuid->bytes);
    uuid->bytes[15] = (char)npusim_physical_device(device);
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceUtilizationRate(int32_t device, aclrtUtilizationInfo *rates) {
    REQUIRE(rates, "aclrtGetDeviceUtilizationRate");
    int error = npusim_check_device(device);
    if (error) {
        return error;
    }
    rates->cubeUtilization = rates->vectorUtilization = rates->aicpuUtilization = 0;
    rates->memoryUtilization = npusim_memory_percent(device);
    return ACL_SUCCESS;
}

aclError aclrtGetLogicDevIdByUserDevId(const int32_t user, int32_t *const logic) {
    REQUIRE(logic, "aclrtGetLogicDevIdByUserDevId");
    int error = npusim_check_device(user);
    *logic = error ? -1 : npusim_physical_device(user);
    return error;
}

aclError aclrtGetPhyDevIdByLogicDevId(const int32_t logic, int32_t *const physical) {
    REQUIRE(physical, "aclrtGetPhyDevIdByLogicDevId");
    *physical = logic;
    return ACL_SUCCESS;
}

aclError aclrtDeviceGetStreamPriorityRange(int32_t *least, int32_t *greatest) {
    REQUIRE(least && greatest, "aclrtDeviceGetStreamPriorityRange");
    *least = 7;
    *greatest = 0;
    return ACL_SUCCESS;
}

/* Core limits: remembered and answered; nothing runs faster or slower for them. */
static atomic_uint device_limits[MAX_DEVICES][2];
static _Thread_local npusim_stream *limiting_stream;

static uint32_t cores(aclrtDevResLimitType type) {
    const npusim_machine *machine = npusim_the_machine();
    return (uint32_t)(type == ACL_RT_DEV_RES_CUBE_CORE ? machine->cube_cores : machine->vector_cores);
}

static int check_limit(aclrtDevResLimitType type, uint32_t value) {
    if ((unsigned)type > ACL_RT_DEV_RES_VECTOR_CORE || value > cores(type)) {
        return npusim_error(ACL_ERROR_RT_PARAM_INVALID, "A card has no %u cores of kind %d.", value, (int)type);
    }
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceResLimit(int32_t device, aclrtDevResLimitType type, uint32_t *value) {
    REQUIRE(value, "aclrtGetDeviceResLimit");
    int error = npusim_check_device(device);
    error = error ? error : check_limit(type, 0);
    if (!error) {
        uint32_t limit = atomic_load(&device_limits[device][type]);
        *value = limit ? limit : cores(type);
    }
    return error;
}

aclError aclrtSetDeviceResLimit(int32_t device, aclrtDevResLimitType type, uint32_t value) {
    int error = npusim_check_device(device);
    error = error ? error : check_limit(type, value);
    if (!error) {
        atomic_store(&device_limits[device][type], value);
    }
    return error;
}

aclError aclrtResetDeviceResLimit(int32_t device) {
    int error = npusim_check_device(device);
    if (!error) {
        atomic_store(&device_limits[device][0], 0);
        atomic_store(&device_limits[device][1], 0);
    }
    return error;
}

aclError aclrtSetStreamResLimit(aclrtStream handle, aclrtDevResLimitType type, uint32_t value) {
    npusim_stream *stream = npusim_stream_of(handle);
    int error = stream ? check_limit(type, value) : ACL_ERROR_RT_CONTEXT_NULL;
    if (!error) {
        stream->limits[type] = value;
    }
    return error;
}

aclError aclrtGetStreamResLimit(aclrtStream handle, aclrtDevResLimitType type, uint32_t *value) {
    REQUIRE(value, "aclrtGetStreamResLimit");
    npusim_stream *stream = npusim_stream_of(handle);
    int error = stream ? check_limit(type, 0) : ACL_ERROR_RT_CONTEXT_NULL;
    if (!error && stream->limits[type]) {
        *value = stream->limits[type];
        return ACL_SUCCESS;
    }
    return error ? error : aclrtGetDeviceResLimit(stream->device, type, value);
}

aclError aclrtResetStreamResLimit(aclrtStream handle) {
    npusim_stream *stream = npusim_stream_of(handle);
    if (!stream) {
        return ACL_ERROR_RT_CONTEXT_NULL;
    }
    stream->limits[0] = stream->limits[1] = 0;
    return ACL_SUCCESS;
}

aclError aclrtUseStreamResInCurrentThread(aclrtStream handle) {
    limiting_stream = npusim_stream_of(handle);
    return limiting_stream ? ACL_SUCCESS : ACL_ERROR_RT_CONTEXT_NULL;
}

aclError aclrtUnuseStreamResInCurrentThread(aclrtStream handle) {
    (void)handle;
    limiting_stream = NULL;
    return ACL_SUCCESS;
}

aclError aclrtGetResInCurrentThread(aclrtDevResLimitType type, uint32_t *value) {
    if (limiting_stream) {
        return aclrtGetStreamResLimit(limiting_stream, type, value);
    }
    npusim_context *context = npusim_current_context();
    return context ? aclrtGetDeviceResLimit(context->device, type, value) : ACL_ERROR_RT_CONTEXT_NULL;
}
