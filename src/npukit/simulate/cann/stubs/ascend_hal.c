/* libascend_hal.so: the driver's own library, of which torch_npu asks how many cards the machine has, and its
 * profiler which clock to read. */
#include <stdint.h>
#include <stdlib.h>

int drvGetDevNum(uint32_t *count);
int halGetAPIVersion(int32_t *version);

int drvGetDevNum(uint32_t *count) {
    const char *cards = getenv("NPUKIT_SIM_DEVICES");
    *count = cards && *cards ? (uint32_t)strtoul(cards, NULL, 10) : 1;
    return 0;
}

/* A version before drivers knew the frequency of the counter: the profiler takes the clock, as the runtime does. */
int halGetAPIVersion(int32_t *version) {
    *version = 0x070000;
    return 0;
}
