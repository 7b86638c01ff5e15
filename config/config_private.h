/* config_private.h - what the files of config/ share and nobody else sees. */
#ifndef LTD_CONFIG_PRIVATE_H
#define LTD_CONFIG_PRIVATE_H

#include "config/config.h"

/* A failed check is about to abort: gives the writer thread a short while to put out what is queued. */
void log__flush_dying(void);

/* Writes the whole of it to fd, waiting at most timeout_ms in all for room; never raises SIGPIPE.  Returns
 * false when something of it was lost. */
bool log__write_fd(int fd, const char *s, size_t n, int timeout_ms);

#endif
