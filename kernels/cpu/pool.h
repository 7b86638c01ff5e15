/* pool.h - the threads of one backend.
 * cpu_pool_run(pool, scratch, n, task, arg) calls task(arg, i, scratch) for every i < n, on the calling
 * thread and on workers that are free; tasks of one run are claimed in ascending order, by whoever comes; so
 * a task's result must depend on i alone. One run at a time has the workers: a second context's run goes on
 * its own thread. */
#ifndef LTD_KERNELS_CPU_POOL_H
#define LTD_KERNELS_CPU_POOL_H

#include <stddef.h>
#include <stdint.h>

typedef struct cpu_pool cpu_pool;
typedef void cpu_task(const void *arg, int32_t i, void *scratch);

/* n_threads counts the caller: n_threads - 1 workers, each with scratch_bytes.  NULL: threads or memory could
 * not be had. */
cpu_pool *cpu_pool_create(int32_t n_threads, size_t scratch_bytes);
void cpu_pool_destroy(cpu_pool *p);
int32_t cpu_pool_threads(const cpu_pool *p);

void cpu_pool_run(cpu_pool *p, void *scratch, int32_t n, cpu_task *task, const void *arg);

/* CPUs of the process: its affinity mask, cut to its cgroup's quota; at least 1. */
int32_t cpu_count(void);

#endif
