// SPDX-License-Identifier: Apache-2.0
/*
 * two_copies PLUGIN PLUGIN ARGUMENT... - runs two plug-ins that are omp_truth, one after the other, each with a copy of
 * libgomp of its own, as Python's packages bring them. Their logs are $PARPROF_TRUTH.0 and $PARPROF_TRUTH.1.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	char *log = getenv("PARPROF_TRUTH");
	int (*run[2])(int, char **);
	char path[4096];

	if (argc < 4 || !log)
		return 2;
	log = strdup(log);
	for (int i = 0; i < 2; i++) {
		void *plugin = dlopen(argv[1 + i], RTLD_NOW | RTLD_LOCAL);

		if (!plugin) {
			fprintf(stderr, "two_copies: %s\n", dlerror());
			return 1;
		}
		*(void **)&run[i] = dlsym(plugin, "plugin_main");
	}
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%.4000s.%d", log, i);
		setenv("PARPROF_TRUTH", path, 1);
		if (!run[i] || run[i](argc - 2, argv + 2))
			return 1;
	}
	return 0;
}
