/* The simulated machine as the environment describes it (see npusim.h), read once. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

static npusim_machine machine;
static int visible[MAX_DEVICES], visible_count;
static pthread_once_t machine_once = PTHREAD_ONCE_INIT, devices_once = PTHREAD_ONCE_INIT;

static long number_from(const char *name, long fallback, long least, long most) {
    const char *text = getenv(name);
    if (!text || !*text) {
        return fallback;
    }
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < least || value > most) {
        fprintf(stderr, "npukit: %s=%s is not a number from %ld to %ld.\n", name, text, least, most);
        exit(2);
    }
    return value;
}

/* As the real runtime reads it: numbers and commas, up to the first other sign, empty item or card that does not exist;
 * numbers that do not ascend leave no device at all. */
static void read_visible_devices(void) {
    int cards = (int)number_from("NPUKIT_SIM_DEVICES", 1, 0, MAX_DEVICES);
    const char *list = getenv("ASCEND_RT_VISIBLE_DEVICES");
    for (int i = 0; !list && i < cards; i++) {
        visible[visible_count++] = i;
    }
    int previous = -1;
    while (list && isdigit((unsigned char)*list)) {
        char *end;
        long card = strtol(list, &end, 10);
        if (card <= previous) {
            visible_count = 0;
            return;
        }
        if (card >= cards) {
            return;
        }
        visible[visible_count++] = previous = (int)card;
        list = *end == ',' ? end + 1 : NULL;
    }
}

static void read_machine(void) {
    const char *soc = getenv("NPUKIT_SIM_SOC");
    snprintf(machine.soc, sizeof machine.soc, "%s", soc && *soc ? soc : "Ascend910B3");
    const char *version = getenv("NPUKIT_SIM_CANN_VERSION");
    snprintf(machine.cann_version, sizeof machine.cann_version, "%s", version ? version : "");
    machine.memory = (size_t)number_from("NPUKIT_SIM_MEMORY_MIB", 65536, 1, 1 << 24) << 20;
    const char *cores = getenv("NPUKIT_SIM_CORES");
    if (!cores || !*cores) {
        cores = "20,40";
    }
    if (sscanf(cores, "%d,%d", &machine.cube_cores, &machine.vector_cores) != 2) {
        fprintf(stderr, "npukit: NPUKIT_SIM_CORES=%s is not of the form CUBE,VECTOR, e.g. 20,40.\n", cores);
        exit(2);
    }
    const char *compute = getenv("NPUKIT_SIM_COMPUTE");
    machine.shapes_only = compute && strcmp(compute, "shapes") == 0;
    if (compute && *compute && !machine.shapes_only && strcmp(compute, "full") != 0) {
        fprintf(stderr, "npukit: NPUKIT_SIM_COMPUTE=%s is neither full nor shapes.\n", compute);
        exit(2);
    }
}

const npusim_machine *npusim_the_machine(void) {
    pthread_once(&machine_once, read_machine);
    return &machine;
}

/* Read when devices are first asked for, not when the library is loaded: programs choose their devices in between. */
int npusim_device_count(void) {
    pthread_once(&devices_once, read_visible_devices);
    return visible_count;
}

int npusim_physical_device(int device) {
    pthread_once(&devices_once, read_visible_devices);
    return visible[device];
}

bool npusim_shapes_only(void) {
    return npusim_the_machine()->shapes_only;
}

int npusim_check_device(int64_t device) {
    int count = npusim_device_count();
    if (device >= 0 && device < count) {
        int card = npusim_physical_device((int)device);
        return npusim_card_is_lost(card) ? npusim_error(ACL_ERROR_RT_DEV_SETUP_ERROR,
                                                        "EL9999: Device %ld (card %d) does not answer: it has "
                                                        "dropped out, as NPUKIT_SIM_FAULTS asks.",
                                                        (long)device, card)
                                         : ACL_SUCCESS;
    }
    return npusim_error(ACL_ERROR_RT_INVALID_DEVICEID, "Device %ld does not exist; this process sees %d device(s).",
                        (long)device, count);
}
