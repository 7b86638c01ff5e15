/* pool.c - a run is open for workers to join until its caller has found no task left; nobody waits for a
 * worker that did not come.
 *   state = generation << 32 | joined << 1 | open
 * A worker joins by adding to `joined` while the run is open, and leaves when it finds no task; the caller
 * closes the run, then waits for joined == 0.  Idle workers spin for some tens of microseconds, long enough
 * for the next op of a forward pass, then sleep. */
#include "kernels/cpu/pool.h"
#include "kernels/cpu/cpu.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

enum { SPIN_US = 40, SPIN_BATCH = 64 };

typedef struct worker {
    cpu_pool *pool;
    pthread_t thread;
    void *scratch;
} worker;

struct cpu_pool {
    pthread_mutex_t run_lock; /* held by the context whose run has the workers */
    _Alignas(64) _Atomic uint64_t state;
    cpu_task *task; /* written while no run is open and nobody is in */
    const void *arg;
    int32_t n;
    _Alignas(64) _Atomic int32_t next;
    _Alignas(64) _Atomic int32_t n_sleeping; /* workers */
    atomic_bool caller_sleeps, stop;
    pthread_mutex_t lock; /* for sleeping only */
    pthread_cond_t work, done;
    int32_t n_workers;
    worker workers[];
};

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void run_tasks(cpu_pool *p, void *scratch)
{
    for (;;) {
        int32_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n) return;
        p->task(p->arg, i, scratch);
    }
}

static bool news(cpu_pool *p, uint32_t seen)
{
    uint64_t s = atomic_load(&p->state);
    return ((s & 1) && (uint32_t)(s >> 32) != seen) || atomic_load(&p->stop);
}

static void wait_for_news(cpu_pool *p, uint32_t seen)
{
    int64_t until = ltd_now_us() + SPIN_US;
    do {
        for (int i = 0; i < SPIN_BATCH; i++) {
            if (news(p, seen)) return;
            relax();
        }
    } while (ltd_now_us() < until);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->n_sleeping, 1);
    while (!news(p, seen)) pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->n_sleeping, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *work(void *arg)
{
    worker *w = arg;
    cpu_pool *p = w->pool;
    uint32_t seen = 0;
    while (!atomic_load(&p->stop)) {
        uint64_t s = atomic_load(&p->state);
        if (!(s & 1) || (uint32_t)(s >> 32) == seen) {
            wait_for_news(p, seen);
            continue;
        }
        if (!atomic_compare_exchange_weak(&p->state, &s, s + 2)) continue;
        seen = (uint32_t)(s >> 32);
        run_tasks(p, w->scratch);
        s = atomic_fetch_sub(&p->state, 2) - 2;
        if (!(s & 0xffffffffu) && atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
    return NULL;
}

static bool joined(cpu_pool *p) { return (atomic_load(&p->state) & 0xffffffffu) != 0; }

/* The workers are in their last tasks. */
static void wait_for_workers(cpu_pool *p)
{
    if (!joined(p)) return;
    int64_t until = ltd_now_us() + SPIN_US;
    do {
        for (int i = 0; i < SPIN_BATCH; i++) {
            if (!joined(p)) return;
            relax();
        }
    } while (ltd_now_us() < until);
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, true);
    while (joined(p)) pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->lock);
}

void cpu_pool_run(cpu_pool *p, void *scratch, int32_t n, cpu_task *task, const void *arg)
{
    if (n < 2 || !p->n_workers || pthread_mutex_trylock(&p->run_lock) != 0) {
        for (int32_t i = 0; i < n; i++) task(arg, i, scratch);
        return;
    }
    p->task = task;
    p->arg = arg;
    p->n = n;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    uint64_t generation = (atomic_load_explicit(&p->state, memory_order_relaxed) >> 32) + 1;
    if (generation > UINT32_MAX) generation = 1; /* 0 is what workers start with */
    atomic_store(&p->state, generation << 32 | 1);
    if (atomic_load(&p->n_sleeping)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
    run_tasks(p, scratch);
    atomic_fetch_and(&p->state, ~(uint64_t)1);
    wait_for_workers(p);
    pthread_mutex_unlock(&p->run_lock);
}

cpu_pool *cpu_pool_create(int32_t n_threads, size_t scratch_bytes)
{
    cpu_pool *p = ltd_alloc_aligned(64, (sizeof *p + (size_t)n_threads * sizeof(worker) + 63) & ~(size_t)63);
    *p = (cpu_pool){0};
    pthread_mutex_init(&p->run_lock, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int32_t i = 0; i < n_threads - 1; i++) {
        worker *w = &p->workers[i];
        *w = (worker){.pool = p, .scratch = cpu_mem_take(scratch_bytes)};
        if (w->scratch && pthread_create(&w->thread, NULL, work, w) == 0) {
            p->n_workers++;
            continue;
        }
        cpu_mem_give(w->scratch);
        cpu_pool_destroy(p);
        return NULL;
    }
    return p;
}

void cpu_pool_destroy(cpu_pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->n_workers; i++) {
        pthread_join(p->workers[i].thread, NULL);
        cpu_mem_give(p->workers[i].scratch);
    }
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->run_lock);
    ltd_free(p);
}

int32_t cpu_pool_threads(const cpu_pool *p) { return p->n_workers + 1; }

int32_t cpu_count(void)
{
    cpu_set_t set;
    int32_t n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    long long quota, period;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (f) {
        if (fscanf(f, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0 &&
            (quota + period - 1) / period < n)
            n = (int32_t)((quota + period - 1) / period);
        fclose(f);
    }
    return n < 1 ? 1 : n;
}
