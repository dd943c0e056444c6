/* slots_int - slots by name: what loading, digests and segments have in common. */
#ifndef K2_WEIGHTS_SLOTS_INT_H
#define K2_WEIGHTS_SLOTS_INT_H

#include "common/weights/weights.h"

/* The slots sorted by name; k2_free it. Names given twice are asserted. */
const k2_weights_slot **k2i_slots_sort(const k2_weights_slot *slots, size_t count);
const k2_weights_slot *k2i_slots_find(const k2_weights_slot *const *sorted, size_t count, const char *name); /* or NULL */
size_t k2i_slots_place(const k2_weights_slot *const *sorted, size_t count, const char *name); /* or count */
uint64_t k2i_slot_bytes(const k2_weights_slot *s); /* asserts that they fit 64 bits */
/* The weights digest of sorted slots whose tensors have these digests. */
k2_digest k2i_slots_digest(const k2_weights_slot *const *sorted, const k2_digest *tensors, size_t count);
/* "[264,64]" into out, for errors. */
#define K2I_SHAPE_TEXT_MAX 96u
const char *k2i_shape_text(const k2_shape *s, char out[K2I_SHAPE_TEXT_MAX]);

#endif
