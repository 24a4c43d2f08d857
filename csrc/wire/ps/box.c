/* SPDX-License-Identifier: Apache-2.0
 * Checks the sizes of boxes. */
#include "wire/ps/box.h"

#include "base/error.h"

rdt_status
rdti_ps_check_slots(uint32_t slots, uint32_t slot_bytes, struct rdt_error *err)
{
    if (slots < 2 || slots > RDTI_PS_SLOTS_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u slots: 2 to %d are possible", slots,
                              RDTI_PS_SLOTS_MAX);
    if (slot_bytes < RDTI_PS_SLOT_BYTES_LEAST || slot_bytes > RDTI_PS_SLOT_BYTES_MAX ||
        slot_bytes % RDTI_PS_HEAD_BYTES != 0)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "slots of %u B: multiples of %d from %d to %d are possible",
                              slot_bytes, RDTI_PS_HEAD_BYTES, RDTI_PS_SLOT_BYTES_LEAST,
                              RDTI_PS_SLOT_BYTES_MAX);
    return RDT_OK;
}
