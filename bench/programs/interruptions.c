// SPDX-License-Identifier: Apache-2.0
// For how long the core that it runs on is taken from a program: interruptions [SECONDS]
//
// It reads the time without end. Two readings that lie further apart than SHORTEST_NS had something between them: the
// scheduler's tick, a sampling timer, another process, the host. Prints how many a second, and percent of the time.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SHORTEST_NS 700 // a reading takes 20 to 60 ns

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 5;
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9), last = start, lost = 0, number = 0;
    while (last < end) {
        uint64_t now = now_ns();
        if (now - last > SHORTEST_NS) {
            lost += now - last;
            number++;
        }
        last = now;
    }
    printf("%.0f %.3f\n", number / seconds, lost / (seconds * 1e7));
    return 0;
}
