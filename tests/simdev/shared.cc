/* tests/simdev/shared.cc - shared memory; where the static kind is, what a kernel uses of it.
 *
 * simdev.h marks each __shared__ variable by a tag in its name; the symbol tables of the loaded
 * objects tell where the variables are. All hold poison (NaN) while no grid runs. What a
 * grid has changed belongs to its kernel: poisoned again after each of its blocks, and counted
 * against the limit on shared memory. */
#include "sim_internal.h"

#include <algorithm>
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unordered_map>

struct Variable {
    char *at;
    size_t bytes;
};
struct Usage {
    std::vector<Variable> used;
    unsigned blocks, grids;
};
static std::vector<Variable> variables;
static std::unordered_map<const void *, Usage> usages;

static bool is_poison(const Variable &v)
{
    return v.bytes == 0 || (v.at[0] == '\xff' && !memcmp(v.at, v.at + 1, v.bytes - 1));
}

static void poison(const Variable &v)
{
    memset(v.at, 0xff, v.bytes);
}

/* ---- finding them ---- */

struct Object {
    const char *file; /* mapped */
    char *base;       /* where it is loaded */
};

static void read_symbols(const Object &o)
{
    const ElfW(Ehdr) *head = reinterpret_cast<const ElfW(Ehdr) *>(o.file);
    const ElfW(Shdr) *sections = reinterpret_cast<const ElfW(Shdr) *>(o.file + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const ElfW(Sym) *symbols =
            reinterpret_cast<const ElfW(Sym) *>(o.file + sections[i].sh_offset);
        const char *names = o.file + sections[sections[i].sh_link].sh_offset;
        for (size_t j = 0; j < sections[i].sh_size / sizeof *symbols; j++)
            if (ELF64_ST_TYPE(symbols[j].st_info) == STT_OBJECT &&
                strstr(names + symbols[j].st_name, "B5simsh"))
                variables.push_back({o.base + symbols[j].st_value, symbols[j].st_size});
    }
}

static int read_object(struct dl_phdr_info *info, size_t, void *)
{
    bool program = !info->dlpi_name || !*info->dlpi_name;
    int file = open(program ? "/proc/self/exe" : info->dlpi_name, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0)
        return 0;
    if (fstat(file, &status) == 0 && status.st_size > 0) {
        size_t bytes = static_cast<size_t>(status.st_size);
        void *map = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
        if (map != MAP_FAILED) {
            read_symbols(
                {static_cast<const char *>(map), reinterpret_cast<char *>(info->dlpi_addr)});
            munmap(map, bytes);
        }
    }
    close(file);
    return 0;
}

/* ---- dynamic: of one grid alone, so that reuse by another stream's is no race ---- */

unsigned char *sim_dynamic_new(size_t bytes)
{
    void *p = nullptr;
    if (posix_memalign(&p, 128, bytes + SIM_CANARY))
        sim_fail("no memory for %zu bytes of dynamic shared memory", bytes);
    memset(p, 0xff, bytes + SIM_CANARY);
    sim_redzone(static_cast<char *>(p) + bytes, SIM_CANARY, true);
    return static_cast<unsigned char *>(p);
}

void sim_dynamic_delete(unsigned char *p, size_t bytes)
{
    sim_redzone(p + bytes, SIM_CANARY, false);
    free(p);
}

/* ---- use of static ones ---- */

static bool find_all()
{
    dl_iterate_phdr(read_object, nullptr);
    std::sort(variables.begin(), variables.end(),
              [](const Variable &a, const Variable &b) { return a.at < b.at; });
    for (const Variable &v : variables)
        poison(v);
    if (!variables.empty())
        sim_fresh_within(variables.front().at, variables.back().at + variables.back().bytes);
    return true;
}

/* On a device each grid has its own; here one comes after another, whatever streams they are of. */
void sim_shared_before_grid()
{
    static const bool found = find_all();
    (void)found;
    for (const Variable &v : variables)
        sim_fresh(v.at, v.bytes);
}

static void poison_used(const Usage &usage)
{
    for (const Variable &v : usage.used)
        poison(v);
}

/* What is no poison now was used by the kernel that ran last. */
static void look_for_use(Usage &usage)
{
    for (const Variable &v : variables) {
        if (is_poison(v))
            continue;
        usage.used.push_back(v);
        poison(v);
    }
}

void sim_shared_after_block(const void *kernel)
{
    Usage &usage = usages[kernel];
    poison_used(usage);
    if (usage.blocks++ < 16) /* a kernel's use changes little */
        look_for_use(usage);
}

void sim_shared_after_grid(const void *kernel)
{
    Usage &usage = usages[kernel];
    if (usage.grids++ % 64 == 0)
        look_for_use(usage);
}

size_t sim_shared_bytes(const void *kernel)
{
    size_t bytes = 0;
    auto found = usages.find(kernel);
    if (found != usages.end())
        for (const Variable &v : found->second.used)
            bytes += v.bytes;
    return bytes;
}
