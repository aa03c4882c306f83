// SPDX-License-Identifier: Apache-2.0
// Functions in assembly as BLAS libraries have them: no call frame information, and the stack aligned to a page under a
// copy of the old stack pointer; and as encoders have them, which keep the old stack pointer on the new stack. usage:
// kernels_asm SECONDS: of CPU time, a part in each kind of frame.
#include <stdlib.h>
#include <time.h>

#define KERNEL(name, prologue, epilogue)                                                              \
	void name(long turns);                                                                        \
	__asm__(".text\n.p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" prologue \
		"mov $0, %eax\n1: add $1, %rax\ncmp %rdi, %rax\njl 1b\n" epilogue "ret\n.size " #name ", .-" #name "\n")

KERNEL(plain, "", "");
KERNEL(saving, "push %rbp\npush %rbx\nsub $24, %rsp\nxor %ebp, %ebp\n", "add $24, %rsp\npop %rbx\npop %rbp\n");
KERNEL(aligned,
       "sub $0x60, %rsp\nmov %rbx, (%rsp)\nmov %rbp, 8(%rsp)\nmov %r12, 0x10(%rsp)\nxor %ebp, %ebp\n"
       "mov %rsp, %rbx\nsub $0x3080, %rsp\nand $-0x1000, %rsp\n",
       "mov %rbx, %rsp\nmov (%rsp), %rbx\nmov 8(%rsp), %rbp\nmov 0x10(%rsp), %r12\nadd $0x60, %rsp\n");
KERNEL(kept,
       "push %rbx\npush %rbp\nmov %rsp, %rcx\nsub $0x148, %rsp\nand $-64, %rsp\nmov %rcx, 0x140(%rsp)\nxor %ebp, %ebp\n"
       "xor %ecx, %ecx\n",
       "mov 0x140(%rsp), %rsp\npop %rbp\npop %rbx\n");
KERNEL(kept_by_rbp,
       "push %rbp\nmov %rsp, %rcx\nsub $8, %rsp\nand $-32, %rsp\nmov %rcx, (%rsp)\nmov %rsp, %rbp\nlea -0x60(%rbp), %rsp\n"
       "push %r15\nxor %ecx, %ecx\n",
       "pop %r15\nmov %rbp, %rsp\npop %rsp\npop %rbp\n");

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

__attribute__((noinline)) static void caller(void (*kernel)(long), double seconds)
{
	double end_s = cpu_s() + seconds;

	while (cpu_s() < end_s)
		kernel(1000000);
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;

	caller(plain, seconds / 5);
	caller(saving, seconds / 5);
	caller(aligned, seconds / 5);
	caller(kept, seconds / 5);
	caller(kept_by_rbp, seconds / 5);
	return 0;
}
