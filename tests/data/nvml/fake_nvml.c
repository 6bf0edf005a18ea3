/*
 * A stand-in for libnvidia-ml.so.1: as many of NVML's functions as the hooks call, so that the tests run the real
 * nvidia-ml-py against it. What it answers stands in $FAKE_NVML, words like "recovery@1=2 init=9 hang=nvmlInitWithFlags":
 *
 *   KEY=N, KEY@GPU=N       an answer, or with a function's name as KEY the error code that it returns
 *   hang=FUNCTION          that function never returns; with freeze=PATH it first puts the process into that cgroup
 *   log=PATH               the name of every call is appended there
 *
 * -DOLD_DRIVER leaves out what came after R450. GPUs: 0000:05:00.0, 0000:06:00.0, 0000:07:00.0; more with gpus=8.
 * mig@1=2: GPU 1 is in MIG mode; its instances answer as GPU 20 and 21, and their GPU instance ids are 20 and 21.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, LOST = 15 };

typedef struct {
    int index;
    const char *bus;
} device;

static device devices[] = {{0, "00000000:05:00.0"}, {1, "00000000:06:00.0"}, {2, "00000000:07:00.0"},
                           {3, "00000000:a5:00.0"}, {4, "00000000:a6:00.0"}, {5, "00000000:a7:00.0"},
                           {6, "00000000:b5:00.0"}, {7, "00000000:b6:00.0"}};

/* The text after "KEY@GPU=" or "KEY=", NULL when there is none. */
static const char *find(const char *key, int gpu) {
    const char *said = getenv("FAKE_NVML");
    char wanted[2][96];
    snprintf(wanted[0], sizeof wanted[0], "%s@%d=", key, gpu);
    snprintf(wanted[1], sizeof wanted[1], "%s=", key);
    for (int i = 0; said && i < 2; i++) {
        for (const char *at = said; (at = strstr(at, wanted[i])); at++) {
            if (at == said || at[-1] == ' ') return at + strlen(wanted[i]);
        }
    }
    return NULL;
}

static long number(const char *key, int gpu, long otherwise) {
    const char *found = find(key, gpu);
    return found ? strtol(found, NULL, 0) : otherwise;
}

static void add(const char *key, const char *text, int flags) {
    const char *found = find(key, -1);
    char path[512];
    if (!found) return;
    snprintf(path, sizeof path, "%.*s", (int)strcspn(found, " "), found);
    int file = open(path, O_WRONLY | flags, 0666);
    if (file >= 0) {
        if (write(file, text, strlen(text)) < 0) _exit(99);
        close(file);
    }
}

/* What every function begins with: its error code, or it does not come back. */
static int enter(const char *name, int gpu) {
    char text[128];
    const char *hang = find("hang", gpu);
    snprintf(text, sizeof text, "%s %d\n", name, gpu);
    add("log", text, O_APPEND | O_CREAT);
    if (hang && strncmp(hang, name, strlen(name)) == 0 && strcspn(hang, " ") == strlen(name)) {
        snprintf(text, sizeof text, "%d\n", (int)getpid());
        add("freeze", text, 0);
        for (;;) pause();
    }
    if (gpu >= 0 && number("lost", gpu, 0)) return LOST;
    return (int)number(name, gpu, SUCCESS);
}

#define ENTER(gpu) do { int failed = enter(__func__, gpu); if (failed) return failed; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(-1);
    return (int)number("init", -1, SUCCESS);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device **found) {
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        if (strcasecmp(bus, devices[i].bus) == 0 || strcasecmp(bus, devices[i].bus + 4) == 0) {
            ENTER(devices[i].index);
            *found = &devices[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetTotalEccErrors(device *gpu, int type, int counter, unsigned long long *count) {
    ENTER(gpu->index);
    if (type != 1) return INVALID_ARGUMENT;
    *count = (unsigned long long)number(counter ? "ecc_aggregate" : "ecc_volatile", gpu->index, 0);
    return SUCCESS;
}

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} process;

static int processes(device *gpu, unsigned *count, process *found) {
    long pid = number("process", gpu->index, 0);
    if (!pid) {
        *count = 0;
        return SUCCESS;
    }
    if (*count < 1 || !found) {
        *count = 1;
        return INSUFFICIENT_SIZE;
    }
    *found = (process){.pid = (unsigned)pid, .memory = 512ULL << 20};
    *count = 1;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(device *gpu, unsigned *count, process *found) {
    ENTER(gpu->index);
    return processes(gpu, count, found);
}

int nvmlDeviceGetRetiredPages(device *gpu, int cause, unsigned *count, unsigned long long *pages) {
    ENTER(gpu->index);
    long have = number(cause ? "retired_double" : "retired_single", gpu->index, -1);
    if (have < 0) return NOT_SUPPORTED;
    if (have && (long)*count < have) {
        *count = (unsigned)have;
        return INSUFFICIENT_SIZE;
    }
    for (long i = 0; i < have; i++) pages[i] = (unsigned long long)i << 12;
    *count = (unsigned)have;
    return SUCCESS;
}

int nvmlDeviceGetRetiredPagesPendingStatus(device *gpu, unsigned *pending) {
    ENTER(gpu->index);
    *pending = (unsigned)number("retired_pending", gpu->index, 0);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(device *gpu, unsigned link, unsigned *active) {
    ENTER(gpu->index);
    if ((long)link >= number("links", gpu->index, 0)) return NOT_SUPPORTED;
    *active = (long)link < number("active", gpu->index, 99);
    return SUCCESS;
}

int nvmlDeviceGetCurrPcieLinkWidth(device *gpu, unsigned *width) {
    ENTER(gpu->index);
    *width = (unsigned)number("width", gpu->index, 16);
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkWidth(device *gpu, unsigned *width) {
    ENTER(gpu->index);
    *width = 16;
    return SUCCESS;
}

int nvmlDeviceGetPcieReplayCounter(device *gpu, unsigned *count) {
    ENTER(gpu->index);
    *count = (unsigned)number("replays", gpu->index, 0);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device *gpu, unsigned long long *reasons) {
    ENTER(gpu->index);
    *reasons = (unsigned long long)number("reasons", gpu->index, 1);
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(device *gpu, unsigned kind, unsigned *mhz) {
    ENTER(gpu->index);
    *mhz = (unsigned)number("clock", gpu->index, 0);
    return kind == 1 && *mhz ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxClockInfo(device *gpu, unsigned kind, unsigned *mhz) {
    ENTER(gpu->index);
    *mhz = 1980;
    return kind == 1 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetViolationStatus(device *gpu, unsigned policy, unsigned long long *found) {
    ENTER(gpu->index);
    found[0] = 1;
    found[1] = (unsigned long long)number("thermal_ns", gpu->index, 0);
    return policy == 1 && found[1] ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetPersistenceMode(device *gpu, unsigned *mode) {
    ENTER(gpu->index);
    *mode = (unsigned)number("persistence", gpu->index, 1);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(-1);
    *count = (unsigned)number("gpus", -1, 3);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **found) {
    if (index >= sizeof devices / sizeof *devices) return INVALID_ARGUMENT;
    ENTER((int)index);
    *found = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device *gpu, unsigned *found) {
    ENTER(gpu->index);
    found[0] = (unsigned)number("sm", gpu->index, 0);
    found[1] = (unsigned)number("mem", gpu->index, 0);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(device *gpu, unsigned *minor) {
    ENTER(gpu->index);
    *minor = (unsigned)number("minor", gpu->index, gpu->index);
    return SUCCESS;
}

int nvmlDeviceGetUUID(device *gpu, char *uuid, unsigned size) {
    ENTER(gpu->index);
    snprintf(uuid, size, "GPU-%d-fake", gpu->index);
    return SUCCESS;
}

typedef struct {
    char old[16];
    unsigned ids[5];
    char bus[32];
} pci;

int nvmlDeviceGetPciInfo_v3(device *gpu, pci *found) {
    ENTER(gpu->index);
    snprintf(found->bus, sizeof found->bus, "%s", gpu->bus);
    return SUCCESS;
}

/* total, free, used */
int nvmlDeviceGetMemoryInfo(device *gpu, unsigned long long *bytes) {
    ENTER(gpu->index);
    bytes[0] = 80ULL << 30;
    bytes[2] = (unsigned long long)number("used_mib", gpu->index, 0) << 20;
    bytes[1] = bytes[0] - bytes[2];
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device *gpu, unsigned *milliwatts) {
    ENTER(gpu->index);
    *milliwatts = (unsigned)number("power", gpu->index, 60000);
    return SUCCESS;
}

/* receive (1) is measured over the last 20 ms, in KB/s, as is send (0) */
int nvmlDeviceGetPcieThroughput(device *gpu, int counter, unsigned *kilobytes) {
    ENTER(gpu->index);
    *kilobytes = (unsigned)number(counter ? "pcie_rx" : "pcie_tx", gpu->index, 0);
    return SUCCESS;
}

int nvmlDeviceGetAccountingMode(device *gpu, unsigned *mode) {
    ENTER(gpu->index);
    *mode = (unsigned)number("accounting", gpu->index, 0);
    return SUCCESS;
}

int nvmlDeviceGetAccountingBufferSize(device *gpu, unsigned *size) {
    ENTER(gpu->index);
    *size = 4000;
    return SUCCESS;
}

/* Two processes: 700 long before every job, 701 a minute from now. */
int nvmlDeviceGetAccountingPids(device *gpu, unsigned *count, unsigned *pids) {
    ENTER(gpu->index);
    pids[0] = 700;
    pids[1] = 701;
    *count = 2;
    return SUCCESS;
}

typedef struct {
    unsigned gpu, memory;
    unsigned long long most, time, start;
    unsigned running, reserved[5];
} accounted;

int nvmlDeviceGetAccountingStats(device *gpu, unsigned pid, accounted *stats) {
    ENTER(gpu->index);
    unsigned long long start = pid == 700 ? 1000000001ULL : 4000000000ULL;
    *stats = (accounted){.gpu = 87, .memory = 41, .most = 30ULL << 30, .time = 5000, .start = start * 1000000ULL};
    return SUCCESS;
}

/* The driver's own samples of the use: "samples=4" of them, alternately "sm" and 0 percent, after one of an hour ago. */
typedef struct {
    unsigned long long at_us, value;
} sample;

int nvmlDeviceGetSamples(device *gpu, int kind, unsigned long long since, int *type, unsigned *count, sample *found) {
    ENTER(gpu->index);
    long have = number("samples", gpu->index, 0);
    if (kind != 1 || !have) return NOT_SUPPORTED;
    *type = 1;
    if (*count < have + 1) return INSUFFICIENT_SIZE;
    for (long i = 0; i <= have; i++) {
        unsigned long long at = 7200000000ULL + (unsigned long long)i * 166000;
        long value = i % 2 ? number("sm", gpu->index, 0) : 0;
        found[i] = i ? (sample){.at_us = at + since, .value = (unsigned long long)value}
                     : (sample){.at_us = 3600000000ULL, .value = 100};
    }
    *count = (unsigned)have + 1;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(device *gpu, unsigned long long *millijoules) {
    ENTER(gpu->index);
    long found = number("energy", gpu->index, -1);
    if (found < 0) return NOT_SUPPORTED;
    *millijoules = (unsigned long long)found;
    return SUCCESS;
}

#ifndef OLD_DRIVER

static device instances[] = {{10, ""}, {11, ""}, {20, ""}, {21, ""}, {30, ""}, {31, ""}};

int nvmlDeviceGetMigMode(device *gpu, unsigned *now, unsigned *pending) {
    ENTER(gpu->index);
    long have = number("mig", gpu->index, -1);
    if (have < 0) return NOT_SUPPORTED;
    *now = *pending = have > 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device *gpu, unsigned *count) {
    ENTER(gpu->index);
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *gpu, unsigned index, device **found) {
    ENTER(gpu->index);
    if (gpu->index > 2 || index > 1 || (long)index >= number("mig", gpu->index, 0)) return NOT_FOUND;
    *found = &instances[2 * gpu->index + (int)index];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(device *instance, unsigned *id) {
    ENTER(instance->index);
    *id = (unsigned)instance->index;
    return SUCCESS;
}

typedef struct {
    int gpu;
    unsigned long at;
} gpm_sample;

static int take_sample(int gpu, gpm_sample *sample) {
    static unsigned long taken;
    if (number("gpm", gpu, -1) < 0) return NOT_SUPPORTED;
    *sample = (gpm_sample){.gpu = gpu, .at = ++taken};
    return SUCCESS;
}

int nvmlGpmSampleAlloc(gpm_sample **sample) {
    ENTER(-1);
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

int nvmlGpmMigSampleGet(device *gpu, unsigned instance, gpm_sample *sample) {
    ENTER(gpu->index);
    return take_sample((int)instance, sample);
}

int nvmlGpmSampleFree(gpm_sample *sample) {
    ENTER(-1);
    free(sample);
    return SUCCESS;
}

int nvmlGpmSampleGet(device *gpu, gpm_sample *sample) {
    ENTER(gpu->index);
    return take_sample(gpu->index, sample);
}

/* nvmlGpmMetricsGet_t of version 1. What a metric's value is stands in "gpm" (the multiprocessors) and "gpm10", ... */
typedef struct {
    unsigned version, count;
    gpm_sample *samples[2];
    struct {
        unsigned number, result;
        double value;
        char *names[3];
    } metrics[477];
} gpm;

int nvmlGpmMetricsGet(gpm *asked) {
    ENTER(-1);
    gpm_sample *before = asked->samples[0], *now = asked->samples[1];
    if (asked->version != 1 || asked->count > 477 || before->at >= now->at || before->gpu != now->gpu) {
        return INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < asked->count; i++) {
        char key[16] = "gpm";
        if (asked->metrics[i].number != 2) snprintf(key, sizeof key, "gpm%u", asked->metrics[i].number);
        const char *found = find(key, now->gpu);
        asked->metrics[i].result = found ? SUCCESS : NOT_SUPPORTED;
        asked->metrics[i].value = found ? strtod(found, NULL) : 0;
    }
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkGeneration(device *gpu, unsigned *generation) {
    ENTER(gpu->index);
    *generation = (unsigned)number("generation", gpu->index, 5);
    return SUCCESS;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, result;
    union {
        unsigned ui;
        unsigned long long ull;
    } value;
} field;

int nvmlDeviceGetFieldValues(device *gpu, int count, field *fields) {
    ENTER(gpu->index);
    for (int i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof key, fields[i].field == 230 ? "recovery" : "field%u", fields[i].field);
        long found = number(key, gpu->index, fields[i].field == 230 ? 0 : -1);
        fields[i].result = found < 0 ? NOT_SUPPORTED : SUCCESS;
        int is_int = fields[i].field == 230 || fields[i].field == 164 || fields[i].field == 90;
        fields[i].type = is_int ? 1 : 3;
        fields[i].value.ull = is_int ? 0xAAAAAAAAAAAAAAAAULL : 0;
        if (fields[i].type == 1) fields[i].value.ui = (unsigned)found;
        else fields[i].value.ull = (unsigned long long)found;
    }
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(device *gpu, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                              unsigned *failed) {
    ENTER(gpu->index);
    *correctable = 0;
    *uncorrectable = (unsigned)number("remapped", gpu->index, 0);
    *pending = (unsigned)number("remap_pending", gpu->index, 0);
    *failed = (unsigned)number("remap_failed", gpu->index, 0);
    return SUCCESS;
}

typedef struct {
    unsigned version;
    unsigned long long counts[11];
    unsigned exceeded;
} sram;

/* Order of the counts: aggregate parity, SEC-DED, corrected, then the same three volatile, then five by unit. */
int nvmlDeviceGetSramEccErrorStatus(device *gpu, sram *status) {
    ENTER(gpu->index);
    if (status->version != (sizeof *status | 1U << 24)) return 25;
    status->counts[1] = (unsigned long long)number("sram_aggregate", gpu->index, 0);
    status->counts[4] = (unsigned long long)number("sram_volatile", gpu->index, 0);
    status->exceeded = (unsigned)number("sram_exceeded", gpu->index, 0);
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *gpu, unsigned *count, process *found) {
    ENTER(gpu->index);
    return processes(gpu, count, found);
}

int nvmlDeviceGetCurrentClocksEventReasons(device *gpu, unsigned long long *reasons) {
    ENTER(gpu->index);
    *reasons = (unsigned long long)number("reasons", gpu->index, 1);
    return SUCCESS;
}

#endif
