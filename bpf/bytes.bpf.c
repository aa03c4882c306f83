/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes that system calls bring a command's processes, and take from them: what `parprof input` holds against what its
 * instrument saw. Tracepoints alone. Attached only when it is asked for; until then its map has one entry.
 *
 * By number: these are fixed for good on x86-64, the only machine where there is an instrument.
 */
BPF_TABLE("hash", u32, u32, byte_processes, 1);	/* the command and its descendants, by tgid */
BPF_TABLE("array", u32, u64, byte_totals, 2);	/* brought, taken */

static __always_inline int brings(u64 number)
{
	switch (number) {
	case 0: case 17: case 19: case 45: case 47:	/* read, pread64, readv, recvfrom, recvmsg */
	case 295: case 327:				/* preadv, preadv2 */
	case 70: case 217: case 318:			/* msgrcv, getdents64, getrandom */
		return 1;
	}
	return 0;
}

enum { MSGSND = 69 };	/* takes, too, but gives no number of bytes back */

static __always_inline int takes(u64 number)
{
	switch (number) {
	case 1: case 18: case 20: case 44: case 46:	/* write, pwrite64, writev, sendto, sendmsg */
	case 296: case 328:				/* pwritev, pwritev2 */
		return 1;
	}
	return 0;
}

int on_bytes(struct bpf_raw_tracepoint_args *ctx)
{
	struct pt_regs *regs = (void *)ctx->args[0];
	u32 tgid = current_ids() >> 32, which;
	s64 bytes = ctx->args[1];
	u64 number, *total;

	if (bytes < 0 || !byte_processes.lookup(&tgid))
		return 0;
	number = entered_by(regs);
	if (number == MSGSND)
		bpf_probe_read_kernel(&bytes, sizeof(bytes), &regs->dx);
	else if (!bytes || (!brings(number) && !takes(number)))
		return 0;
	which = !brings(number);
	total = byte_totals.lookup(&which);
	if (total)
		__sync_fetch_and_add(total, bytes);
	return 0;
}

int on_bytes_fork(struct bpf_raw_tracepoint_args *ctx)
{
	u32 parent = ids_of((void *)ctx->args[0]) >> 32, child = ids_of((void *)ctx->args[1]) >> 32, one = 1;

	if (parent == child)
		return 0;
	if (byte_processes.lookup(&parent))
		byte_processes.update(&child, &one);
	else	/* only a fork can reuse a PID */
		byte_processes.delete(&child);
	return 0;
}
