/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs whose load map does not stand still:
 *
 *	mappings libraries COUNT MILLISECONDS	loads so many libraries one after another, and runs each for so long, and
 *						again where others had the CPU for more than half of that
 *	mappings churn SECONDS			maps a library's code, runs it, and unmaps it, 1,000 times a second
 *	mappings jit SECONDS			the same with code in anonymous memory, which has frame pointers
 *	mappings jit_map SECONDS		once, and tells its name in /tmp/perf-PID.map
 *
 * The libraries are plugs/plug_NNN.so beside the program.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

typedef uint64_t run_fn(uint64_t cycles, uint64_t (*back)(uint64_t));

static char folder[4096];
static uint64_t cycles_of_a_millisecond;

static double seconds_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static double now(void)
{
	return seconds_of(CLOCK_MONOTONIC);
}

static void measure(void)
{
	double begun = now();
	uint64_t cycles = __rdtsc();

	while (now() - begun < 0.01)
		;
	cycles_of_a_millisecond = (__rdtsc() - cycles) / 10;
}

__attribute__((noinline)) static uint64_t called_back(uint64_t cycles)
{
	uint64_t end = __rdtsc() + cycles, n = 0;

	while (__rdtsc() < end)
		n++;
	return n;
}

static const char *plug(int number)
{
	static char path[5000];

	snprintf(path, sizeof(path), "%s/plugs/plug_%03d.so", folder, number);
	return path;
}

static void *symbol(void *library, const char *name)
{
	void *found = library ? dlsym(library, name) : NULL;

	if (!found) {
		fprintf(stderr, "mappings: %s\n", dlerror());
		exit(1);
	}
	return found;
}

__attribute__((noinline)) static uint64_t libraries(int count, double milliseconds)
{
	uint64_t sum = 0;

	for (int i = 0; i < count; i++) {
		run_fn *run = (run_fn *)symbol(dlopen(plug(i), RTLD_NOW), "plug_run");

		double begun = seconds_of(CLOCK_THREAD_CPUTIME_ID);

		do
			sum += run(milliseconds * cycles_of_a_millisecond, called_back);
		while (seconds_of(CLOCK_THREAD_CPUTIME_ID) - begun < milliseconds / 2000);
	}
	return sum;
}

/* Where in its file a library's function is: its code is mapped from its own offset on. */
static off_t offset_of(void *function)
{
	struct link_map *map;
	Dl_info info;
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start, end, offset, found = 0, at = (unsigned long)function;
	char line[5000];

	if (!dladdr1(function, &info, (void **)&map, RTLD_DL_LINKMAP) || !maps)
		exit(1);
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && at >= start && at < end)
			found = at - start + offset;
	fclose(maps);
	return found;
}

__attribute__((noinline)) static uint64_t churn(double seconds)
{
	void *library = dlopen(plug(0), RTLD_NOW);
	off_t offset = offset_of(symbol(library, "plug_run"));
	double begun = now(), next = begun;
	uint64_t sum = 0;
	struct stat status;
	int fd = open(plug(0), O_RDONLY);

	if (fd < 0 || fstat(fd, &status) || dlclose(library))
		exit(1);
	for (int i = 0; next - begun < seconds; i++, next += 0.001) {
		/* not always in the same place */
		char *place = (char *)0x200000000000 + (i % 50 << 24);
		char *code = mmap(place, status.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0);

		if (code == MAP_FAILED)
			exit(1);
		sum += ((run_fn *)(code + offset))(0.7 * cycles_of_a_millisecond, NULL);
		munmap(code, status.st_size);
	}
	return sum;
}

/* push %rbp; mov %rsp,%rbp; sub $32,%rsp; (again:) rdtsc; shl $32,%rdx; or %rdx,%rax; cmp %rdi,%rax; jb again; leave; ret:
 * turns until the time stamp counter is at its argument */
static const unsigned char JIT_CODE[] = {
	0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0x0f, 0x31, 0x48, 0xc1, 0xe2, 0x20,
	0x48, 0x09, 0xd0, 0x48, 0x39, 0xf8, 0x72, 0xf2, 0xc9, 0xc3,
};

static char *made_code(void)
{
	char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (code == MAP_FAILED)
		exit(1);
	memcpy(code, JIT_CODE, sizeof(JIT_CODE));
	mprotect(code, 4096, PROT_READ | PROT_EXEC);
	return code;
}

__attribute__((noinline)) static uint64_t jit(double seconds, int once)
{
	double begun = now();
	char *code = NULL, path[64];
	uint64_t runs = 0;
	FILE *map;

	for (; now() - begun < seconds; runs++) {
		if (!code)
			code = made_code();
		if (once && !runs) {
			snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
			map = fopen(path, "w");
			fprintf(map, "%lx %zx made_by_hand\n", (unsigned long)code, sizeof(JIT_CODE));
			fclose(map);
		}
		((uint64_t (*)(uint64_t))code)(__rdtsc() + 7 * cycles_of_a_millisecond / 10);
		if (!once) {
			munmap(code, 4096);
			code = NULL;
		}
	}
	return runs;
}

int main(int argc, char **argv)
{
	ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
	uint64_t done = 0;

	if (length < 0 || argc < 3)
		return 2;
	folder[length] = 0;
	dirname(folder);
	measure();
	if (!strcmp(argv[1], "libraries") && argc == 4)
		done = libraries(atoi(argv[2]), atof(argv[3]));
	else if (!strcmp(argv[1], "churn"))
		done = churn(atof(argv[2]));
	else if (!strncmp(argv[1], "jit", 3))
		done = jit(atof(argv[2]), !strcmp(argv[1], "jit_map"));
	printf("%lu\n", (unsigned long)done);
	return !done;
}
