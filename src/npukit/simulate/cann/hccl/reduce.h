/* Element-wise reductions over the contributions of all ranks. */
#ifndef NPUSIM_REDUCE_H
#define NPUSIM_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hccl_abi.h"

#pragma GCC visibility push(hidden)

size_t bytes_of(HcclDataType type); /* 0 where there is no such type */
bool can_reduce(HcclDataType type);

/* out[i] = sources[0][i] op sources[1][i] op ..., in this order, so that every rank gets the same bits. Half precision
 * is carried in fp32 and rounded once. `out` may be one of the sources. */
void reduce(void *out, const void *const *sources, uint32_t source_count, size_t count, HcclDataType type,
            HcclReduceOp op);

#pragma GCC visibility pop

#endif
