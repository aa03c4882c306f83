/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole library as one translation unit, so that what is called for each strand is inlined where it is called from:
 * across files it is not. What the files have to themselves (`static`) has names that no other has.
 */
#define _GNU_SOURCE
#include "span_clock.c"
#include "span_chains.c"
#include "span_sites.c"
#include "span_segments.c"
#include "span_call_sites.c"
#include "span_calls.c"
#include "span.c"
#include "span_holds.c"
#include "span_loops.c"
#include "span_phases.c"
#include "span_dependences.c"
#include "span_doacross.c"
#include "span_stages.c"
#include "span_tasks.c"
#include "span_regions.c"
#include "span_process.c"
#include "span_gomp.c"
#include "span_gomp_tasks.c"
#include "span_kmp.c"
#include "span_kmp_tasks.c"
#include "span_locks.c"
#include "span_runtime.c"
#include "span_threads.c"
#include "span_tokens.c"
#include "span_meetings.c"
#include "span_conditions.c"
#include "span_futex.c"
#include "span_semaphores.c"
