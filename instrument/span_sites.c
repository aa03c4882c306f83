/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of sites. A site's address is resolved when it is first seen, to a file and an address in it: so names
 * can be found after the process is gone, whatever was loaded and unloaded in between.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include "span.h"

#define SITE_SLOTS (4 * SPAN_MAX_SITES)
#define MAX_LOCKS (SPAN_MAX_SITES / 2) /* the rest is for code */
#define UNKNOWN (~0u)

struct key {
	uint32_t kind;
	uintptr_t address, origin;
};

static struct key keys[SPAN_MAX_SITES];
static _Atomic uint32_t site_slots[SITE_SLOTS]; /* index of a site; 0: free */
static struct spin table_lock;
static uint32_t known = FIRST_SITE, locks;

static uintptr_t own_start, own_end; /* the segment with our code */

bool span_is_ours(uintptr_t address)
{
	return address >= own_start && address < own_end;
}

static int find_own(struct dl_phdr_info *info, size_t size, void *argument)
{
	uintptr_t here = (uintptr_t)span_is_ours;

	(void)size;
	(void)argument;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
		uintptr_t end = start + info->dlpi_phdr[i].p_memsz;

		if (info->dlpi_phdr[i].p_type == PT_LOAD && here >= start && here < end) {
			own_start = start;
			own_end = end;
			return 1;
		}
	}
	return 0;
}

struct module_query {
	uintptr_t address;
	uint32_t module;
	uint64_t vaddr;
	struct span_record *record;
};

static void copy_build_id(struct span_module *module, const struct dl_phdr_info *info)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		const char *note = (const char *)info->dlpi_addr + segment->p_vaddr, *end = note + segment->p_memsz;

		if (segment->p_type != PT_NOTE)
			continue;
		while (note + sizeof(ElfW(Nhdr)) <= end) {
			const ElfW(Nhdr) *header = (const ElfW(Nhdr) *)note;
			const char *name = note + sizeof(*header), *value = name + ((header->n_namesz + 3) & ~3u);

			if (header->n_type == NT_GNU_BUILD_ID && header->n_namesz == 4 && !memcmp(name, "GNU", 4) &&
			    header->n_descsz <= sizeof(module->build_id)) {
				memcpy(module->build_id, value, header->n_descsz);
				module->build_id_bytes = header->n_descsz;
				return;
			}
			note = value + ((header->n_descsz + 3) & ~3u);
		}
	}
}

static uint32_t find_module(struct span_record *record, const struct dl_phdr_info *info)
{
	char path[SPAN_PATH_BYTES] = "";
	struct span_module *module;
	ssize_t length;

	if (info->dlpi_name && info->dlpi_name[0]) {
		strncpy(path, info->dlpi_name, sizeof(path) - 1);
	} else {
		length = readlink("/proc/self/exe", path, sizeof(path) - 1);
		path[length > 0 ? length : 0] = 0;
	}
	for (uint32_t i = 0; i < record->module_count; i++) {
		if (!strcmp(record->modules[i].path, path))
			return i;
	}
	if (record->module_count == SPAN_MAX_MODULES)
		return UNKNOWN;
	module = &record->modules[record->module_count];
	memcpy(module->path, path, sizeof(path));
	copy_build_id(module, info);
	module->is_ready = 1;
	return record->module_count++;
}

static int visit_module(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct module_query *query = argument;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_LOAD && query->address >= start && query->address < start + segment->p_memsz) {
			query->module = find_module(query->record, info);
			query->vaddr = query->address - info->dlpi_addr;
			return 1;
		}
	}
	return 0;
}

/* Under the lock. */
uint32_t span_resolve(struct span_record *record, uintptr_t address, uint64_t *vaddr)
{
	struct module_query query = {address, UNKNOWN, address, record};

	if (address > 4096)
		dl_iterate_phdr(visit_module, &query);
	*vaddr = query.module == UNKNOWN ? address : query.vaddr;
	return query.module;
}

static void describe_site(struct span_record *record, uint32_t index)
{
	struct span_site *site = &record->sites[index];

	site->kind = keys[index].kind;
	site->module = span_resolve(record, keys[index].address, &site->address);
	site->origin_module = span_resolve(record, keys[index].origin, &site->origin);
	atomic_thread_fence(memory_order_release);
	site->is_ready = 1;
	if (record->site_count <= index)
		record->site_count = index + 1;
}

void span_describe_call(struct span_call *call, uintptr_t address, uintptr_t callee, uintptr_t caller)
{
	spin_lock(&table_lock);
	call->module = span_resolve(span_record, address, &call->address);
	call->callee_module = span_resolve(span_record, callee, &call->callee);
	call->caller_module = span_resolve(span_record, caller, &call->caller);
	spin_unlock(&table_lock);
	atomic_thread_fence(memory_order_release);
	call->is_ready = 1;
}

void span_lock_sites(void)
{
	spin_lock(&table_lock);
}

void span_unlock_sites(void)
{
	spin_unlock(&table_lock);
}

static uint32_t slot_of(enum span_kind kind, uintptr_t address, uintptr_t origin)
{
	uint64_t mixed = (address * 31 + origin) * 31 + kind;

	mixed *= 0x9e3779b97f4a7c15ull;
	return (uint32_t)(mixed >> 40) % SITE_SLOTS;
}

static uint32_t look_up_site(enum span_kind kind, uintptr_t address, uintptr_t origin, uint32_t *slot)
{
	for (*slot = slot_of(kind, address, origin);; *slot = (*slot + 1) % SITE_SLOTS) {
		uint32_t index = atomic_load_explicit(&site_slots[*slot], memory_order_acquire);

		if (!index)
			return 0;
		if (keys[index].kind == kind && keys[index].address == address && keys[index].origin == origin)
			return index;
	}
}

static uint32_t add_site(enum span_kind kind, uintptr_t address, uintptr_t origin)
{
	uint32_t slot, index = look_up_site(kind, address, origin, &slot);

	if (index)
		return index;
	if (known == SPAN_MAX_SITES || (kind == SPAN_LOCK && locks == MAX_LOCKS)) {
		span_record->flags |= SPAN_FULL;
		return SITE_OTHER;
	}
	locks += kind == SPAN_LOCK;
	index = known++;
	keys[index] = (struct key){kind, address, origin};
	describe_site(span_record, index);
	atomic_store_explicit(&site_slots[slot], index, memory_order_release);
	return index;
}

/* The index of a site, which is made if there is none; SITE_OTHER when the table is full. */
uint32_t span_site(enum span_kind kind, uintptr_t address, uintptr_t origin)
{
	static __thread uint32_t last; /* most are of the site of the one before */
	uint32_t slot, index = last;

	if (LIKELY(keys[index].address == address && keys[index].kind == kind && keys[index].origin == origin && index))
		return index;
	index = look_up_site(kind, address, origin, &slot);
	if (LIKELY(index)) {
		last = index;
		return index;
	}
	spin_lock(&table_lock);
	index = add_site(kind, address, origin);
	spin_unlock(&table_lock);
	return index;
}

/* The address that a site was made with, as the process has it. */
uintptr_t span_site_address(uint32_t site)
{
	return keys[site].address;
}

/* The second address that a site was made with, as the process has it. */
uintptr_t span_site_origin(uint32_t site)
{
	return keys[site].origin;
}

/* A new record, maybe after a fork: it has the sites that are known, and no amounts. */
void span_reset_sites(struct span_record *record)
{
	atomic_flag_clear(&table_lock.taken); /* another thread may have held it at the fork */
	if (!own_end)
		dl_iterate_phdr(find_own, NULL);
	keys[SITE_PENDING].kind = SPAN_PENDING;
	keys[SITE_OTHER].kind = SPAN_OTHER;
	for (uint32_t index = 0; index < known; index++)
		describe_site(record, index);
	span_reset_chains(record);
}
