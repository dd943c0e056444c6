/* task_int - what tasks share: the stamp that says what the files of a directory were made from. */
#ifndef K2_DATA_TASK_INT_H
#define K2_DATA_TASK_INT_H

#include "common/base/base.h"

#define K2I_STAMP_BYTES_MAX 512u

/* The stamp is removed before the first file of a directory is replaced, and written after the last: a directory that has it is
 * whole. `begin` makes the directory where it is missing. */
k2_code k2i_task_begin(const char *dir, k2_error *err);
k2_code k2i_task_end(const char *dir, const char *stamp, k2_error *err);
/* Whether DIR holds this very stamp and all of the files. */
bool k2i_task_is_made(const char *dir, const char *stamp, const char *const *files, size_t count);

k2_code k2i_task_file_write(const char *dir, const char *name, const void *data, size_t n, k2_error *err);

#endif
