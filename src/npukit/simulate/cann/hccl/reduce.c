/* Element-wise reductions: one loop a type, in blocks that stay in the first cache. */
#include "reduce.h"

#include <string.h>

/* Vectors wherever the loops allow it; integers wrap around. */
#pragma GCC optimize("O3", "wrapv", "no-trapping-math")

enum { BLOCK = 1024 };

size_t bytes_of(HcclDataType type) {
    switch (type) {
    case HCCL_INT8:
    case HCCL_UINT8:
    case HCCL_HIF8:
    case HCCL_FP8E4M3:
    case HCCL_FP8E5M2:
    case HCCL_FP8E8M0:
        return 1;
    case HCCL_INT16:
    case HCCL_UINT16:
    case HCCL_FP16:
    case HCCL_BFP16:
        return 2;
    case HCCL_INT32:
    case HCCL_UINT32:
    case HCCL_FP32:
        return 4;
    case HCCL_INT64:
    case HCCL_UINT64:
    case HCCL_FP64:
        return 8;
    case HCCL_INT128:
        return 16;
    }
    return 0;
}

bool can_reduce(HcclDataType type) {
    return bytes_of(type) && type <= HCCL_BFP16;
}

static inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float from_bfloat(uint16_t value) {
    return from_bits((uint32_t)value << 16);
}

static inline uint16_t to_bfloat(float value) {
    uint32_t bits = to_bits(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

/* Branch-free, so that the compiler makes vectors of it. A half's exponent is moved up by a multiplication, which
 * also normalises its subnormals. */
static inline float from_half(uint16_t value) {
    uint32_t magnitude = (uint32_t)(value & 0x7fff) << 13;
    uint32_t finite = to_bits(from_bits(magnitude) * 0x1p112f);
    uint32_t bits = magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : finite;
    return from_bits(bits | (uint32_t)(value & 0x8000) << 16);
}

static inline uint16_t to_half(float value) {
    uint32_t bits = to_bits(value), magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t subnormal = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000; /* the addition rounds at 2^-24 */
    uint32_t half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x477ff000 ? 0x7c00 : half;
    half = magnitude > 0x7f800000 ? 0x7e00 : half;
    return (uint16_t)(half | (bits >> 16 & 0x8000));
}

#define SAME(value) (value)
#define ADD(a, b) ((a) + (b))
#define MULTIPLY(a, b) ((a) * (b))
/* A NaN wins, on whichever side it is. */
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define SMALLER(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

#define FOLD(CARRIED, LOAD, COMBINE) \
    for (size_t i = 0; i < block; i++) { \
        carried[i] = (CARRIED)COMBINE(carried[i], LOAD(source[i])); \
    }

#define DEFINE_REDUCE(NAME, T, CARRIED, LOAD, STORE) \
    static void NAME(void *out, const void *const *sources, uint32_t source_count, size_t count, HcclReduceOp op) { \
        for (size_t start = 0; start < count; start += BLOCK) { \
            size_t block = count - start < BLOCK ? count - start : BLOCK; \
            CARRIED carried[BLOCK]; \
            const T *first = (const T *)sources[0] + start; \
            for (size_t i = 0; i < block; i++) { \
                carried[i] = (CARRIED)LOAD(first[i]); \
            } \
            for (uint32_t s = 1; s < source_count; s++) { \
                const T *source = (const T *)sources[s] + start; \
                switch (op) { \
                case HCCL_SUM: \
                    FOLD(CARRIED, LOAD, ADD) break; \
                case HCCL_PROD: \
                    FOLD(CARRIED, LOAD, MULTIPLY) break; \
                case HCCL_MAX: \
                    FOLD(CARRIED, LOAD, LARGER) break; \
                case HCCL_MIN: \
                    FOLD(CARRIED, LOAD, SMALLER) break; \
                } \
            } \
            T *target = (T *)out + start; \
            for (size_t i = 0; i < block; i++) { \
                target[i] = (T)STORE(carried[i]); \
            } \
        } \
    }

DEFINE_REDUCE(reduce_int8, int8_t, int8_t, SAME, SAME)
DEFINE_REDUCE(reduce_uint8, uint8_t, uint8_t, SAME, SAME)
DEFINE_REDUCE(reduce_int16, int16_t, int16_t, SAME, SAME)
DEFINE_REDUCE(reduce_uint16, uint16_t, uint16_t, SAME, SAME)
DEFINE_REDUCE(reduce_int32, int32_t, int32_t, SAME, SAME)
DEFINE_REDUCE(reduce_uint32, uint32_t, uint32_t, SAME, SAME)
DEFINE_REDUCE(reduce_int64, int64_t, int64_t, SAME, SAME)
DEFINE_REDUCE(reduce_uint64, uint64_t, uint64_t, SAME, SAME)
DEFINE_REDUCE(reduce_fp32, float, float, SAME, SAME)
DEFINE_REDUCE(reduce_fp64, double, double, SAME, SAME)
DEFINE_REDUCE(reduce_fp16, uint16_t, float, from_half, to_half)
DEFINE_REDUCE(reduce_bfp16, uint16_t, float, from_bfloat, to_bfloat)

void reduce(void *out, const void *const *sources, uint32_t source_count, size_t count, HcclDataType type,
            HcclReduceOp op) {
    switch (type) {
    case HCCL_INT8:
        reduce_int8(out, sources, source_count, count, op);
        break;
    case HCCL_UINT8:
        reduce_uint8(out, sources, source_count, count, op);
        break;
    case HCCL_INT16:
        reduce_int16(out, sources, source_count, count, op);
        break;
    case HCCL_UINT16:
        reduce_uint16(out, sources, source_count, count, op);
        break;
    case HCCL_INT32:
        reduce_int32(out, sources, source_count, count, op);
        break;
    case HCCL_UINT32:
        reduce_uint32(out, sources, source_count, count, op);
        break;
    case HCCL_INT64:
        reduce_int64(out, sources, source_count, count, op);
        break;
    case HCCL_UINT64:
        reduce_uint64(out, sources, source_count, count, op);
        break;
    case HCCL_FP32:
        reduce_fp32(out, sources, source_count, count, op);
        break;
    case HCCL_FP64:
        reduce_fp64(out, sources, source_count, count, op);
        break;
    case HCCL_FP16:
        reduce_fp16(out, sources, source_count, count, op);
        break;
    case HCCL_BFP16:
        reduce_bfp16(out, sources, source_count, count, op);
        break;
    default:
        break; /* refused when it was issued */
    }
}
