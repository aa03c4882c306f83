/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands for a program with LLVM's MCJIT in it: loads relocatable objects into anonymous memory, one after the other, tells
 * debuggers of each as GDB's JIT interface has it, and runs them. A compiler takes its time before there is any code.
 *
 * usage: loads SECONDS OUTER.o INNER.o: so many seconds of CPU time, so that there is as much to sample on a busy machine
 */
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define COMPILING_US 500000

struct jit_code_entry {
	struct jit_code_entry *next, *prev;
	const char *symfile;
	uint64_t size;
};

struct jit_descriptor {
	uint32_t version, action;
	struct jit_code_entry *relevant, *first;
};

struct jit_descriptor __jit_debug_descriptor = { 1, 0, 0, 0 };

__attribute__((noinline)) void __jit_debug_register_code(void)
{
	__asm__ volatile("" : : : "memory");
}

static char *read_whole(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	char *data;

	if (!file || fseek(file, 0, SEEK_END))
		exit(1);
	*size = ftell(file);
	rewind(file);
	data = malloc(*size);
	if (fread(data, 1, *size, file) != *size)
		exit(1);
	fclose(file);
	return data;
}

/* What call frame information needs: distances of four bytes. */
static void relocate(char *image, Elf64_Shdr *sections, Elf64_Shdr *relocations)
{
	Elf64_Shdr *target = &sections[relocations->sh_info];
	Elf64_Sym *symbols = (Elf64_Sym *)(image + sections[relocations->sh_link].sh_offset);
	Elf64_Rela *each = (Elf64_Rela *)(image + relocations->sh_offset);

	for (size_t i = 0; i < relocations->sh_size / sizeof(*each); i++) {
		Elf64_Sym *symbol = &symbols[ELF64_R_SYM(each[i].r_info)];
		uint64_t place = target->sh_addr + each[i].r_offset;
		int32_t distance = sections[symbol->st_shndx].sh_addr + symbol->st_value + each[i].r_addend - place;

		if (ELF64_R_TYPE(each[i].r_info) != R_X86_64_PC32)
			exit(2);
		memcpy((void *)place, &distance, sizeof(distance));
	}
}

/* The address of the object's function, which is the only one that it has. */
static void *load(const char *path)
{
	struct jit_code_entry *entry = calloc(1, sizeof(*entry));
	size_t size, at = 0;
	char *image = read_whole(path, &size);
	Elf64_Ehdr *header = (Elf64_Ehdr *)image;
	Elf64_Shdr *sections = (Elf64_Shdr *)(image + header->e_shoff);
	char *memory = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *function = 0;

	if (memory == MAP_FAILED)
		exit(1);
	for (int i = 0; i < header->e_shnum; i++) {
		if (!(sections[i].sh_flags & SHF_ALLOC) || sections[i].sh_type == SHT_NOBITS || !sections[i].sh_size)
			continue;
		at = sections[i].sh_flags & SHF_EXECINSTR ? at : (at + 4095) & ~4095ul;
		at = (at + 63) & ~63ul;
		sections[i].sh_addr = (uint64_t)memory + at;
		memcpy(memory + at, image + sections[i].sh_offset, sections[i].sh_size);
		at += sections[i].sh_size;
	}
	for (int i = 0; i < header->e_shnum; i++)
		if (sections[i].sh_type == SHT_RELA && sections[sections[i].sh_info].sh_addr)
			relocate(image, sections, &sections[i]);
	for (int i = 0; i < header->e_shnum; i++) {
		Elf64_Sym *symbols = (Elf64_Sym *)(image + sections[i].sh_offset);

		for (size_t k = 0; sections[i].sh_type == SHT_SYMTAB && k < sections[i].sh_size / sizeof(*symbols); k++)
			if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC)
				function = (void *)(sections[symbols[k].st_shndx].sh_addr + symbols[k].st_value);
	}
	if (mprotect(memory, 4096, PROT_READ | PROT_EXEC))
		exit(1);
	entry->symfile = image;
	entry->size = size;
	entry->next = __jit_debug_descriptor.first;
	if (entry->next)
		entry->next->prev = entry;
	__jit_debug_descriptor.first = __jit_debug_descriptor.relevant = entry;
	__jit_debug_descriptor.action = 1;
	__jit_debug_register_code();
	return function;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

__attribute__((noinline)) void run_made(double end, const char *outer_path, const char *inner_path)
{
	long (*outer)(void *, long);
	void *inner;

	usleep(COMPILING_US);
	outer = load(outer_path);
	inner = load(inner_path);

	while (seconds() < end)
		outer(inner, 10);
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 1;
	run_made(seconds() + atof(argv[1]), argv[2], argv[3]);
	puts("done");
	return 0;
}
