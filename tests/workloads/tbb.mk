# SPDX-License-Identifier: Apache-2.0
# Builds tbb_truth; included by Makefile, which gives HERE, OUT, CC, CFLAGS. Left out where libtbb-dev is missing.
have_tbb := $(shell printf '\043include <tbb/task_group.h>\nint main() { tbb::task_group g; g.wait(); }\n' | \
	g++ -x c++ - -ltbb -o /dev/null 2>/dev/null && echo yes)
TBB := tbb_truth tbb_truth.stripped tbb_truth.nofp tbb_truth.gomp
ifeq ($(have_tbb),yes)
TARGETS += $(TBB)
endif

TBB_CXXFLAGS := -std=c++17 -O2 -g -Wall -Wextra -fno-optimize-sibling-calls
$(OUT)/tbb_work.o: tbb_work.c tbb_works.h truth.h phases.h | $(OUT)
	$(CC) $(CFLAGS) -c $< -o $@
$(OUT)/tbb_truth: tbb_truth.cpp tbb_works.h $(OUT)/tbb_work.o
	g++ $(TBB_CXXFLAGS) -fno-omit-frame-pointer $< $(OUT)/tbb_work.o -ltbb -o $@
$(OUT)/tbb_truth.nofp: tbb_truth.cpp tbb_works.h $(OUT)/tbb_work.o
	g++ $(TBB_CXXFLAGS) -fomit-frame-pointer $< $(OUT)/tbb_work.o -ltbb -o $@
# The same, with a phase of OpenMP among them: two runtimes in one process.
$(OUT)/tbb_truth.gomp: tbb_truth.cpp tbb_works.h tbb_work.c truth.h phases.h | $(OUT)
	$(CC) $(CFLAGS) -fopenmp -c tbb_work.c -o $@.o
	g++ $(TBB_CXXFLAGS) -fopenmp -fno-omit-frame-pointer $< $@.o -ltbb -o $@
	rm $@.o
$(OUT)/tbb_truth.stripped: $(OUT)/tbb_truth
	strip -s $< -o $@
