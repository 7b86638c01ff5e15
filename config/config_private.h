/* config_private.h - what the files of config/ share and nobody else sees. */
#ifndef LTD_CONFIG_PRIVATE_H
#define LTD_CONFIG_PRIVATE_H

#include "config/config.h"

/* A failed check is about to abort: gives the writer thread a short while to put out what is queued. */
void log__flush_dying(void);

/* Writes the whole of it to fd, waiting at most timeout_ms in all for room; never raises SIGPIPE.  Returns
 * false when something of it was lost. */
bool log__write_fd(int fd, const char *s, size_t n, int timeout_ms);

/* ---------------------------------------------------------------- options (options.c, options_text.c) */

typedef enum opt_type {
    OPT_T_STRING,  /* char * */
    OPT_T_NAMES,   /* served_names and n_served_names; repeatable */
    OPT_T_INT,     /* int64_t */
    OPT_T_NUMBER,  /* double */
    OPT_T_FLAG,    /* bool; on the command line without a value */
    OPT_T_CHOICE,  /* an enum: the number of the choice */
    OPT_T_CHOICE2, /* bool: choice 1 is true */
    OPT_T_CONFIG,  /* --config: command line and environment only */
    OPT_T_ACTION,  /* --help, --version: command line only */
} opt_type;

typedef struct opt_row {
    const char *name, *aliases; /* aliases: separated by blanks, or NULL */
    opt_type type;
    size_t offset;       /* in ltd_options */
    double def;          /* of a choice: its number */
    double min, max;     /* all exact: below 2^53 */
    const char *choices; /* "auto|f32,float32|..": one word a choice and its other spellings; of a string: its
                            default */
    const char *unit;    /* of a number; else what stands for the value in --help */
    const char *group, *help;
} opt_row;

enum { OPT_ROWS_MAX = 64, OPT_WORD_MAX = 32 };
extern const opt_row opt__rows[];
extern const int opt__n_rows;

/* The n-th choice's first spelling into word; false past the last. */
bool opt__choice_word(const opt_row *r, int n, char word[OPT_WORD_MAX]);
/* "LATENTD_MAX_N" for "max-n", at most 48 bytes. */
void opt__env_name(const opt_row *r, char out[48]);
/* "0 to 65535", "auto, f32 or bf16". */
void opt__range_text(const opt_row *r, ltd_buf *out);
/* The option whose name or alias is nearest to what was written, or NULL if none is near. */
const opt_row *opt__nearest(const char *name, size_t len);
/* The names a request may call the model by if none were given: the folder's own name. */
char *opt__folder_name(const char *path);
void opt__help(ltd_buf *out);

#endif
