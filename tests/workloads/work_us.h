/* SPDX-License-Identifier: Apache-2.0 */
/* Work by the thread's own clock. */
#include <time.h>

static void work_us(long us)
{
	struct timespec now;
	long until;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	for (until = now.tv_sec * 1000000000 + now.tv_nsec + us * 1000;
	     now.tv_sec * 1000000000 + now.tv_nsec < until;)
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
}
