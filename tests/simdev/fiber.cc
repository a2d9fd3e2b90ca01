/* tests/simdev/fiber.cc - stacks to run simulated threads on, and switching between them: twenty
 * lines of assembler on x86-64, ucontext (five times slower: it asks the kernel) elsewhere. */
#include "sim_internal.h"

#include <sys/mman.h>

#if !defined(__x86_64__) || defined(SIM_UCONTEXT)
#include <ucontext.h>
struct SimContext {
    ucontext_t at;
};
#else
struct SimContext {
    void *stack_top;
};
#endif

struct SimFiber {
    SimContext context;
    void *tsan;
};

static const size_t stack_bytes = 128 << 10, page = 4096;

static char *new_stack()
{
    void *stack = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        sim_fail("no memory for the stack of a simulated thread");
    mprotect(stack, page, PROT_NONE);
    return static_cast<char *>(stack);
}

/* Tops at different offsets, so that the same frame of many threads is not in one cache set. */
static size_t stack_used(int number)
{
    return stack_bytes - static_cast<size_t>(number % 64) * 320;
}

#if !defined(__x86_64__) || defined(SIM_UCONTEXT)
static void start(SimContext *context, char *stack, size_t bytes)
{
    getcontext(&context->at);
    context->at.uc_stack.ss_sp = stack;
    context->at.uc_stack.ss_size = bytes;
    context->at.uc_link = nullptr;
    makecontext(&context->at, sim_fiber_body, 0);
}

static void swap(SimContext *from, SimContext *to)
{
    swapcontext(&from->at, &to->at);
}
#else
/* Saves the callee-saved registers on the stack that is left, which is kept in *save. */
extern "C" void sim_stack_switch(void **save, void *to);
asm(R"(
.text
.globl sim_stack_switch
.hidden sim_stack_switch
.type sim_stack_switch,@function
sim_stack_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmp *%rcx
.size sim_stack_switch,.-sim_stack_switch
)");

static void start(SimContext *context, char *stack, size_t bytes)
{
    void **top = reinterpret_cast<void **>(reinterpret_cast<uintptr_t>(stack + bytes) & ~15ul);
    *--top = nullptr; /* where a return address would be: the stack is aligned as after a call */
    *--top = reinterpret_cast<void *>(sim_fiber_body);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    context->stack_top = top;
}

static void swap(SimContext *from, SimContext *to)
{
    sim_stack_switch(&from->stack_top, to->stack_top);
}
#endif

SimFiber *sim_fiber_main()
{
    static SimFiber fiber;
    return &fiber;
}

SimFiber *sim_fiber_new()
{
    static int count;
    SimFiber *fiber = new SimFiber();
    start(&fiber->context, new_stack(), stack_used(count++));
    return fiber;
}

void sim_fiber_swap(SimFiber *from, SimFiber *to)
{
    sim_fiber_switch(to->tsan);
    swap(&from->context, &to->context);
}

void *&sim_fiber_tsan(SimFiber *fiber)
{
    return fiber->tsan;
}
