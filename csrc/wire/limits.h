/* SPDX-License-Identifier: Apache-2.0
 * Sizes that the wire format and the transports share. */
#ifndef RDTI_WIRE_LIMITS_H
#define RDTI_WIRE_LIMITS_H

/* A lane's half in words: device, GIDs, QPNs of a few lanes fit many times over. */
#define RDTI_OFFER_MAX_BYTES 1024

#endif
