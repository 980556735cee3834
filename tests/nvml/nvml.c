// The part of libnvidia-ml.so.1 that orch asks, for tests: it tells what the file named by NVML_STUB says.
// A line is a word and its values; `gpu UUID` begins a card and `instance UUID` a part of it. What a card has no line
// for is "not supported". The file is read anew at each count once it has been replaced.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };
enum { CARDS = 16, PARTS = 8, PROCESSES = 256 };
typedef unsigned long long u64;

typedef struct { unsigned pid; u64 memory; unsigned gi, ci; } process;
typedef struct device {
  char uuid[96], name[96], bus[32];
  u64 total, used, throttle;
  long long utilization, power, limit, temperature, clock, mode, persistence, mig, minor, pending, errors[2], remap[4];
  int has_memory, has_throttle, hidden, gi, ci, parts, computing, drawing;
  process compute[PROCESSES], graphics[PROCESSES];
  struct device *part;
} device;

static device cards[CARDS], instances[CARDS][PARTS];
static char driver[96];
static int count, cuda, loaded, failure;
static struct timespec read_at;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void clear(device *d) {
  memset(d, 0, sizeof *d);
  d->utilization = d->power = d->limit = d->temperature = d->clock = d->mode = d->persistence = d->mig = d->minor = d->pending = -1;
  d->errors[0] = d->errors[1] = d->remap[0] = -1;
}

static void read_state(void) {
  const char *path = getenv("NVML_STUB");
  struct stat found;
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[512], word[64];
  device *d = NULL;
  if (!file) { loaded = 0; return; }
  if (fstat(fileno(file), &found) == 0 && loaded && memcmp(&found.st_mtim, &read_at, sizeof read_at) == 0) { fclose(file); return; }
  read_at = found.st_mtim;
  loaded = 1, count = 0, cuda = 0, driver[0] = 0;
  while (fgets(line, sizeof line, file)) {
    char *rest = line;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "%63s", word) != 1) continue;
    rest = line + strspn(line, " ") + strlen(word);
    rest += strspn(rest, " ");
#define IS(name) (strcmp(word, name) == 0)
    if (IS("driver")) snprintf(driver, sizeof driver, "%s", rest);
    else if (IS("cuda")) cuda = atoi(rest);
    else if (IS("broken")) loaded = 0, failure = atoi(rest);
    else if (IS("gpu") && count < CARDS) { d = &cards[count++]; clear(d); d->gi = d->ci = -1; snprintf(d->uuid, 96, "%s", rest); }
    else if (!d) continue;
    else if (IS("instance")) {
      device *owner = &cards[count - 1];
      d = &instances[count - 1][owner->parts++];
      clear(d);
      sscanf(rest, "%95s %d %d", d->uuid, &d->gi, &d->ci);
    }
    else if (IS("name")) snprintf(d->name, 96, "%s", rest);
    else if (IS("bus")) snprintf(d->bus, 32, "%s", rest);
    else if (IS("memory")) d->has_memory = sscanf(rest, "%llu %llu", &d->total, &d->used) == 2;
    else if (IS("utilization")) d->utilization = atoll(rest);
    else if (IS("power")) d->power = atoll(rest);
    else if (IS("limit")) d->limit = atoll(rest);
    else if (IS("temperature")) d->temperature = atoll(rest);
    else if (IS("clock")) d->clock = atoll(rest);
    else if (IS("throttle")) d->has_throttle = 1, d->throttle = strtoull(rest, NULL, 0);
    else if (IS("volatile")) d->errors[0] = atoll(rest);
    else if (IS("aggregate")) d->errors[1] = atoll(rest);
    else if (IS("pending")) d->pending = atoll(rest);
    else if (IS("remap")) sscanf(rest, "%lld %lld %lld %lld", d->remap, d->remap + 1, d->remap + 2, d->remap + 3);
    else if (IS("mode")) d->mode = atoll(rest);
    else if (IS("persistence")) d->persistence = atoll(rest);
    else if (IS("mig")) d->mig = atoll(rest);
    else if (IS("minor")) d->minor = atoll(rest);
    else if (IS("hidden")) d->hidden = 1;
    else if (IS("process") || IS("draws")) {
      process p = {0, ~0ull, ~0u, ~0u};
      sscanf(rest, "%u %llu %u %u", &p.pid, &p.memory, &p.gi, &p.ci);
      if (IS("process") && d->computing < PROCESSES) d->compute[d->computing++] = p;
      if (IS("draws") && d->drawing < PROCESSES) d->graphics[d->drawing++] = p;
    }
  }
  fclose(file);
}

static int text(const char *from, char *to, unsigned size) {
  if (!from[0]) return NOT_SUPPORTED;
  snprintf(to, size, "%s", from);
  return SUCCESS;
}

static int number(long long from, unsigned *to) {
  if (from < 0) return NOT_SUPPORTED;
  *to = (unsigned)from;
  return SUCCESS;
}

int nvmlInit_v2(void) {
  pthread_mutex_lock(&lock);
  read_state();
  pthread_mutex_unlock(&lock);
  return loaded ? SUCCESS : failure ? failure : DRIVER_NOT_LOADED;
}
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Driver Not Loaded"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return text(driver, to, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { *to = cuda; return cuda ? SUCCESS : NOT_SUPPORTED; }
int nvmlDeviceGetCount_v2(unsigned *to) { nvmlInit_v2(); *to = count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **to) {
  if (index >= (unsigned)count) return NOT_FOUND;
  *to = &cards[index];
  return cards[index].hidden ? NO_PERMISSION : SUCCESS;
}
int nvmlDeviceGetUUID(device *d, char *to, unsigned size) { return text(d->uuid, to, size); }
int nvmlDeviceGetName(device *d, char *to, unsigned size) { return text(d->name, to, size); }
int nvmlDeviceGetMinorNumber(device *d, unsigned *to) { return number(d->minor, to); }
int nvmlDeviceGetPciInfo_v3(device *d, void *to) {
  memset(to, 0, 68);
  return text(d->bus, (char *)to + 36, 32);
}
int nvmlDeviceGetMemoryInfo(device *d, u64 *to) {
  to[0] = d->total, to[1] = d->total - d->used, to[2] = d->used;
  return d->has_memory ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetUtilizationRates(device *d, unsigned *to) { to[1] = 0; return number(d->utilization, to); }
int nvmlDeviceGetPowerUsage(device *d, unsigned *to) { return number(d->power, to); }
int nvmlDeviceGetEnforcedPowerLimit(device *d, unsigned *to) { return number(d->limit, to); }
int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *to) { return sensor ? NOT_FOUND : number(d->temperature, to); }
int nvmlDeviceGetClockInfo(device *d, int kind, unsigned *to) { return kind != 1 ? NOT_FOUND : number(d->clock, to); }
int nvmlDeviceGetTotalEccErrors(device *d, int kind, int counter, u64 *to) {
  if (kind != 1 || d->errors[counter] < 0) return NOT_SUPPORTED;
  *to = d->errors[counter];
  return SUCCESS;
}
int nvmlDeviceGetRetiredPagesPendingStatus(device *d, unsigned *to) { return number(d->pending, to); }
int nvmlDeviceGetComputeMode(device *d, unsigned *to) { return number(d->mode, to); }
int nvmlDeviceGetPersistenceMode(device *d, unsigned *to) { return number(d->persistence, to); }
int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, u64 *to) { *to = d->throttle; return d->has_throttle ? SUCCESS : NOT_SUPPORTED; }
#ifndef OLD
int nvmlDeviceGetRemappedRows(device *d, unsigned *a, unsigned *b, unsigned *c, unsigned *e) {
  if (d->remap[0] < 0) return NOT_SUPPORTED;
  *a = d->remap[0], *b = d->remap[1], *c = d->remap[2], *e = d->remap[3];
  return SUCCESS;
}
int nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *then) { *then = 0; return number(d->mig, now); }
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *to) { *to = PARTS; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **to) {
  if (index >= (unsigned)d->parts) return NOT_FOUND;
  *to = &instances[d - cards][index];
  return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(device *d, unsigned *to) { return number(d->gi, to); }
int nvmlDeviceGetComputeInstanceId(device *d, unsigned *to) { return number(d->ci, to); }
static int list(process *from, int length, unsigned *size, process *to) {
  unsigned room = *size;
  *size = length;
  if (room < (unsigned)length) return INSUFFICIENT_SIZE;
  memcpy(to, from, length * sizeof *to);
  return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned *n, process *to) { return list(d->compute, d->computing, n, to); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device *d, unsigned *n, process *to) { return list(d->graphics, d->drawing, n, to); }
#endif
