/* SPDX-License-Identifier: Apache-2.0
 * Sizes that the wire format and the transports share. */
#ifndef RDTI_WIRE_LIMITS_H
#define RDTI_WIRE_LIMITS_H

/* A lane's half in words: device, GIDs, QPNs of a few lanes fit many times over. */
#define RDTI_OFFER_MAX_BYTES 1024

/* Drawn at random by the listener, so that no two are the same; it names the endpoint in
 * JOIN and PATH. */
#define RDTI_SESSION_ID_BYTES 16

/* The probe of a path: bytes at random that are not in the peer's ring by chance. */
#define RDTI_PROBE_NONCE_BYTES 16

/* What one half of a lane tells the other once set-up has begun: a key, a verdict. */
#define RDTI_LANE_WORDS_MAX_BYTES 128

#endif
