// SPDX-License-Identifier: Apache-2.0
/*
 * late_runtime - a program without OpenMP that loads plugin_truth.so (omp_truth as a plug-in, from the
 * directory of this program) after half a second and runs it with its own arguments.
 */
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char self[PATH_MAX] = "", path[PATH_MAX + 32];
	int (*plugin_main)(int, char **);
	void *handle;

	usleep(500000);
	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		return 1;
	snprintf(path, sizeof(path), "%s/plugin_truth.so", dirname(self));
	handle = dlopen(path, RTLD_NOW);
	if (!handle) {
		fprintf(stderr, "late_runtime: %s\n", dlerror());
		return 1;
	}
	*(void **)&plugin_main = dlsym(handle, "plugin_main");
	return plugin_main ? plugin_main(argc, argv) : 1;
}
