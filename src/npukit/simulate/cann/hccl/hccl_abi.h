/* HCCL's types as torch_npu passes them.
 *
 * CANN's own hccl.h and hccl_types.h are valid C++ only (constants as array sizes), so the few layouts and numbers that
 * cross the border are written down here; they are those of the headers in the torch_npu wheel.
 */
#ifndef NPUSIM_HCCL_ABI_H
#define NPUSIM_HCCL_ABI_H

#include <stdint.h>

typedef enum {
    HCCL_SUCCESS = 0,
    HCCL_E_PARA = 1,
    HCCL_E_PTR = 2,
    HCCL_E_MEMORY = 3,
    HCCL_E_INTERNAL = 4,
    HCCL_E_NOT_SUPPORT = 5,
    HCCL_E_NOT_FOUND = 6,
    HCCL_E_UNAVAIL = 7,
    HCCL_E_SYSCALL = 8,
    HCCL_E_TIMEOUT = 9,
    HCCL_E_TCP_CONNECT = 11,
    HCCL_E_ROCE_TRANSFER = 14,
    HCCL_E_RUNTIME = 15,
    HCCL_E_REMOTE = 21,
} HcclResult;

typedef enum {
    HCCL_INT8 = 0,
    HCCL_INT16 = 1,
    HCCL_INT32 = 2,
    HCCL_FP16 = 3,
    HCCL_FP32 = 4,
    HCCL_INT64 = 5,
    HCCL_UINT64 = 6,
    HCCL_UINT8 = 7,
    HCCL_UINT16 = 8,
    HCCL_UINT32 = 9,
    HCCL_FP64 = 10,
    HCCL_BFP16 = 11,
    HCCL_INT128 = 12,
    HCCL_HIF8 = 14,
    HCCL_FP8E4M3 = 15,
    HCCL_FP8E5M2 = 16,
    HCCL_FP8E8M0 = 17,
} HcclDataType;

typedef enum { HCCL_SUM = 0, HCCL_PROD = 1, HCCL_MAX = 2, HCCL_MIN = 3 } HcclReduceOp;

typedef struct {
    char internal[4108];
} HcclRootInfo;

enum { HCCL_COMM_NAME_LENGTH = 128 };

/* Callers built against an older CANN pass a shorter struct: `size` says how much of it there is. */
typedef struct {
    uint64_t size;
    uint32_t magic, version;
    uint64_t reserved;
    uint32_t buffer_size, deterministic;
    char name[HCCL_COMM_NAME_LENGTH];
    char udi[128];
    uint32_t op_expansion_mode, rdma_traffic_class, rdma_service_level, world_rank;
    uint64_t job;
    uint8_t aclgraph_zero_copy;
    int32_t exec_timeout; /* seconds; -1 where not set */
} HcclCommConfig;

enum { HCCL_COMM_CONFIG_CAPABILITIES = 12 };

typedef struct {
    enum { HCCL_SEND = 0, HCCL_RECV = 1 } direction;
    void *buffer;
    uint64_t count;
    HcclDataType data_type;
    uint32_t peer;
} HcclSendRecvItem;

#endif
