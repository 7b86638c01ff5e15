/* groups.c - from a group's id to the request that waits for it: open addressing, linear probing, deletion by
 * moving back. Ids come from the scheduler, one after the other, and are never used again: multiplying them
 * spreads them well enough. */
#include "server/server_private.h"

static size_t home(const srv_groups *g, uint64_t id)
{
    return (size_t)(id * 0x9E3779B97F4A7C15ull >> 20) & (g->cap - 1);
}

static size_t find(const srv_groups *g, uint64_t id)
{
    size_t i = home(g, id);
    while (g->ids[i] && g->ids[i] != id) i = (i + 1) & (g->cap - 1);
    return i;
}

static void grow(srv_groups *g)
{
    srv_groups old = *g;
    g->cap = old.cap ? 2 * old.cap : 64;
    g->ids = ltd_calloc(g->cap, sizeof *g->ids);
    g->reqs = ltd_calloc(g->cap, sizeof *g->reqs);
    for (size_t i = 0; i < old.cap; i++) {
        if (!old.ids[i]) continue;
        size_t to = find(g, old.ids[i]);
        g->ids[to] = old.ids[i];
        g->reqs[to] = old.reqs[i];
    }
    ltd_free(old.ids);
    ltd_free(old.reqs);
}

void srv__groups_put(srv_groups *g, uint64_t id, srv_req *req)
{
    LTD_CHECK(id != 0, "group id 0");
    if (2 * (g->n + 1) > g->cap) grow(g);
    size_t i = find(g, id);
    LTD_CHECK(!g->ids[i], "group %llu is there already", (unsigned long long)id);
    g->ids[i] = id;
    g->reqs[i] = req;
    g->n++;
}

srv_req *srv__groups_get(const srv_groups *g, uint64_t id)
{
    if (!g->n) return NULL;
    size_t i = find(g, id);
    return g->ids[i] ? g->reqs[i] : NULL;
}

void srv__groups_remove(srv_groups *g, uint64_t id)
{
    if (!g->n) return;
    size_t hole = find(g, id);
    if (!g->ids[hole]) return;
    g->n--;
    for (size_t i = (hole + 1) & (g->cap - 1); g->ids[i]; i = (i + 1) & (g->cap - 1)) {
        size_t from = home(g, g->ids[i]);
        if (((i - from) & (g->cap - 1)) < ((i - hole) & (g->cap - 1)))
            continue; /* it may not move before its home */
        g->ids[hole] = g->ids[i];
        g->reqs[hole] = g->reqs[i];
        hole = i;
    }
    g->ids[hole] = 0;
}

void srv__groups_deinit(srv_groups *g)
{
    ltd_free(g->ids);
    ltd_free(g->reqs);
    *g = (srv_groups){0};
}
