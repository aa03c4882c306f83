/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PARPROF_SPAN_ACCOUNTS_H
#define PARPROF_SPAN_ACCOUNTS_H

#include "span.h"

/* What is known of a thread should the process end now. */
struct account {
	struct spin lock;
	struct thread *self; /* null: it is over, and all is known */
	pthread_t thread;
	/* when it was left: */
	uint64_t total;	 /* of its strands */
	uint64_t on_cpu; /* the thread's CPU clock */
	uint64_t c;
	struct prof prof;
	struct segment *calls;
};

/* Of the calling thread, which has a frame of its own by then. */
void span_account_open(struct thread *self, struct account *account);
void span_account_begin(struct thread *self);
void span_account_leave(struct thread *self);
void span_account_close(void);
void span_account_forget(void);

/* Of any thread. */
uint64_t span_account_length(struct account *account);
void span_account_take_rest(struct account *account, struct frame *frame, struct phase *phase);
void span_accounts_end(struct team *team);

#endif
