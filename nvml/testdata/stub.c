// A stand-in for libnvidia-ml.so.1. What it answers is read from the control file (KVFERRY_STUB_CONTROL) at each call:
//
//	gpus N                how many GPUs there are (default 0)
//	down 1                the driver is not there: nvmlInit fails, every call is "uninitialized"
//	FUNCTION[.GPU] CODE   that call fails with that code
//	hang.FUNCTION[.GPU] 1 that call does not return while the line is there
//	VALUE[.GPU] N         a value; the names are in the functions
//
// Each call is appended to the control file's name plus ".log". Structs are written out, as in nvml.h.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret_t;
typedef struct device { int gpu, instance; } *device_t;
typedef unsigned long long u64;

static struct device devices[64];
static struct device instances[64][8];
static int inited;
static unsigned long delivered;

static int find(const char *key, long long *out) {
	const char *path = getenv("KVFERRY_STUB_CONTROL");
	FILE *f = path ? fopen(path, "r") : NULL;
	if (!f) return 0;
	char line[256], name[200];
	long long v;
	int found = 0;
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "%199s %lld", name, &v) == 2 && strcmp(name, key) == 0) { *out = v; found = 1; }
	fclose(f);
	return found;
}

static int find_gpu(const char *key, int gpu, long long *out) {
	char name[200];
	snprintf(name, sizeof name, "%s.%d", key, gpu);
	return (gpu >= 0 && find(name, out)) || find(key, out);
}

static long long value(const char *key, int gpu, long long otherwise) {
	long long v;
	return find_gpu(key, gpu, &v) ? v : otherwise;
}

static void note(const char *text) {
	const char *path = getenv("KVFERRY_STUB_CONTROL");
	char name[4200];
	if (!path) return;
	snprintf(name, sizeof name, "%s.log", path);
	FILE *f = fopen(name, "a");
	if (!f) return;
	fprintf(f, "%s\n", text);
	fclose(f);
}

static ret_t enter(const char *fn, int gpu) {
	char key[200];
	long long v;
	note(fn);
	snprintf(key, sizeof key, "hang.%s", fn);
	if (find_gpu(key, gpu, &v)) {
		note("HANG");
		while (find_gpu(key, gpu, &v)) usleep(2000);
	}
	if (strncmp(fn, "nvmlInit", 8) == 0) {
		if (find("down", &v)) return 9;
	} else if (!inited || find("down", &v)) {
		return 1;
	}
	if (find_gpu(fn, gpu, &v)) return (ret_t)v;
	return 0;
}

#define ENTER(gpu) do { ret_t rc_ = enter(__func__, gpu); if (rc_) return rc_; } while (0)
#define DEV(d) ENTER((d)->gpu); if ((d)->instance >= 0 && value("no_instance_calls", -1, 0)) return 3
#define WHOLE(d) DEV(d); if ((d)->instance >= 0) return 3

static ret_t init(const char *fn) {
	ret_t rc = enter(fn, -1);
	if (rc) return rc;
	inited++;
	for (int i = 0; i < 64; i++) {
		devices[i].gpu = i;
		devices[i].instance = -1;
		for (int k = 0; k < 8; k++) instances[i][k] = (struct device){i, k};
	}
	return 0;
}
ret_t nvmlInit(void) { return init(__func__); }
ret_t nvmlInit_v2(void) { return init(__func__); }
ret_t nvmlShutdown(void) { ENTER(-1); inited--; return 0; }
// Not to be called: it may be absent. Calling it ends the test.
const char *nvmlErrorString(ret_t r) { (void)r; note("nvmlErrorString"); abort(); }

ret_t nvmlSystemGetDriverVersion(char *text, unsigned n) { ENTER(-1); snprintf(text, n, "580.%lld", value("driver", -1, 1)); return 0; }
ret_t nvmlSystemGetNVMLVersion(char *text, unsigned n) { ENTER(-1); snprintf(text, n, "13.580.1"); return 0; }

static ret_t count(unsigned *n) { *n = (unsigned)value("gpus", -1, 0); return 0; }
ret_t nvmlDeviceGetCount(unsigned *n) { ENTER(-1); return count(n); }
ret_t nvmlDeviceGetCount_v2(unsigned *n) { ENTER(-1); return count(n); }
static ret_t handle(unsigned i, device_t *d) { if (i >= 64) return 2; *d = &devices[i]; return 0; }
ret_t nvmlDeviceGetHandleByIndex(unsigned i, device_t *d) { ENTER((int)i); return handle(i, d); }
ret_t nvmlDeviceGetHandleByIndex_v2(unsigned i, device_t *d) { ENTER((int)i); return handle(i, d); }
ret_t nvmlDeviceGetUUID(device_t d, char *text, unsigned n) {
	DEV(d);
	if (d->instance >= 0) snprintf(text, n, "MIG-%d-%d", d->gpu, d->instance);
	else snprintf(text, n, "GPU-%lld", value("uuid", d->gpu, d->gpu));
	return 0;
}
ret_t nvmlDeviceGetName(device_t d, char *text, unsigned n) {
	DEV(d);
	snprintf(text, n, d->instance >= 0 ? "Stub MIG 1g" : "Stub %d", d->gpu);
	return 0;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; };
static ret_t pci(device_t d, struct pci *p) {
	snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", 16 + d->gpu);
	return 0;
}
ret_t nvmlDeviceGetPciInfo(device_t d, struct pci *p) { DEV(d); return pci(d, p); }
ret_t nvmlDeviceGetPciInfo_v2(device_t d, struct pci *p) { DEV(d); return pci(d, p); }
ret_t nvmlDeviceGetPciInfo_v3(device_t d, struct pci *p) { DEV(d); return pci(d, p); }

struct utilization { unsigned gpu, memory; };
ret_t nvmlDeviceGetUtilizationRates(device_t d, struct utilization *u) {
	WHOLE(d);
	u->gpu = (unsigned)value("utilization", d->gpu, 0);
	u->memory = (unsigned)value("memory_utilization", d->gpu, 0);
	return 0;
}

static u64 bytes(const char *key, device_t d, u64 otherwise) {
	u64 v = (u64)value(key, d->gpu, (long long)otherwise);
	return d->instance >= 0 ? v / 8 : v;
}
struct memory { u64 total, free, used; };
ret_t nvmlDeviceGetMemoryInfo(device_t d, struct memory *m) {
	DEV(d);
	m->total = bytes("total", d, 1 << 30);
	m->free = bytes("free", d, 1 << 29);
	m->used = bytes("used", d, 1 << 28) + bytes("reserved", d, 1 << 28);
	return 0;
}
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
ret_t nvmlDeviceGetMemoryInfo_v2(device_t d, struct memory_v2 *m) {
	DEV(d);
	if (m->version != (sizeof(struct memory_v2) | 2u << 24)) return 25;
	m->total = bytes("total", d, 1 << 30);
	m->free = bytes("free", d, 1 << 29);
	m->used = bytes("used", d, 1 << 28);
	m->reserved = bytes("reserved", d, 1 << 28);
	return 0;
}

ret_t nvmlDeviceGetPcieThroughput(device_t d, unsigned counter, unsigned *v) {
	WHOLE(d);
	*v = (unsigned)value(counter == 0 ? "pcie_tx" : "pcie_rx", d->gpu, 0);
	return 0;
}
ret_t nvmlDeviceGetPcieReplayCounter(device_t d, unsigned *v) { WHOLE(d); *v = (unsigned)value("replays", d->gpu, 0); return 0; }
ret_t nvmlDeviceGetPowerUsage(device_t d, unsigned *v) { WHOLE(d); *v = (unsigned)value("power", d->gpu, 0); return 0; }
ret_t nvmlDeviceGetEnforcedPowerLimit(device_t d, unsigned *v) { WHOLE(d); *v = (unsigned)value("power_limit", d->gpu, 0); return 0; }

struct temperature { unsigned version, sensor; int degrees; };
ret_t nvmlDeviceGetTemperatureV(device_t d, struct temperature *t) {
	WHOLE(d);
	if (t->version != (sizeof(struct temperature) | 1u << 24)) return 25;
	if (t->sensor != 0) return 2;
	t->degrees = (int)value("temperature", d->gpu, 0);
	return 0;
}
ret_t nvmlDeviceGetTemperature(device_t d, unsigned sensor, unsigned *v) {
	WHOLE(d);
	if (sensor != 0) return 2;
	*v = (unsigned)value("old_temperature", d->gpu, 0);
	return 0;
}
ret_t nvmlDeviceGetClockInfo(device_t d, unsigned type, unsigned *v) {
	WHOLE(d);
	*v = (unsigned)value(type == 1 ? "sm" : type == 2 ? "mem" : "?", d->gpu, 0);
	return 0;
}
ret_t nvmlDeviceGetMaxClockInfo(device_t d, unsigned type, unsigned *v) {
	WHOLE(d);
	*v = (unsigned)value(type == 1 ? "sm_max" : type == 2 ? "mem_max" : "?", d->gpu, 0);
	return 0;
}
ret_t nvmlDeviceGetCurrentClocksEventReasons(device_t d, u64 *v) { WHOLE(d); *v = (u64)value("reasons", d->gpu, 0); return 0; }
ret_t nvmlDeviceGetCurrentClocksThrottleReasons(device_t d, u64 *v) { WHOLE(d); *v = (u64)value("old_reasons", d->gpu, 0); return 0; }

ret_t nvmlDeviceGetTotalEccErrors(device_t d, unsigned kind, unsigned counter, u64 *v) {
	WHOLE(d);
	if (counter != 0) return 2;
	*v = (u64)value(kind == 0 ? "corrected" : "uncorrected", d->gpu, 0);
	return 0;
}
ret_t nvmlDeviceGetRemappedRows(device_t d, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
	WHOLE(d);
	*c = (unsigned)value("rows_corrected", d->gpu, 0);
	*u = (unsigned)value("rows_uncorrected", d->gpu, 0);
	*pending = (unsigned)value("rows_pending", d->gpu, 0);
	*failed = (unsigned)value("rows_failed", d->gpu, 0);
	return 0;
}
ret_t nvmlDeviceGetRetiredPages(device_t d, unsigned cause, unsigned *n, u64 *pages) {
	WHOLE(d);
	unsigned have = (unsigned)value(cause == 0 ? "retired_single" : "retired_double", d->gpu, 0), room = *n;
	*n = have;
	if (have > room) return 7;
	for (unsigned i = 0; i < have; i++) pages[i] = i;
	return 0;
}

struct process_v1 { unsigned pid; u64 used; };
struct process { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; };
static ret_t processes(device_t d, unsigned *n, void *out, int v1) {
	unsigned have = (unsigned)value("processes", d->gpu, 0), room = *n;
	if (value("processes_lie", d->gpu, 0)) { *n = room + 5; return 0; }
	*n = have;
	if (have > room) return 7;
	for (unsigned i = 0; i < have; i++) {
		u64 used = i == 1 ? ~0ull : 1000ull * (i + 1);
		if (v1) ((struct process_v1 *)out)[i] = (struct process_v1){100 - i, used};
		else ((struct process *)out)[i] = (struct process){100 - i, used, ~0u, ~0u};
	}
	return 0;
}
ret_t nvmlDeviceGetComputeRunningProcesses(device_t d, unsigned *n, struct process_v1 *p) { DEV(d); return processes(d, n, p, 1); }
ret_t nvmlDeviceGetComputeRunningProcesses_v2(device_t d, unsigned *n, struct process *p) { DEV(d); return processes(d, n, p, 0); }
ret_t nvmlDeviceGetComputeRunningProcesses_v3(device_t d, unsigned *n, struct process *p) { DEV(d); return processes(d, n, p, 0); }

ret_t nvmlDeviceGetMigMode(device_t d, unsigned *current, unsigned *pending) {
	WHOLE(d);
	*current = *pending = value("mig", d->gpu, 0) > 0;
	return value("mig", d->gpu, -1) < 0 ? 3 : 0;
}
ret_t nvmlDeviceGetMaxMigDeviceCount(device_t d, unsigned *n) { WHOLE(d); *n = (unsigned)value("mig_max", d->gpu, 7); return 0; }
ret_t nvmlDeviceGetMigDeviceHandleByIndex(device_t d, unsigned i, device_t *out) {
	WHOLE(d);
	// Places are taken from the second on: the first one is free.
	if (i < 1 || (long long)i > value("mig", d->gpu, 0)) return 6;
	*out = &instances[d->gpu][i];
	return 0;
}
ret_t nvmlDeviceGetGpuInstanceId(device_t d, unsigned *v) { DEV(d); *v = 10 + (unsigned)d->instance; return 0; }
ret_t nvmlDeviceGetComputeInstanceId(device_t d, unsigned *v) { DEV(d); *v = 0; return 0; }
struct attributes { unsigned sms, copy, dec, enc, jpeg, ofa, gpu_slices, compute_slices; u64 mib; };
static ret_t attributes(struct attributes *a) { memset(a, 0, sizeof *a); a->sms = 16; return 0; }
ret_t nvmlDeviceGetAttributes(device_t d, struct attributes *a) { DEV(d); return attributes(a); }
ret_t nvmlDeviceGetAttributes_v2(device_t d, struct attributes *a) { DEV(d); return attributes(a); }

struct event { device_t device; u64 type, data; unsigned gpu_instance, compute_instance; };
static int set, registered;
ret_t nvmlEventSetCreate(void **out) { ENTER(-1); *out = &set; registered = 0; return 0; }
ret_t nvmlEventSetFree(void *s) { (void)s; ENTER(-1); return 0; }
ret_t nvmlDeviceGetSupportedEventTypes(device_t d, u64 *v) { WHOLE(d); *v = (u64)value("event_types", d->gpu, 0x1f); return 0; }
ret_t nvmlDeviceRegisterEvents(device_t d, u64 types, void *s) { (void)s; WHOLE(d); if (types != 8) return 2; registered++; return 0; }
static ret_t wait_(struct event *e, unsigned ms) {
	if (ms != 0 || !registered) return 2;
	if (delivered >= (u64)value("events", -1, 0)) return 10;
	int gpu = (int)value("event_gpu", -1, 0);
	e->device = &devices[gpu];
	e->type = (u64)value("event_type", -1, 8);
	e->data = (u64)value("event_code", -1, 0);
	delivered++;
	return 0;
}
ret_t nvmlEventSetWait(void *s, struct event *e, unsigned ms) { (void)s; ENTER(-1); return wait_(e, ms); }
ret_t nvmlEventSetWait_v2(void *s, struct event *e, unsigned ms) { (void)s; ENTER(-1); return wait_(e, ms); }
