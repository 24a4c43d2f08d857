/* SPDX-License-Identifier: Apache-2.0
 * Sizes that the wire format and the transports share. */
#ifndef RDTI_WIRE_LIMITS_H
#define RDTI_WIRE_LIMITS_H

/* The offer of a lane's half. Device, GIDs and QPNs of a few lanes take a fraction of it. */
#define RDTI_OFFER_MAX_BYTES 1024

/* The listener draws it at random, so that no two are equal. It names the endpoint in JOIN and
 * PATH. */
#define RDTI_SESSION_ID_BYTES 16

/* The probe of a path: random bytes that the peer's ring does not hold by chance. */
#define RDTI_PROBE_NONCE_BYTES 16

/* A message from one half of a lane to the other after set-up has begun: a key, a verdict. */
#define RDTI_LANE_WORDS_MAX_BYTES 128

#endif
